"""The seam between compiler and machines: what a back end gets, and what it must do (docs/developers/backends.md).

A back end gets a `PimProgram` with addresses, whose forms and columns are stable within `PIM_VERSION`. Every machine is
a `MachineBackend`. `CostModel` and `InstructionSet` are what only some machines have; options that need it are refused
for others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from raptor.common.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.common.machine_backends import load_backend
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import Objective
from raptor.graph.ir import Graph, Operator
from raptor.mapping.search_trial import ProgramCost
from raptor.options import CompileOptions, OutputOptions
from raptor.output.machine_files import CodeFacts, MachineFiles
from raptor.pim import GlobalMemory, PimProgram
from raptor.spatial import SpatialGraph
from raptor.target.arch import Target

Code = TypeVar("Code")

PIM_VERSION = 1
"""Version of what a back end may rely on: operation classes, forms, columns of steps, map of global memory.

It changes if a class, a field or a column changes its meaning or goes. A new class does not change it: `find_faults`
names what a back end does not know.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ProgramParts:
    """A program and all that belongs to it: the tiles and weights of its layers, its global memory, and its chip.

    `trimmable`: the user wants gains and biases that a chip can set.
    """

    program: PimProgram
    graph: SpatialGraph
    memory: GlobalMemory
    target: Target
    trimmable: bool = False


class MachineBackend(Protocol[Code]):
    """A machine. `Code` is its form of a program, such as instruction streams; `str(code)` is shown by `--dump-ir`.

    name: value of `--backend`, and of `backend` in the manifest. pim_version: the `PIM_VERSION` it was written for.
    refused: options of a compilation (keywords) that would do nothing with this machine, each with the reason.
    """

    @property
    def name(self) -> str: ...

    @property
    def pim_version(self) -> int: ...

    @property
    def refused(self) -> Mapping[str, str]: ...

    def find_faults(self, program: PimProgram, target: Target) -> Iterator[UnsupportedNode]:
        """Yields each node that the machine cannot compute, and the reason; called before `generate`."""
        ...

    def generate(self, program: PimProgram, target: Target) -> Code:
        """Returns the code of a program. It is a pass: pure, and equal programs give equal code."""
        ...

    def verify(self, code: Code, program: PimProgram, target: Target) -> None:
        """Raises `VerifyError` unless the code does what the program says. A failure is a bug of the back end."""
        ...

    def facts(self, code: Code) -> CodeFacts:
        """Returns the instructions of the code, for reports and for the places of tensors."""
        ...

    def files(self, code: Code, parts: ProgramParts) -> MachineFiles:
        """Returns the files of a program, besides those of every output (docs/reference/files.md)."""
        ...

    def execute(self, folder: Path, memory: bytes, captured: int) -> tuple[bytes, bytes]:
        """Runs one sample of the program in an output directory, for `raptor validate` and `raptor run`.

        memory: global memory with constants and inputs (float32 for each element of a float program, else bytes).
        Returns the memory after the sample, and `captured` bytes: the tiles of `layers.json`, one after another.
        Raises `UserError` if it cannot run here.
        """
        ...


@runtime_checkable
class CostModel(Protocol):
    """A machine that knows what a program costs in its own terms; searches compare candidates by it."""

    def cost(self, objective: Objective, program: PimProgram, code: Any, target: Target) -> ProgramCost:
        """Returns the cost of a program, whose code may be unverified; called in a thread beside the compiler.

        For the objective `latency`, one sample runs alone, else many follow one another.
        """
        ...


@runtime_checkable
class InstructionSet(Protocol):
    """A machine whose code is instruction streams of cores, with a base set of instructions and extensions."""

    def find_extension(self, operator: Operator) -> str | None:
        """Returns the instruction outside of the base set that an operator needs; None if it needs none."""
        ...

    def verify_forms(self, program: PimProgram, target: Target) -> None:
        """Raises `PimError` unless every step of a program accesses only its own buffers and matrices."""
        ...

    def operator_flow(self, graph: Graph, program: PimProgram, code: Any, target: Target) -> Iterator[str]:
        """Yields the lines of a program in the words of its chip's interface (`--emit-ops`)."""
        ...


_NO_COST = CostModel, "which has no model of time and energy"
_NO_SET = InstructionSet, "which has no instruction set"
_NEEDED: Mapping[str, tuple[type[Any], str]] = {
    **{"optimize": _NO_COST, "overlap": _NO_COST},
    **{"base_isa": _NO_SET, "emit_ops": _NO_SET, "rounds": _NO_SET},
}
"""The protocol that an option needs of a machine, and the reason to refuse it for one that lacks it."""


def find_backend(name: str) -> MachineBackend[Any]:
    """Returns a back end by name. Raises `UserError` if there is none, or if it is for another version of PimIR."""
    found: MachineBackend[Any] = load_backend(name)
    if found.pim_version != PIM_VERSION:
        raise UserError(
            f"{spell_option('backend', name)}: made for version {found.pim_version} of PimIR, but this is version "
            f"{PIM_VERSION}; install another version of the package that has it"
        )
    return found


def check_supported(backend: MachineBackend[Any], program: PimProgram, target: Target) -> None:
    """Raises `UnsupportedError` with all nodes that the machine cannot compute."""
    faults = list(backend.find_faults(program, target))
    if faults:
        raise UnsupportedError(faults)


def refuse_options(backend: MachineBackend[Any], options: CompileOptions | OutputOptions) -> None:
    """Raises `UserError` for an option in use that has no effect on the machine."""
    for keyword, value in _changed(options).items():
        needed, reason = _NEEDED.get(keyword, (object, ""))
        reason = backend.refused.get(keyword, "" if isinstance(backend, needed) else reason)
        if reason:
            machine, shown = spell_option("backend", backend.name), () if isinstance(value, Mapping) else (value,)
            raise UserError(f"{spell_option(keyword, *shown)}: not with {machine}, {reason}")


def _changed(record: Any) -> dict[str, object]:
    """Returns the options of a record that differ from their defaults, by keyword."""
    found: dict[str, object] = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if not part.metadata:
            found |= _changed(value)
        elif value != (part.default if part.default is not MISSING else {}):
            found[part.name] = value
    return found
