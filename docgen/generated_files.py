"""Generates the contents of all generated files of docs/."""

from collections.abc import Callable, Mapping

from docgen import (
    architecture,
    cli,
    concept_drawings,
    formats,
    instructions,
    json_schemas,
    memory_drawings,
    mlir_page,
    outputs,
    package_layers,
    rounds_drawings,
    stored_figures,
)
from raptor.frontend import operator_page as operators
from validator.checks import rules_page as checks

PAGE_MAKERS: Mapping[str, Callable[[], str]] = {
    "reference/architecture.md": architecture.render_page,
    "reference/checks.md": checks.render_page,
    "reference/cli.md": cli.render_page,
    "reference/formats.md": formats.render_page,
    "reference/instructions.md": instructions.render_page,
    "reference/mlir.md": mlir_page.render_page,
    "reference/operators.md": lambda: "".join(operators.generate_page()),
    "reference/outputs.md": outputs.render_page,
}
"""Path below docs/ -> function that generates the page."""


def generate_files() -> dict[str, bytes]:
    """Returns the contents of all generated files, by path below docs/. Deterministic."""
    drawn = concept_drawings.draw_all() | rounds_drawings.draw_all() | memory_drawings.draw_all()
    texts = {name: make() for name, make in PAGE_MAKERS.items()} | stored_figures.fill_pages()
    texts |= {f"drawings/{name}.svg": drawing for name, drawing in drawn.items()}
    texts["drawings/packages.svg"] = str(package_layers.draw_layers())
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{name}": content for name, content in json_schemas.make_all_schemas().items()
    }
