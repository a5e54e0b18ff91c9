"""Numbers and tables as text."""

from symbayes.text import counted, listed, number, significant, text_table


def test_numbers_have_commas_and_a_true_minus():
    assert number(-1234567.891, 1) == "−1,234,567.9"
    assert significant(-0.00012345) == "−0.000123"
    assert counted(1, "quantity", "quantities") == "1 quantity"
    assert counted(1200, "pair") == "1,200 pairs"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_columns_are_as_wide_as_what_they_hold():
    table = text_table(("name", "γ"), [("conv", "1,282.5"), ("", "3")], left=1)
    assert table.split("\n") == [" name        γ ", " conv  1,282.5 ", "             3"]
    assert text_table(("a", "b"), []) == " a  b"
