"""The packages by their imports: which floor each is on, what a file imports, and the drawing in docs/design.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from docgen.svg import PALETTE, Drawing

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("common",),
    ("target",),
    ("graph",),
    ("frontend",),
    ("mapping",),
    ("spatial",),
    ("pim",),
    ("codegen",),
    ("output",),
    ("driver",),
    ("pipeline",),
    ("search",),
    ("compiler", "analysis"),
    ("api",),
    ("reporting", "backend"),
    ("cli",),
    ("schemas",),
    ("__main__",),
)
"""Packages and modules of `raptor`, from the ground up."""

SHOWN = 16
"""Floors that are drawn: above are only `python -m raptor` and the printing of schemas."""


def modules() -> dict[str, Path]:
    """Files of the three packages by dotted name."""
    paths = (p for base in ("raptor", "validator", "models") for p in (ROOT / base).rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports, also inside functions, but not for types only."""
    tree = ast.parse(path.read_text())
    for block in [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]:
        block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known or node.module == "raptor" else node.module


def part_of(module: str) -> str:
    """The package or module of `raptor` that holds it; `validator` and `models` are one part each."""
    words = module.split(".")
    return (words[1] if len(words) > 1 else "") if words[0] == "raptor" else words[0]


def drawing() -> Drawing:
    """Floors from the ground up; an arrow to each part that is not imported by way of another."""
    known = modules()
    edges = {(part_of(m), part_of(i)) for m, path in known.items() for i in imports(path, known)}
    every = nx.DiGraph([(part, other) for part, other in sorted(edges) if part != other])
    places = {part: (60 + 190 * k, y) for y, parts in _rows() for k, part in enumerate(parts)}
    places |= {"validator": (440, places["output"][1] - 25), "models": (440, places["api"][1])}
    direct = nx.transitive_reduction(every.subgraph(places))
    drawn = Drawing(620, 60 + 50 * SHOWN, "The packages and their imports")
    for part, other in sorted(direct.edges):
        (x, y), (to_x, to_y) = places[part], places[other]
        straight = x == to_x and to_y - y == 50
        drawn.arrow(x + 65, y + 28, to_x + 65, to_y, bend=0.0 if straight or x != to_x else 0.25)
    for part, (x, y) in places.items():
        judge = part in ("validator", "models")
        drawn.rectangle(x, y, 130, 28, PALETTE[1 if judge else 0])
        drawn.text(x + 65, y + 18, part, anchor="middle", style="w")
    return drawn


def _rows() -> Iterator[tuple[int, tuple[str, ...]]]:
    """The height of each floor, and who is on it."""
    for i, parts in enumerate(FLOORS[:SHOWN]):
        yield 20 + 50 * (SHOWN - 1 - i), parts
