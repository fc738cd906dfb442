"""Allocation of local memory: results overwrite operands that die, and buffers with disjoint lifetimes share memory."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from raptor.common.errors import CapacityError
from raptor.common.option_spelling import spell_option
from raptor.pim.drop_copies import drop_copies
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.step_columns import OPERAND, RESULT, BufferTable, Ints, encode_type
from raptor.spatial.operations import Vector
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT

NO_ADDRESS = -1
"""Address of an unused buffer."""
ALIGNMENT = 4
"""Alignment in bytes of buffers of integers, which memories access faster when aligned."""


def buffer_alignments(types: Ints, arch: Target) -> Ints:
    """Returns the alignment in bytes of buffers, by the types of their elements."""
    return np.where(types == encode_type(MODELLED_FLOAT), arch.element_bytes, ALIGNMENT)


def reserved_bytes(buffers: BufferTable, arch: Target) -> Ints:
    """Returns the bytes to reserve for each buffer: more than its size, up to a multiple of its alignment.

    The simulator counts both ends of a range as inside, so adjacent buffers would overlap.
    """
    step = buffer_alignments(buffers.elements[:, 1], arch)
    return buffers.sizes(arch) // step * step + step


@dataclass(frozen=True, slots=True, eq=False)
class BufferLifetimes:
    """Lifetimes of the used buffers of a core, in order of first use, as columns.

    buffer: its number. first, last: the first and the last step that use it, counted over `CoreProgram.all_steps`.
    """

    buffer: Ints
    first: Ints
    last: Ints

    @classmethod
    def from_core(cls, core: CoreProgram) -> "BufferLifetimes":
        """Computes the lifetimes of a core's buffers. Resident buffers live all the time."""
        steps, resident = core.all_steps, core.resident
        uses, count = steps.uses(), len(steps.buffers)
        first, last = uses.first(count), uses.last(count)
        first[resident], last[resident] = 0, len(steps)
        buffer, place = np.unique(steps.used, return_index=True)
        buffer = buffer[np.lexsort((place, first[buffer]))]
        return cls(buffer, first[buffer], last[buffer])


def reuse_operands(program: PimProgram) -> PimProgram:
    """Returns the program with element-wise operations that overwrite an operand (destination passing).

    The operand must have as many elements as the result, of the same type, and not be read again. Resident buffers
    are neither. A copy that has both in one buffer is dropped (`drop_copies`).
    """
    program = drop_copies(program)
    return replace(program, cores={i: _reuse_on_core(core) for i, core in program.cores.items()})


def _reuse_on_core(core: CoreProgram) -> CoreProgram:
    steps = core.all_steps
    uses = steps.uses()
    last = uses.last(len(steps.buffers))
    last[core.resident] = len(steps)
    vector = steps.forms.of_class(Vector)[steps.form][uses.step]
    result = np.zeros(len(steps), np.int64)  # the place of the result among all uses, for each step
    result[uses.step[uses.role == RESULT]] = np.flatnonzero(uses.role == RESULT)
    alike = (uses.elements == uses.elements[result[uses.step]]).all(axis=1)
    alike &= ~np.isin(uses.buffer[result[uses.step]], core.carried)
    dying = np.flatnonzero(vector & (uses.role == OPERAND) & (last[uses.buffer] == uses.step) & alike)
    step, first = np.unique(uses.step[dying], return_index=True)
    home = np.arange(len(steps.buffers))
    home[uses.buffer[result[step]]] = uses.buffer[dying[first]]
    while (home[home] != home).any():
        home = home[home]
    init = None if core.init is None else replace(core.init, used=home[core.init.used])
    return replace(core, steps=replace(core.steps, used=home[core.steps.used]), init=init)


def allocate(program: PimProgram, arch: Target) -> PimProgram:
    """Returns the program with an address in local memory for every buffer.

    Raises `CapacityError` if the architecture file has a `memory_size`, and a core needs more.
    """
    cores = {i: allocate_core(core, arch) for i, core in program.cores.items()}
    placed = replace(program, cores=cores)
    if arch.memory_size_enforced and (over := _largest(placed, arch)):
        raise CapacityError(
            "bytes of local memory",
            over.bytes,
            arch.memory_size_bytes,
            where=f"core {over.core}, the fullest of {over.count} that need more, mostly for {over.node}",
            levers=(
                "a larger memory_size in the architecture file",
                f"fewer {spell_option('xbars_per_core')}",
                f"a smaller {spell_option('shapes')}",
            ),
        )
    return placed


@dataclass(frozen=True, slots=True)
class _Over:
    """The cores that exceed their local memory: their number `count`, and the core that needs most.

    core, bytes: that core, and its bytes. node: the ONNX node with most of its steps.
    """

    count: int
    core: int
    bytes: int
    node: str


def _largest(program: PimProgram, arch: Target) -> _Over | None:
    """Returns the cores that exceed their local memory, or None."""
    sizes = {i: core.local_bytes for i, core in program.cores.items()}
    over = {i: size for i, size in sizes.items() if size > arch.memory_size_bytes}
    if not over:
        return None
    worst = max(over, key=lambda i: (over[i], -i))
    steps = program.cores[worst].steps
    nodes: list[int] = steps.node.tolist()
    return _Over(len(over), worst, over[worst], steps.nodes[Counter(nodes).most_common(1)[0][0]])


def memory_warnings(program: PimProgram, arch: Target) -> tuple[str, ...]:
    """Returns a warning if cores exceed the simulator's default local memory, 1 MiB, which it does not enforce.

    If the architecture file has a `memory_size`, `allocate` raises instead.
    """
    over = _largest(program, arch)
    if over is None:
        return ()
    return (
        f"local memory: {over.count} of {len(program.cores)} cores need more than {arch.memory_size_bytes} bytes (the "
        f"simulator's default, which it does not enforce); core {over.core} needs {over.bytes}, mostly for {over.node}",
    )


def allocate_core(core: CoreProgram, arch: Target) -> CoreProgram:
    """Assigns addresses by first fit: the largest buffer first, at the lowest address that is free for its lifetime."""
    from raptor.pim.allocate_kernel import first_fit  # compiled code is loaded only where it runs

    lives, buffers = BufferLifetimes.from_core(core), core.steps.buffers
    size = reserved_bytes(buffers, arch)[lives.buffer]
    start = first_fit(np.argsort(-size, kind="stable"), lives.first, lives.last, size)
    addresses = np.full(len(buffers), NO_ADDRESS)
    addresses[lives.buffer] = start
    return replace(core, addresses=addresses, local_bytes=int((start + size).max(initial=0)))
