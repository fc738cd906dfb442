"""The table of planted defects, `defects.toml`.

Its sections say what must see a defect: `floats`, `integers` and `rounds` the validator and the checks, on the cases of
`tests.fuzz.planted`; `engine` the comparison of the two engines in `tests/validator/engines/test_machine_defects.py`; a
file of tests one test of it, because the values stay right. A function is named by so much of the end of its qualified
name (`package.module.Class.method`) that RAPTOR has only one. How a rewrite is written: `tests.fuzz.rewriting`."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fuzz.campaign import BrokenError
from tests.fuzz.rewriting import RewriteError, apply_rewrite

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    """A rewrite of a function or class of RAPTOR. `check`: the section of the table, or the id of a test."""

    check: str
    function: str
    rewrite: str

    @property
    def file(self) -> Path:
        return _find(self.function)[0]

    @property
    def module(self) -> str:
        return _module(self.file)

    def tree(self) -> ast.Module:
        """Returns the changed module. Raises `BrokenError` if the table does not fit the code."""
        return self._applied()[0]

    def __str__(self) -> str:
        _, old, new = self._applied()
        return f"{self.function}: {ast.unparse(old)} -> {ast.unparse(new)}"

    def _applied(self) -> tuple[ast.Module, ast.AST, ast.AST]:
        file, name = _find(self.function)
        module = ast.parse(file.read_text())
        try:
            return module, *apply_rewrite(self.rewrite, dict(_definitions(module))[name], module)
        except RewriteError as error:
            raise BrokenError(f"defects.toml: {self.function}: {self.rewrite}: {error}") from None


@cache
def _find(function: str) -> tuple[Path, str]:
    """Returns the file of a function, and its qualified name there."""
    files = _files().get(function.rpartition(".")[2], ())
    ends = f".{function}"
    found = [(file, name) for file in files for name in _names(file) if f".{_module(file)}.{name}".endswith(ends)]
    if len(found) != 1:
        raise BrokenError(f"defects.toml: {len(found)} functions {function}: {[_module(file) for file, _ in found]}")
    return found[0]


@cache
def _names(file: Path) -> tuple[str, ...]:
    """Returns the qualified names of the functions and classes of a file."""
    return tuple(name for name, _ in _definitions(ast.parse(file.read_text())))


@cache
def _files() -> Mapping[str, list[Path]]:
    """Returns for each name the files that define functions or classes of it."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(file for package in ("raptor", "validator") for file in (ROOT / package).rglob("*.py")):
        for name in {*re.findall(r"^ *(?:def|class) (\w+)", file.read_text(), re.MULTILINE)}:
            found[name].append(file)
    return found


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the qualified names of functions and classes, and their nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt):
            yield from _definitions(child, prefix)


def _read() -> Iterator[Defect]:
    for section, held in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
        tests = {f"{section}::{test}": functions for test, functions in held.items()}
        for check, functions in (tests if section.endswith(".py") else {section: held}).items():
            for function, rewrites in functions.items():
                yield from (Defect(check, function, rewrite) for rewrite in rewrites)


ALL = tuple(_read())
DEFECTS = tuple(defect for defect in ALL if defect.check in ("floats", "integers", "rounds"))
"""Defects of programs."""
WRONG_DECISIONS = tuple(defect for defect in ALL if "::" in defect.check)
"""Wrong decisions: programs are right, but not those that were to be made."""
ENGINE = tuple(defect for defect in ALL if defect.check == "engine")
"""Defects of the meaning of integers in the plain engine."""

if __name__ == "__main__":  # python -m tests.fuzz.defects [FUNCTION ...]: print what each defect changes
    for planted in ALL:
        if planted.function in sys.argv[1:] or not sys.argv[1:]:
            print(planted)
