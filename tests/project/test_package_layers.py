"""A package imports from its own floor and those below it, `validator` from four places, no imports form a circle.

No file has more than 500 lines, no function more than 60.
"""

import ast
from collections import Counter, defaultdict
from graphlib import TopologicalSorter

from docgen.package_layers import PACKAGE_LAYERS, ROOT, find_imports, find_modules, package_of

FOR_VALIDATOR = (
    *("raptor.common", "raptor.target"),
    *("raptor.output.files", "raptor.output.decoder_files", "raptor.output.repair_files"),
    *("raptor.output.resident_files", "raptor.output.round_files", "raptor.output.trim_files"),
)
"""The judge shares no decision with the compiler: errors and other basics, the target, the schemas of files."""
_LONG = {"raptor.mapping.transformer.token_cores"}
"""Files of more than 500 lines that stay until another search of mappings replaces them."""


def test_every_part_has_a_floor():
    assert {package_of(m) for m in find_modules() if m.startswith("raptor.")} == {
        part for parts in PACKAGE_LAYERS for part in parts
    }


def test_imports_go_down():
    floor = {part: i for i, parts in enumerate(PACKAGE_LAYERS) for part in parts}
    known = find_modules()
    wrong = [
        f"{name} imports {found}"
        for name, path in known.items()
        if name.startswith("raptor.")
        for found in find_imports(path, known)
        if package_of(found) in floor and floor[package_of(found)] > floor[package_of(name)]
    ]
    assert wrong == []


def test_the_validator_shares_no_decision():
    known = find_modules()
    wrong = [
        f"{name} imports {found}"
        for name, path in known.items()
        if name.startswith("validator")
        for found in find_imports(path, known)
        if found.startswith("raptor.") and not found.startswith(FOR_VALIDATOR)
    ]
    assert wrong == []


def test_no_circle():
    """Imports inside functions and under `TYPE_CHECKING` count."""
    known = find_modules()
    graph = {name: set(find_imports(path, known, types=True)) - {name} for name, path in known.items()}
    TopologicalSorter(graph).prepare()


def test_only_what_shows_the_architecture_file_reads_its_schema():
    """All else takes `Target`, so that a property of the hardware needs no field in that file."""
    known = find_modules()
    readers = {
        name for name, path in known.items() if "raptor.target.arch.pimsim_schema" in set(find_imports(path, known))
    }
    assert {n for n in readers if not n.startswith("raptor.target.arch")} == {"raptor.tools.cli.arch_view"}


def test_no_folder_is_a_heap_of_modules():
    """At most 20 modules in a folder; at the top of `raptor`, 15 packages and 5 modules."""
    others = (path for tree in ("benchmarks", "docgen") for path in (ROOT / tree).rglob("*.py"))
    folders = Counter(path.parent for path in (*find_modules().values(), *others))
    assert {str(folder): count for folder, count in folders.items() if count > 20} == {}
    packages = {path.parent for path in (ROOT / "raptor").glob("*/__init__.py")}
    assert len(packages) <= 15
    assert len([*(ROOT / "raptor").glob("*.py")]) <= 5


def test_a_class_name_has_one_meaning_in_a_package():
    """Operations of SpatialIR have the names of the operators of the Graph that they compute."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, path in find_modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[package_of(name), node.name].append(name)
    assert {key: found for key, found in places.items() if len(found) > 1} == {}


def test_no_file_is_long():
    long = {name for name, path in find_modules().items() if len(path.read_text().splitlines()) > 500}
    assert {name for name in long if not name.startswith("models.")} == _LONG


def test_no_function_is_long():
    found = [
        f"{name}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for name, path in find_modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert found == []
