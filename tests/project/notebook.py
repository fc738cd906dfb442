"""`python -m tests.project.notebook FILE` runs a notebook and says where it prints something else than is stored.

`--update` stores what is printed now.
"""

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def outputs(notebook: Any) -> list[str]:
    """Returns the text printed or shown by each cell of code."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(map(_text, cell.outputs)) for cell in cells]


def _text(output: Any) -> str:
    return output.text if output.output_type == "stream" else output.data["text/plain"]


def main(path: Path, *, update: bool) -> int:
    notebook = nbformat.read(path, as_version=4)
    stored = outputs(notebook)
    NotebookClient(notebook, timeout=900, kernel_name="python3", record_timing=False).execute(
        cwd=str(path.resolve().parents[1])
    )
    if update:
        nbformat.write(notebook, path)
        return 0
    differing = [
        (i, old, new) for i, (old, new) in enumerate(zip(stored, outputs(notebook), strict=True)) if old != new
    ]
    for i, old, new in differing:
        print(f"cell of code {i}:\nstored\n{old}\nnow\n{new}")
    return 1 if differing else 0


sys.exit(main(Path(sys.argv[1]), update="--update" in sys.argv))
