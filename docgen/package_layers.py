"""Packages of `raptor`: their floors, their imports, and a drawing of both (docs/developers/architecture.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from docgen.svg import PALETTE, SvgDrawing

ROOT = Path(__file__).parents[1]
PACKAGE_LAYERS = (
    ("common",),
    ("options",),
    ("target",),
    ("graph",),
    ("frontend",),
    ("transforms",),
    ("mapping",),
    ("spatial",),
    ("pim",),
    ("mlir", "output"),
    ("codegen",),
    ("compiler", "device"),
    ("api",),
    ("integrations", "tools"),
    ("__main__",),
)
"""Packages and modules of `raptor` in layers, the lowest first. Imports go to the same layer or down."""

_GAP = 50
DRAWN_LAYERS = 14
"""Number of layers in the drawing, which leaves out `python -m raptor`."""


def find_modules() -> dict[str, Path]:
    """Returns the files of `raptor`, `validator` and `models`, by dotted name of the module."""
    paths = (p for base in ("raptor", "validator", "models") for p in (ROOT / base).rglob("*.py"))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def find_imports(path: Path, known: dict[str, Path], *, types: bool = False) -> Iterator[str]:
    """Yields our modules that a file imports, also inside functions. `types`: those for the type checker only, too."""
    tree = ast.parse(path.read_text())
    if not types:
        for block in [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]:
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known or node.module == "raptor" else node.module


def package_of(module: str) -> str:
    """Returns the top package or module of `raptor` that contains a module; otherwise `validator` or `models`."""
    words = module.split(".")
    return (words[1] if len(words) > 1 else "") if words[0] == "raptor" else words[0]


def draw_layers() -> SvgDrawing:
    """Draws the layers, the lowest at the bottom. Arrows are the transitive reduction of the imports."""
    known = find_modules()
    edges = {(package_of(m), package_of(i)) for m, path in known.items() for i in find_imports(path, known)}
    every = nx.DiGraph([(part, other) for part, other in sorted(edges) if part != other])
    places = {part: (60 + 250 * k, y) for y, parts in _rows() for k, part in enumerate(parts)}
    places |= {"models": (560, places["tools"][1]), "validator": (560, places["output"][1] - _GAP)}
    drawn = SvgDrawing(720, 90 + _GAP * DRAWN_LAYERS, "The packages and their imports")
    for part, other in sorted(nx.transitive_reduction(every.subgraph(places)).edges):
        (x, y), (to_x, to_y) = places[part], places[other]
        if x == to_x and other not in _below(part):
            drawn.add_arrow(x + 130, y + 14, x + 130, to_y + 14, bend=0.3)
        else:
            drawn.add_arrow(x + 65, y + 28, to_x + (65 if x <= to_x else 130), to_y)
    for part, (x, y) in places.items():
        judge = part in ("validator", "models")
        drawn.add_rectangle(x, y, 130, 28, PALETTE[1 if judge else 0])
        drawn.add_text(x + 65, y + 18, part, anchor="middle", style="w")
    return drawn


def _rows() -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the y coordinate of each layer, and its packages. Above `output` there is space for `validator`."""
    judged = next(i for i, parts in enumerate(PACKAGE_LAYERS) if "output" in parts)
    for i, parts in enumerate(PACKAGE_LAYERS[:DRAWN_LAYERS]):
        yield 20 + _GAP * (DRAWN_LAYERS - i - (i > judged)), parts


def _below(part: str) -> tuple[str, ...]:
    """Returns the packages of the next lower layer."""
    floor = next(i for i, parts in enumerate(PACKAGE_LAYERS) if part in parts)
    return PACKAGE_LAYERS[floor - 1] if floor else ()
