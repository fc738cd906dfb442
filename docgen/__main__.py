"""Command `python -m docgen`: writes every generated file of docs/."""

from pathlib import Path

from docgen.generated_files import generate_files

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    for name, content in generate_files().items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


main()
