"""Pictures as SVG text, without a library: elements, text, and colours that suit a light and a dark page. Pure.

A picture carries both sets of colours and asks the reader's system which it wants (`prefers-color-scheme`); browsers
answer that for pictures inside a page too. Plain classes, no CSS variables: not every viewer knows those.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

LIGHT = {
    "ink": "#1f2328",
    "faint": "#6e7781",
    "grid": "#d8dee4",
    "page": "#ffffff",
    "blue": "#0969da",
    "orange": "#d4720b",
    "green": "#1a7f37",
    "red": "#cf222e",
    "purple": "#8250df",
    "teal": "#0f8a8a",
    "brown": "#8a5a2b",
    "grey": "#8c959f",
}
DARK = {
    "ink": "#e6edf3",
    "faint": "#8d96a0",
    "grid": "#30363d",
    "page": "#0d1117",
    "blue": "#58a6ff",
    "orange": "#f0983a",
    "green": "#3fb950",
    "red": "#ff7b72",
    "purple": "#bc8cff",
    "teal": "#39c5c5",
    "brown": "#c69a6b",
    "grey": "#6e7681",
}
"""A colour's name is what everything here is drawn with; both themes have the same names."""

SERIES = ("blue", "orange", "green", "purple", "red", "teal", "brown", "grey")
"""Colours for data, in the order in which they are used."""


class Picture:
    """Collects elements; `document` gives the text. Sizes and places in pixels from the upper left corner."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        """title, description: for those who cannot see it."""
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(width)} {_number(height)}" '
            f'width="{_number(width)}" height="{_number(height)}" role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(title)}</title>\n<desc id="description">{escape(description)}</desc>\n'
            f"<style>{_STYLE}</style>\n"
        )
        self._elements: list[str] = []
        self.rectangle(0, 0, width, height, "page")

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str, tip: str = "") -> None:
        """tip: shown by a browser when the pointer rests on it."""
        place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._elements.append(f'<rect class="{colour}" {place}{_inner("rect", tip)}')

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: float = 1, dashed: bool = False) -> None:
        """Through all of these points."""
        places = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        stroke = f'class="{colour}-line" stroke-width="{_number(width)}"{dashes}'
        self._elements.append(f'<polyline {stroke} points="{places}"/>')

    def circle(self, x: float, y: float, radius: float, colour: str, tip: str = "", hollow: bool = False) -> None:
        """hollow: a ring, through which what lies below is seen."""
        kind = f'class="{colour}-line" stroke-width="2"' if hollow else f'class="{colour}"'
        place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
        self._elements.append(f"<circle {kind} {place}{_inner('circle', tip)}")

    def text(self, x: float, y: float, text: str, anchor: str = "start", style: str = "", turned: bool = False) -> None:
        """anchor: start, middle or end. style: "", title or faint. turned: to be read from the right side."""
        kind = f" class={quoteattr(style)}" if style else ""
        turn = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turned else ""
        self._elements.append(
            f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"{kind}{turn}>{escape(text)}</text>'
        )

    def document(self) -> str:
        return self._head + "\n".join(self._elements) + "\n</svg>\n"


def _theme(colours: dict[str, str]) -> str:
    rules = [f".{name}{{fill:{value}}}.{name}-line{{fill:none;stroke:{value}}}" for name, value in colours.items()]
    return f"text{{fill:{colours['ink']}}}" + "".join(rules)


_STYLE = (
    "text{font:12px system-ui,sans-serif}.title{font-size:14px;font-weight:600}"
    + _theme(LIGHT)
    + f"@media(prefers-color-scheme:dark){{{_theme(DARK)}}}"
)


def _inner(element: str, tip: str) -> str:
    return f"><title>{escape(tip)}</title></{element}>" if tip else "/>"


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return text if text != "-0" else "0"
