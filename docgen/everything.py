"""The list of generated files."""

from docgen import architecture, cli, drawings, formats, instructions
from raptor import schemas
from raptor.frontend import docs as operators
from validator.checks import docs as checks


def files() -> dict[str, bytes]:
    """Content by path below docs/. Equal code gives equal bytes."""
    pages = {
        "architecture.md": architecture.page(),
        "checks.md": checks.page(),
        "cli.md": cli.page(),
        "formats.md": formats.page(),
        "instructions.md": instructions.page(),
        "operators.md": "".join(operators.page()),
    }
    texts = pages | {f"drawings/{name}.svg": drawing for name, drawing in drawings.all_drawings().items()}
    return {name: text.encode() for name, text in texts.items()} | {
        f"schemas/{schemas.file_name(name)}": schemas.schema(model) for name, model in schemas.SCHEMAS.items()
    }
