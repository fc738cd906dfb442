"""Lists the generated files."""

from docgen import architecture, cli, drawings, floors, formats, instructions, outputs, rounds_drawings
from raptor import schemas
from raptor.frontend import docs as operators
from validator.checks import docs as checks


def files() -> dict[str, bytes]:
    """Returns content by path below docs/. Equal code gives equal bytes."""
    pages = {
        "architecture.md": architecture.page(),
        "checks.md": checks.page(),
        "cli.md": cli.page(),
        "formats.md": formats.page(),
        "instructions.md": instructions.page(),
        "operators.md": "".join(operators.page()),
        "outputs.md": outputs.page(),
    }
    drawn = drawings.all_drawings() | rounds_drawings.all_drawings()
    texts = pages | {f"drawings/{name}.svg": drawing for name, drawing in drawn.items()}
    texts["drawings/packages.svg"] = str(floors.drawing())
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{name}": content for name, content in schemas.all_schemas().items()
    }
