"""The seam between compiler and machines: who may know instructions, and what a back end of another package can do."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import models
import raptor
from docgen.package_layers import ROOT, find_imports, find_modules
from raptor.codegen.machine_backend import PIM_VERSION, MachineBackend, ProgramParts, find_backend
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.emit import EMITTERS
from raptor.common.errors import UserError
from raptor.common.machine_backends import OWN_BACKENDS, load_backend, register_backend
from raptor.output import files
from raptor.output.machine_files import CodeFacts
from raptor.pim import GlobalMemory, PimProgram
from raptor.pim.ir import ArrayGroup, CoreProgram, TensorTrace
from raptor.pim.operations import Load, LoadRows, Receive, Send, Store
from raptor.pim.step_columns import OperationForm, StepColumns
from tests.pipeline import passes, thesis_model
from tests.project.documents import blocks
from validator.validate import validate

INSTRUCTIONS = tuple(
    f"raptor.target.{name}"
    for name in ("isa", "encoding", "encoding_kernels", "instruction_json", "opcode_tables", "computed_loads")
)
KNOWING = ("raptor.target.", "raptor.codegen.pimsim", "raptor.compiler.analysis.explain")
"""Modules that may know instructions; `explain` reads the streams that were written."""
PIMSIM_USERS = {
    "raptor.api": "check",
    "raptor.compiler.compilation": "--isa base, --emit-ops",
    "raptor.compiler.mapping_search": "cost of a candidate",
    "raptor.compiler.pipeline": "the machine of searches and tests, and its name in the list of passes",
    "raptor.compiler.rounds.crossbar_writes": "rounds",
    "raptor.tools.explore.evaluation.evaluation_jobs": "studies",
    "raptor.tools.quantise.precision_search": "cost of a candidate",
}
"""Modules that use the machine pimsim-nn, with the feature that only it has."""


def imports_of(prefix: str) -> dict[str, set[str]]:
    known = find_modules()
    return {n: set(find_imports(p, known, types=True)) for n, p in known.items() if n.startswith(prefix)}


def test_instructions_are_known_to_the_target_and_to_pimsim_alone() -> None:
    knowing = {name for name, found in imports_of("raptor.").items() if found.intersection(INSTRUCTIONS)}
    assert {name for name in knowing if not name.startswith(KNOWING)} == set()
    assert any(name.startswith("raptor.codegen.pimsim") for name in knowing)


def test_only_features_of_pimsim_use_its_package() -> None:
    users = {
        n for n, found in imports_of("raptor.").items() if any(i.startswith("raptor.codegen.pimsim") for i in found)
    }
    assert {name for name in users if not name.startswith("raptor.codegen.pimsim")} == set(PIMSIM_USERS)


def test_the_machine_c_uses_nothing_of_pimsim() -> None:
    found = set().union(*imports_of("raptor.codegen.c").values())
    assert {i for i in found if i.startswith(("raptor.codegen.pimsim", *INSTRUCTIONS))} == set()
    assert any(i.startswith("raptor.pim") for i in found)


@pytest.mark.parametrize("name", OWN_BACKENDS)
def test_own_back_ends_are_found(name: str) -> None:
    assert find_backend(name).name == name
    assert find_backend(name).pim_version == PIM_VERSION


def test_a_manifest_of_pimsim_names_no_machine(tmp_path: Path) -> None:
    program = raptor.compile(thesis_model(4, 8), xbar=3, xbars_per_core=5, cores=16, mapping="raptor")
    text = (program.save(tmp_path / "out") / files.MANIFEST).read_text()
    assert '"backend"' not in text
    assert "stream" in text


def test_facts_of_pimsim_count_its_instructions() -> None:
    made = passes(thesis_model(4, 8), xbar=3, xbars_per_core=5, cores=16, mapping="raptor")
    facts = PIMSIM_BACKEND.facts(made.streams)
    for core, stream in made.streams.cores.items():
        assert facts.count(core).sum() == len(stream.records)
        assert (
            facts.count(core)[facts.names.index("mvmul")]
            == (stream.records["opcode"] == facts.names.index("mvmul")).sum()
        )


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UserError, match="backend='nosuch': expected one of: pimsim, c"):
        raptor.compile(thesis_model(4, 8), backend="nosuch")


def test_another_version_of_pimir_is_refused() -> None:
    class Old:
        name, pim_version = "old", PIM_VERSION + 1

    register_backend(Old())
    with pytest.raises(UserError, match=f"backend='old': made for version {PIM_VERSION + 1} of PimIR"):
        find_backend("old")


def test_own_names_are_not_replaced() -> None:
    class Other:
        name = "c"

    with pytest.raises(UserError, match="that RAPTOR has"):
        register_backend(Other())


def toy_module() -> str:
    """The back end of docs/developers/backends.md."""
    found = [block.body for block in blocks((ROOT / "docs/developers/backends.md").read_text())]
    return next(b for b in found if "class Toy:" in b) + next(b for b in found if "def interpret" in b)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the toy back end, as pip leaves it behind."""
    folder = tmp_path / "site"
    about = folder / "toy_chip-0.1.dist-info"
    about.mkdir(parents=True)
    (folder / "toy_chip.py").write_text(toy_module())
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-chip\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[raptor.backends]\ntoy-chip = toy_chip:TOY\nbroken = toy_chip:NOTHING\n")
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_back_end_is_found_by_its_entry_point(installed: Path) -> None:
    assert load_backend("toy-chip").name == "toy"
    with pytest.raises(UserError, match="back end 'broken': toy_chip:NOTHING cannot be loaded"):
        load_backend("broken")


def test_a_wrong_instruction_of_another_machine_is_a_mismatch(installed: Path, tmp_path: Path) -> None:
    """The verdict is the validator's: a back end cannot make its program right."""
    toy = load_backend("toy-chip")
    register_backend(toy)
    out = raptor.compile(models.build("mlp", seed=0, width=0.25), backend="toy").save(tmp_path / "out")
    assert validate(out, samples=2).verdict == "pass"
    changed = list(out.glob("core_*.f32"))
    for path in changed:
        head, content = path.read_bytes().split(b"\n", 1)
        path.write_bytes(head + b"\n" + (np.frombuffer(content, np.float32) * 2).tobytes())
    assert changed
    assert validate(out, samples=2, check_hashes=False).verdict == "mismatch"


INTERFACE = ROOT / "tests" / "codegen" / "pim_interface.txt"
STABLE = (
    *(PimProgram, CoreProgram, StepColumns, OperationForm, ArrayGroup, TensorTrace),
    *(GlobalMemory, ProgramParts, CodeFacts),
)


def interface() -> list[str]:
    """The names and fields that a back end may rely on."""
    found = [f"PIM_VERSION {PIM_VERSION}"]
    for kind in (Load, LoadRows, Store, Send, Receive, *EMITTERS):
        found += [f"{kind.__name__}.{field.name}" for field in structs.fields(kind)]
    for kind in STABLE:
        found += [f"{kind.__name__}.{field.name}" for field in fields(kind)]
    return list(dict.fromkeys(found))


def test_the_interface_is_that_of_its_version(request: pytest.FixtureRequest) -> None:
    """A field that goes needs another `PIM_VERSION`; one that is added changes nothing for a back end."""
    kept = INTERFACE.read_text().splitlines()
    if kept[0] == f"PIM_VERSION {PIM_VERSION}":
        assert [line for line in kept if line not in interface()] == [], "raise PIM_VERSION"
    if request.config.getoption("--update-golden"):
        INTERFACE.write_text("".join(f"{line}\n" for line in interface()))
        return
    assert kept == interface(), "pytest --update-golden tests/codegen/test_seam.py writes the file again"


def test_the_page_names_every_column_and_every_function() -> None:
    page = (ROOT / "docs/developers/backends.md").read_text()
    columns = [field.name for field in fields(StepColumns) if field.name not in ("forms", "nodes", "buffers", "node")]
    assert [name for name in columns if f"`steps.{name}`" not in page] == []
    assert [n for n in vars(MachineBackend) if not n.startswith("_") and f"{n}" not in page] == []
