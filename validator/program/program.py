"""A program loaded from an output directory: checked, and ready to run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.decoder_files import DecoderFile
from raptor.output.files import (
    MemoryMap,
    OutputManifest,
    ProbeList,
    SimulatorConfig,
    TensorPlace,
)
from raptor.output.resident_files import ResidentState
from raptor.output.trim_files import TrimTable
from raptor.target.isa import Records

if TYPE_CHECKING:
    from validator.crossbar.programmed_chip import ProgrammedChip
    from validator.crossbar.repaired_cells import CellRepair

Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
"""Content of a memory: float32 numbers, or bytes in an integer program."""
Matrix = npt.NDArray[Any]
"""Weights: float32, or int8 or int16 in an integer program."""


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """The matrices of all array groups, row-major one after another in `values`.

    Group g of core c is entry `first[c] + g` of `offset`, `rows` and `cols`.
    """

    values: Matrix
    offset: Indices
    rows: Indices
    cols: Indices
    first: Indices

    def matrix(self, core: int, group: int) -> Matrix:
        """Returns the matrix [rows, cols] of one group as a view."""
        i = int(self.first[core]) + group
        rows, cols, offset = int(self.rows[i]), int(self.cols[i]), int(self.offset[i])
        return self.values[offset : offset + rows * cols].reshape(rows, cols)

    def move(self, cores: Sequence[int]) -> "GroupWeights":
        """Returns the weights of a program whose core k becomes `cores[k]`, a permutation."""
        before: list[int] = np.argsort(cores).tolist()
        bounds: list[int] = self.first.tolist()
        order = np.array([k for core in before for k in range(bounds[core], bounds[core + 1])], np.int64)
        first = np.cumsum([0, *np.diff(self.first)[before]], dtype=np.int64)
        return GroupWeights(self.values, self.offset[order], self.rows[order], self.cols[order], first)


class ExternalCrossbars(Protocol):
    """External crossbars, outside of the engine, that hold the matrices of a program."""

    def write_matrices(self) -> None:
        """Writes the matrices that the crossbars do not hold yet. Called before each run."""
        ...

    def __call__(self, core: int, group: int, vector: Matrix) -> Matrix:
        """Returns a vector [rows] times the matrix of an array group, [columns]."""
        ...


class CrossbarWriter(ABC):
    """Base of classes that write the matrices of a program into external crossbars."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, program: "LoadedProgram") -> ExternalCrossbars:
        """Writes the matrices of a program. Returns the crossbars."""

    @abstractmethod
    def write_in_turns(self, programs: Sequence["LoadedProgram"]) -> Sequence[ExternalCrossbars]:
        """Returns the crossbars of programs that take turns: each program writes its matrices when it begins."""


@dataclass(frozen=True, slots=True, eq=False)
class ResidentMemory:
    """Local memory that stays as it is between two samples: the programs that fill and exchange it, and its spans.

    `auxiliary`: streams by name of the program, `init`, `save` and `restore`; the latter two only with states. `spans`:
    [spans, 3], core, first byte and number of bytes. `states`: the model's states among it. `delays`: passes from the
    one that loads a sample to the one that stores an output of it, by output; without an entry, it is the same pass.
    """

    auxiliary: Mapping[str, tuple[Records, ...]]
    spans: Indices
    states: tuple[ResidentState, ...] = ()
    delays: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadedProgram:
    """Contents of an output directory that a run needs. `layers` is None without layers.json.

    `resident`: None for a program that forgets everything between two samples. `decoder`: None unless the program is a
    step of a model whose states grow.

    `products`: computes every `mvmul`; None for the engine itself. `crossbars`: a model of non-ideal cells and
    converters, for integer programs; None for exact products. `trim`: None unless it is trimmable. `repair`: the
    cells of the chip that it is repaired for; None for chips without defects.
    """

    folder: Path
    manifest: OutputManifest
    config: SimulatorConfig
    memory: MemoryMap
    layers: ProbeList | None
    streams: tuple[Records, ...]
    weights: GroupWeights
    constants: Values
    products: ExternalCrossbars | None = None
    crossbars: "ProgrammedChip | None" = None
    resident: ResidentMemory | None = None
    trim: TrimTable | None = None
    repair: "CellRepair | None" = None
    decoder: DecoderFile | None = None

    @property
    def states(self) -> tuple[ResidentState, ...]:
        """The states, whose inputs count for the first sample alone."""
        return () if self.resident is None else self.resident.states

    @property
    def delays(self) -> Mapping[str, int]:
        """The number of passes by which outputs come later than in the pass that loads their sample."""
        return {} if self.resident is None else self.resident.delays

    @property
    def state_inputs(self) -> frozenset[str]:
        """The names of the model inputs that are states: they stay on the chip, so a step is not given them."""
        return frozenset(state.input for state in self.states)

    @property
    def outputs(self) -> tuple[TensorPlace | ResidentState, ...]:
        """All outputs of the model: those in global memory, then states in local memories."""
        return (*self.memory.outputs, *self.states)

    def auxiliary_program(self, name: str) -> "LoadedProgram":
        """Returns a program beside those of a sample; something must be resident."""
        assert self.resident is not None, "something is resident"
        return replace(self, streams=self.resident.auxiliary[name], layers=None, resident=None, crossbars=None)

    def write_to_device(self, write: CrossbarWriter) -> "LoadedProgram":
        """Returns the program with its matrices in external crossbars, where `write` puts them."""
        return replace(self, products=write(self))

    @property
    def model(self) -> Path:
        """Path of the ONNX model. Raises `UserError` if the manifest does not list it."""
        if files.MODEL not in self.manifest.files:
            raise UserError(f"{files.MANIFEST}: {files.MODEL} is not in the list of files")
        return self.folder / files.MODEL

    @property
    def core_count(self) -> int:
        return self.config.core_cnt

    @property
    def has_integers(self) -> bool:
        """True if memories are bytes, whose elements are integers (and, in a mixed program, float32)."""
        return self.manifest.numbers != "float"

    @property
    def instruction_count(self) -> int:
        return sum(map(len, self.streams))
