"""Generates the contents of all generated files of docs/."""

from collections.abc import Callable, Mapping

from docgen import architecture, cli, drawings, figures, floors, formats, instructions, outputs, rounds_drawings
from raptor import schemas
from raptor.frontend import docs as operators
from validator.checks import docs as checks

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/architecture.md": architecture.page,
    "reference/checks.md": checks.page,
    "reference/cli.md": cli.page,
    "reference/formats.md": formats.page,
    "reference/instructions.md": instructions.page,
    "reference/operators.md": lambda: "".join(operators.page()),
    "reference/outputs.md": outputs.page,
}
"""Path below docs/ -> function that generates the page."""


def files() -> dict[str, bytes]:
    """Returns the contents of all generated files, by path below docs/. Deterministic."""
    drawn = drawings.all_drawings() | rounds_drawings.all_drawings()
    texts = {name: make() for name, make in PAGES.items()} | figures.pages()
    texts |= {f"drawings/{name}.svg": drawing for name, drawing in drawn.items()}
    texts["drawings/packages.svg"] = str(floors.drawing())
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{name}": content for name, content in schemas.all_schemas().items()
    }
