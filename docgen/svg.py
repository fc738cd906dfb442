"""Writes simple SVG: rectangles, lines and text on a white ground."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

PALETTE = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"),
    *("#ee8866", "#44aa99", "#999933", "#332288", "#882255", "#77aadd", "#555555"),
)
"""Colours, mostly Paul Tol's, which colour-blind readers can tell apart."""

_STYLE = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:#222}.s{font-size:10px;fill:#555}.w{fill:#fff}.b{font-weight:bold}"
    ".on{font-size:10px;stroke:#fff;stroke-width:5px;paint-order:stroke}"
)
"""CSS classes. s: small; w: white; b: bold; on: a number on a line, with a white outline."""
_HEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>'
)


@dataclass(slots=True)
class SvgDrawing:
    """An SVG drawing: size in pixels, title, and shapes in drawing order."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list[str])

    def add_rectangle(self, x: float, y: float, w: float, h: float, fill: str, *, line: str = "#fff") -> None:
        at = f'x="{x:.5g}" y="{y:.5g}" width="{w:.5g}" height="{h:.5g}"'
        self.shapes.append(f'<rect {at} fill="{fill}" stroke="{line}"/>')

    def add_text(self, x: float, y: float, text: str, *, anchor: str = "start", style: str = "") -> None:
        named = f' class="{style}"' if style else ""
        self.shapes.append(f'<text x="{x:.5g}" y="{y:.5g}" text-anchor="{anchor}"{named}>{escape(text)}</text>')

    def add_legend(self, x: float, entries: Iterable[tuple[str, str]]) -> None:
        """Draws pairs of a text and its colour at the top, from `x` to the right."""
        for text, colour in entries:
            self.add_rectangle(x, 12, 12, 12, colour)
            self.add_text(x + 16, 22, text, style="s")
            x += 40 + round(5 * len(text))

    def add_arrow(self, x: float, y: float, to_x: float, to_y: float, *, bend: float = 0.0) -> tuple[float, float]:
        """Draws an arrow and returns its middle. `bend`: shift to the left, as a part of its length."""
        half_x, half_y = (x + to_x) / 2, (y + to_y) / 2
        pull_x, pull_y = half_x + (to_y - y) * bend, half_y - (to_x - x) * bend
        path = f"M{x:.5g} {y:.5g}Q{pull_x:.5g} {pull_y:.5g} {to_x:.5g} {to_y:.5g}"
        self.shapes.append(f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.3" marker-end="url(#a)"/>')
        return (half_x + pull_x) / 2, (half_y + pull_y) / 2

    def __str__(self) -> str:
        box = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img"><title>{escape(self.title)}</title>'
        ground = f'<rect width="{self.width}" height="{self.height}" rx="6" fill="#fff"/>'
        return "\n".join([f"{head}<style>{_STYLE}</style>{_HEAD}{ground}", *self.shapes, "</svg>\n"])
