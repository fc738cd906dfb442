"""Names that docstrings mention exist: a renamed function or field takes its mentions along."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import ROOT

TREES = ("raptor", "validator", "benchmarks", "docgen")
OF_OTHERS = {
    "applyFilters": "the thesis",
    "scaled_dot_product_attention": "PyTorch",
    **dict.fromkeys(("cim", "copyTile", "storeTile", "allocDuplicate", "gemv", "gemm"), "dialects of MLIR"),
    **dict.fromkeys(("memristor_gemm_i16", "memristor_gemm_f32"), "the Cinnamon runtime"),
}
"""Names that docstrings take from other projects."""

_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields name and docstring of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield getattr(node, "name", "module"), text


def names(node: ast.AST, texts: set[str]) -> Iterator[str]:
    """Yields the names that a node of the syntax tree brings, and the words of its text unless it is in `texts`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name):
            yield from name.split(".")
        case ast.Constant(value=str(text)) if text not in texts:
            yield from re.findall(r"\w+", text)
        case _:
            pass


def sources() -> list[Path]:
    return [p for tree in (*TREES, "models", "tests") for p in sorted((ROOT / tree).rglob("*.py"))]


@cache
def known() -> frozenset[str]:
    """All names of the code, and the names of its files and folders."""
    found = {part for path in sources() for part in path.relative_to(ROOT).with_suffix("").parts}
    for path in sources():
        tree = ast.parse(path.read_text())
        texts = {text for _, text in docstrings(tree)}
        found.update(name for node in ast.walk(tree) for name in names(node, texts))
    return frozenset(found)


def unknown(text: str) -> list[str]:
    """Returns the names between backquotes that are not in the code."""
    return [m for m in _NAME.findall(text) if not {*m.split(".")} <= known() | OF_OTHERS.keys()]


@pytest.mark.parametrize("tree", TREES)
def test_names_in_docstrings_exist(tree: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}: {wrong}"
        for path in sorted((ROOT / tree).rglob("*.py"))
        for name, text in docstrings(ast.parse(path.read_text()))
        for wrong in unknown(text)
    ]
    assert not found, "\n".join(found)


def test_a_name_that_is_gone_is_found() -> None:
    gone = "".join(("Made", "Tiles"))  # in two parts, as texts of the code are known names
    assert unknown(f"Returns tiles; see `{gone}` and `Graph.{gone}`, but not `Graph`.") == [gone, f"Graph.{gone}"]
