"""Small pictures as SVG text: a white card with words, heatmaps and bars, legible on light and dark pages.

The same numbers give the same bytes: coordinates are rounded, and nothing depends on time, fonts at hand or a browser.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

Number = float | int

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
TEXT, FAINT, LINE = "#222222", "#666666", "#d0d7de"
#: Ends of the diverging colour map, which the colour-blind can tell apart, and how many steps there are to each.
NEGATIVE, POSITIVE, STEPS = "#0072B2", "#D55E00", 16


def diverging(value: Number, limit: Number) -> str:
    """A colour: white at 0, ever bluer down to −limit and redder up to +limit, where it stays."""
    step = max(-STEPS, min(STEPS, round(STEPS * value / limit))) if limit > 0 else 0
    end = POSITIVE if step > 0 else NEGATIVE
    channels = (int(end[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (channel - 255) * abs(step) / STEPS):02x}" for channel in channels)


def largest(maps: Iterable[Sequence[Sequence[Number]]]) -> Number:
    """The largest absolute value: the limit of colours that several heatmaps share."""
    return max((abs(value) for values in maps for row in values for value in row), default=0.0)


class Card:
    """A picture that is drawn on from top to bottom; `svg` gives its text.

    Args:
        width: In pixels.
        height: In pixels.
        title: Set at the top, and read out by screen readers.
        subtitle: Below it.
    """

    def __init__(self, width: int, height: int, title: str, subtitle: str = "") -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{FONT}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="#ffffff" stroke="{LINE}"/>',
        ]
        self.text(24, 34, title, size=17, bold=True)
        if subtitle:
            self.text(24, 55, subtitle, colour=FAINT)

    def text(
        self,
        x: Number,
        y: Number,
        words: str,
        *,
        size: int = 13,
        anchor: str = "start",
        colour: str = TEXT,
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        """Words on a base line, or from bottom to top when `turned`; `anchor` is "start", "middle" or "end"."""
        look = ' font-weight="600"' if bold else ""
        look += f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turned else ""
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{look}>'
            f"{escape(words, quote=False)}</text>"
        )

    def rect(self, x: Number, y: Number, width: Number, height: Number, fill: str, stroke: str = "none") -> None:
        """A rectangle."""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<rect {box} fill="{fill}" stroke="{stroke}"/>')

    def line(
        self, x1: Number, y1: Number, x2: Number, y2: Number, colour: str = LINE, dash: str = "", width: Number = 1
    ) -> None:
        """A line from one point to another."""
        dashes = (f' stroke-dasharray="{dash}"' if dash else "") + _width(width)
        ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
        self._parts.append(f'<line {ends} stroke="{colour}"{dashes}/>')

    def dot(self, x: Number, y: Number, radius: Number, fill: str = TEXT, stroke: str = "none", *, width: Number = 1) -> None:
        """A circle; `width` is that of its outline."""
        place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
        self._parts.append(f'<circle {place} fill="{fill}" stroke="{stroke}"{_width(width)}/>')

    def curve(self, points: Iterable[tuple[Number, Number]], colour: str, width: Number = 1, dash: str = "") -> None:
        """A line through points."""
        places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        look = (f' stroke-dasharray="{dash}"' if dash else "") + _width(width)
        self._parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-linejoin="round"{look}/>')

    def area(self, points: Iterable[tuple[Number, Number]], fill: str, opacity: Number = 1) -> None:
        """What lies inside a line through points."""
        places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(f'<polygon points="{places}" fill="{fill}" fill-opacity="{_number(opacity)}"/>')

    def image(self, x: Number, y: Number, width: Number, height: Number, source: str) -> None:
        """An image, smoothed to its size; `source` is a data URI (`report/images.py`), so that nothing is loaded."""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<image {box} preserveAspectRatio="none" href="{escape(source)}"/>')

    def heatmap(self, x: Number, y: Number, values: Sequence[Sequence[Number]], cell: Number, limit: Number) -> None:
        """Values as coloured cells, the first row on top; cells of a colour are one path, so that files stay small."""
        shapes: dict[str, list[str]] = {}
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                shapes.setdefault(diverging(value, limit), []).append(f"M{column} {row}h1")
        place = f"translate({_number(x)} {_number(y + cell / 2)}) scale({_number(cell)})"
        self._parts.append(f'<g transform="{place}" stroke-width="1" shape-rendering="crispEdges">')
        self._parts += [f'<path stroke="{colour}" d="{"".join(shape)}"/>' for colour, shape in shapes.items()]
        self._parts.append("</g>")
        self.rect(x, y, cell * len(values[0]), cell * len(values), "none", "#999999")

    def shares(self, x: Number, y: Number, width: Number, shares: Mapping[str, Number], colours: Mapping[str, str]) -> None:
        """A bar of 100 %, split; parts wide enough hold their number."""
        for name, share in shares.items():
            part = share * width
            self.rect(x, y, part, 20, colours[name])
            if part > 34:
                self.text(x + part / 2, y + 14.5, f"{100 * share:.0f} %", size=12, anchor="middle", colour=_ink(colours[name]))
            x += part

    def legend(self, x: Number, y: Number, colours: Mapping[str, str]) -> None:
        """Names beside their colours, on one line."""
        for name, colour in colours.items():
            self.rect(x, y - 11, 13, 13, colour)
            self.text(x + 19, y, name)
            x += 48 + 7.2 * len(name)  # about the width of a letter at this size

    def scale(self, x: Number, y: Number) -> None:
        """What colours mean, to the left of x: from negative through 0 to positive weights."""
        width = 2 * STEPS + 1
        self.text(x, y, "positive", size=12, anchor="end", colour=FAINT)
        self.heatmap(x - 52 - width, y - 10, [[index - STEPS for index in range(width)]] * 12, 1, STEPS)
        self.text(x - 57 - width, y, "negative", size=12, anchor="end", colour=FAINT)

    def svg(self) -> str:
        """The whole picture."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _number(value: Number) -> str:
    """A coordinate in hundredths of a pixel, as short as it can be."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _width(width: Number) -> str:
    """Of a line, where it is not 1."""
    return "" if width == 1 else f' stroke-width="{_number(width)}"'


def _ink(colour: str) -> str:
    """White on dark colours, dark on light ones."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else TEXT
