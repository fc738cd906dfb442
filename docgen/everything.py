"""Lists the generated files."""

from docgen import architecture, cli, drawings, floors, formats, instructions, outputs
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
    texts = pages | {f"drawings/{name}.svg": drawing for name, drawing in drawings.all_drawings().items()}
    texts["drawings/packages.svg"] = str(floors.drawing())
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{name}": content for name, content in schemas.all_schemas().items()
    }
