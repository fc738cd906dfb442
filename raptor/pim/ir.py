"""PimIR: one straight-line program per core, on named buffers of local memory.

Every operation names the buffers that it reads and writes (destination passing; thesis, listings 4.2 and 4.3). After
`allocate` each buffer has an address. Addresses count bytes; shapes and spans count elements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.pim.operations import Buffer, Load, LoadRows, Receive, Send, Store
from raptor.pim.step_columns import Ints, StepColumns
from raptor.spatial.operations import Operation
from raptor.target.chip_elements import MODELLED_FLOAT, ElementCoding, ElementType
from raptor.target.tensor_layout import Image, TensorRegion


@dataclass(frozen=True, slots=True)
class ArrayGroup:
    """An array group: adjacent crossbars that hold one matrix of a layer. `weight_bits`: see `Filter`."""

    layer: str
    matrix: Matrix | LineMatrix
    weight_bits: int = 0


@dataclass(frozen=True, slots=True)
class CoreProgram:
    """Program of one core; `groups` are its array groups. `steps` run for each sample, again and again.

    addresses: byte address of each buffer; None before allocation. local_bytes: bytes of local memory in use. init:
    steps that run once after power-up, on buffers of the same table; None if there are none. states: the buffers of
    states, which a sample reads and then overwrites for the next one. carried: buffers of values that a pass over the
    steps reads for an older sample, and then overwrites.
    """

    core: int
    groups: tuple[ArrayGroup, ...]
    steps: StepColumns
    addresses: Ints | None = None
    local_bytes: int = 0
    init: StepColumns | None = None
    states: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    carried: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def all_steps(self) -> StepColumns:
        """The steps after power-up, then those of a sample."""
        return self.steps if self.init is None else self.init.followed_by(self.steps)

    @property
    def init_count(self) -> int:
        """Number of steps that run once after power-up."""
        return 0 if self.init is None else len(self.init)

    @property
    def resident(self) -> Ints:
        """The buffers that keep their value between samples: filled after power-up, and read for each sample."""
        return np.zeros(0, np.int64) if self.init is None else np.intersect1d(self.init.used, self.steps.used)

    @property
    def address_of(self) -> Mapping[str, int]:
        """Byte address of each buffer in use, by name."""
        assert self.addresses is not None, "buffers have no addresses before allocation"
        used: list[int] = np.unique(self.all_steps.used).tolist()
        return {self.steps.buffers.name(k): int(self.addresses[k]) for k in used}

    def address(self, buffer: Buffer) -> int:
        """Returns the byte address of a buffer."""
        return self.address_of[buffer.name]


@dataclass(frozen=True, slots=True, eq=False)
class TensorTrace:
    """Places where the parts of an ONNX tensor can be observed while a program runs, one for each of its `regions`.

    A part is in local memory of its `core` directly after the first `step` steps there, the last of which wrote it.
    """

    tensor: str
    node: str
    image: Image
    regions: tuple[TensorRegion, ...]
    core: Ints
    step: Ints
    element: ElementType = MODELLED_FLOAT
    coding: ElementCoding | None = None


@dataclass(frozen=True, slots=True)
class PimProgram:
    """The programs of all cores that have work, by core, and the number of channels between them.

    delays: of outputs of the model: a pass over all steps stores the output of the sample so many passes before it.
    """

    name: str
    cores: Mapping[int, CoreProgram]
    channel_count: int
    traces: tuple[TensorTrace, ...]
    delays: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def _lines(program: PimProgram) -> Iterator[str]:
    yield f'pim.program "{program.name}" {{'
    for core in program.cores.values():
        yield f"  pim.core {{coreId = {core.core}, groups = {_group_text(core.groups)}}} {{"
        known: set[str] = set()
        addresses = None if core.addresses is None else core.address_of
        if core.init is not None:
            yield "    pim.init {"
            yield from (f"  {line}" for line in _step_lines(core.init, addresses, known))
            yield "    }"
        yield from _step_lines(core.steps, addresses, known)
        yield "    pim.halt"
        yield "  }"
    yield "}"


def _step_lines(steps: StepColumns, addresses: Mapping[str, int] | None, known: set[str]) -> Iterator[str]:
    for step in steps:
        yield from _allocations(step.operation, addresses, known)
        yield f"    {_operation_text(step.operation)}  # {step.node}"


def _group_text(groups: tuple[ArrayGroup, ...]) -> str:
    return f"[{', '.join(str(g.matrix.xbars) for g in groups)}]"


def _operation_text(op: Operation[Buffer]) -> str:
    """Returns an operation as text: operands, then the buffers that it overwrites. Transfers have only one buffer."""
    braces = op.braces("groups")
    if isinstance(op, Load | LoadRows | Store | Send | Receive):
        return f"pim.{op.mnemonic} {', '.join(op.arguments)}{braces}"
    written = (*(f"outBuf = {b}" for b in op.results), *(f"accumBuf = {b}" for b in op.scratch))
    return f"pim.{op.mnemonic}({', '.join((*op.arguments, *written))}){braces}"


def _allocations(operation: Operation[Buffer], addresses: Mapping[str, int] | None, known: set[str]) -> Iterator[str]:
    """Yields a line for each buffer that this operation is the first to write. `known`: buffers written before."""
    for buffer in (*operation.results, *operation.scratch):
        if buffer.name not in known:
            known.add(buffer.name)
            where = "" if addresses is None else f", address = {addresses[buffer.name]}"
            yield f"    {buffer} = pim.alloc {{elements = {buffer.elements}{where}}}"
