"""Values out of JSON are checked against types, and what is wrong is named."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

import pytest

from symbayes.data.storage import check_form, dump_json, from_json, parse_json, read_json, to_json


@dataclass
class Inner:
    count: int
    names: list[str] = field(default_factory=list)


class Outer(TypedDict):
    inner: Inner | None
    kind: Literal["a", "b"]
    shares: NotRequired[dict[str, float]]
    any: NotRequired[Any]


@pytest.mark.parametrize(
    "value",
    [
        {"inner": None, "kind": "a"},
        {"inner": {"count": 1}, "kind": "b", "shares": {"x": 1, "y": 0.5, "z": float("nan")}, "any": [1, None]},
        {"inner": {"count": -1, "names": ["x"], "more": 1}, "kind": "b", "more": 1},
    ],
)
def test_what_has_the_form_is_let_pass(value):
    check_form(value, Outer, "it")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "it must be a dictionary, got a list"),
        ({"kind": "a"}, "it must have inner"),
        ({"inner": {}, "kind": "a"}, "it.inner must have count"),
        ({"inner": 3, "kind": "a"}, "it.inner must be a dictionary, got a whole number"),
        ({"inner": {"count": 1.0}, "kind": "a"}, "it.inner.count must be a whole number, got a number"),
        ({"inner": {"count": True}, "kind": "a"}, "it.inner.count must be a whole number, got true or false"),
        ({"inner": {"count": 2**63}, "kind": "a"}, "it.inner.count must be a whole number, got"),
        ({"inner": {"count": 1, "names": ["x", None]}, "kind": "a"}, r"it.inner.names\[1\] must be text, got null"),
        ({"inner": None, "kind": "c"}, "it.kind must be 'a' or 'b', got text"),
        ({"inner": None, "kind": ["a"]}, "it.kind must be 'a' or 'b', got a list"),
        ({"inner": None, "kind": "a", "shares": {"x": "1"}}, "it.shares.x must be a number, got text"),
        ({"inner": None, "kind": "a", "shares": {"x": 10**400}}, "it.shares.x must be a number, got a whole number"),
    ],
)
def test_what_has_not_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        check_form(value, Outer, "it")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10**5, b"\xff", b"1" * 10**4])
def test_what_is_no_json_is_refused(content, tmp_path):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"file.json must be JSON: "):
        read_json(tmp_path / "file.json")
    for lines in (False, True):
        if content or not lines:
            with pytest.raises(ValueError, match=r"file.json must be JSON: "):
                parse_json(content, "file.json", lines=lines)


@dataclass(frozen=True)
class Whole:
    kind: ClassVar[str] = "not saved"
    inner: Inner | None
    rows: tuple[Inner, ...] | tuple[float, ...]
    by_name: dict[str, tuple[tuple[float, ...], ...]]
    late: float | None = None


@pytest.mark.parametrize(
    "value",
    [
        Whole(None, (), {}),
        Whole(Inner(1, ["x"]), (Inner(2),), {"a": ((1.0, 2.5), ())}, 0.1),
        Whole(Inner(1), (1.5, 2.5), {}),
    ],
)
def test_what_is_written_is_read_as_it_was(value):
    plain = json.loads(json.dumps(to_json({"it": [value]})))
    assert from_json(plain["it"][0], Whole, "it") == value
    assert from_json(plain, dict[str, list[Whole]], "it") == {"it": [value]}
    assert "kind" not in plain["it"][0]


def test_earlier_files_lack_what_has_a_default_and_later_ones_have_more():
    found = from_json({"inner": None, "rows": [1, 2], "by_name": {}, "new": "?"}, Whole, "it")
    assert found == Whole(None, (1.0, 2.0), {})
    assert [type(row) for row in found.rows] == [float, float]
    with pytest.raises(ValueError, match=r"it.by_name.a\[1\] must be a list, got a number"):
        from_json({"inner": None, "rows": [], "by_name": {"a": [[], 0.5]}}, Whole, "it")


def test_numbers_that_are_not_finite_are_written_as_null_or_refused():
    assert dump_json(Whole(None, (), {}, float("nan")), Whole, "it")["late"] is None
    with pytest.raises(ValueError, match=r"it.by_name.a\[0\]\[1\] must be a number, got null"):
        dump_json(Whole(None, (), {"a": ((1.0, float("inf")),)}), Whole, "it")
    for text in (b"[NaN]", b"[1e999]", b"[-Infinity]"):
        with pytest.raises(ValueError, match=r"file must be JSON: numbers must be finite, got"):
            parse_json(text, "file")
        assert len(parse_json(text, "file", finite=False)) == 1
