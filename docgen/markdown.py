"""Markdown parts that the generated pages share."""

from collections.abc import Iterable, Sequence

GENERATED_NOTE = "Written by `make docs-generate` from {}; do not edit.\n"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; vertical bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def format_code(text: str) -> str:
    """Formats a text as code; an empty text stays empty."""
    return f"`{text}`" if text else ""
