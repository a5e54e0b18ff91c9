"""Numbers and tables as text: commas between thousands, a true minus, columns side by side."""

from collections.abc import Sequence
from html import escape

_MINUS = "\N{MINUS SIGN}"
#: Of a ratio of squares, in single precision.
_ROUNDING = 1e-10


def number(value: float | int, digits: int = 0) -> str:
    """Write a number with so many decimals, a comma between thousands and a true minus."""
    return minus(f"{value:,.{digits}f}")


def significant(value: float | int, digits: int = 3) -> str:
    """Write a number with so many significant digits."""
    return minus(f"{value:.{digits}g}")


def percent(share: float) -> str:
    """Write a share in percent, in two digits; what single precision cannot tell from zero is zero."""
    if share < _ROUNDING:
        return "0 %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %" if share >= 1e-4 else "<0.01 %"


def minus(text: str) -> str:
    """Give a number in words a true minus."""
    return text.replace("-", _MINUS)


def counted(count: int, one: str, many: str = "") -> str:
    """Write how many there are, with the noun in singular or plural."""
    return f"{number(count)} {one if count == 1 else many or f'{one}s'}"


def listed(words: Sequence[str]) -> str:
    """Join words by commas, and the last by "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Columns side by side under their headings, the first `left` of them flush left and all others flush right."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    written = (
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(f" {line} " for line in written).rstrip()


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """The same as a table of HTML, for notebooks."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if at < left else "right" for at in range(len(cells)))
        return "".join(
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(headings, 'th')}</tr></thead><tbody>{body}</tbody></table>"
