"""Generates the contents of all generated files of docs/."""

from collections.abc import Callable, Mapping

from docgen import architecture, cli, drawings, figures, floors, formats, instructions, outputs, rounds_drawings
from raptor import schemas
from raptor.frontend import docs as operators
from validator.checks import docs as checks

PAGE_MAKERS: Mapping[str, Callable[[], str]] = {
    "reference/architecture.md": architecture.render_page,
    "reference/checks.md": checks.render_page,
    "reference/cli.md": cli.render_page,
    "reference/formats.md": formats.render_page,
    "reference/instructions.md": instructions.render_page,
    "reference/operators.md": lambda: "".join(operators.generate_page()),
    "reference/outputs.md": outputs.render_page,
}
"""Path below docs/ -> function that generates the page."""


def generate_files() -> dict[str, bytes]:
    """Returns the contents of all generated files, by path below docs/. Deterministic."""
    drawn = drawings.draw_all() | rounds_drawings.draw_all()
    texts = {name: make() for name, make in PAGE_MAKERS.items()} | figures.fill_pages()
    texts |= {f"drawings/{name}.svg": drawing for name, drawing in drawn.items()}
    texts["drawings/packages.svg"] = str(floors.draw_layers())
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{name}": content for name, content in schemas.make_all_schemas().items()
    }
