"""Allocation of local memory: results overwrite operands that die, and buffers with disjoint lifetimes share memory."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import CapacityError
from raptor.common.option_spelling import spell_option
from raptor.mapping.decision import Matrix
from raptor.pim.ir import CoreProgram, PimProgram, TensorTrace
from raptor.pim.step_columns import OPERAND, RESULT, BufferTable, FormTable, Ints, OperationForm, encode_type
from raptor.spatial.operations import Move, Overlap, Vector
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT

Bools = npt.NDArray[np.bool_]

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
    rest, wake: of carried buffers, the last step that reads the value of the pass before, and the first one that writes
    that of this pass; between them the memory is free. Both are `last` for other buffers.
    """

    buffer: Ints
    first: Ints
    last: Ints
    rest: Ints
    wake: Ints

    @classmethod
    def from_core(cls, core: CoreProgram) -> "BufferLifetimes":
        """Computes the lifetimes of a core's buffers. Resident buffers live all the time; carried ones rest between."""
        steps, resident = core.all_steps, core.resident
        uses, count = steps.uses(), len(steps.buffers)
        first, last = uses.first(count), uses.last(count)
        first[resident], last[resident] = 0, len(steps)
        rest, wake = last.copy(), last.copy()
        rest[core.carried], wake[core.carried] = _find_rests(core)
        buffer, place = np.unique(steps.used, return_index=True)
        buffer = buffer[np.lexsort((place, first[buffer]))]
        return cls(buffer, first[buffer], last[buffer], rest[buffer], wake[buffer])


def _find_rests(core: CoreProgram) -> tuple[Ints, Ints]:
    """Returns, of each carried buffer, the last step that reads it in a pass before the first one that writes it.

    Both are counted over `CoreProgram.all_steps`.
    """
    uses, count = core.steps.uses(), len(core.steps.buffers)
    written = np.full(count, len(core.steps))
    writes = uses.role != OPERAND
    np.minimum.at(written, uses.buffer[writes], uses.step[writes])
    read = np.full(count, -1)
    before = ~writes & (uses.step <= written[uses.buffer])
    np.maximum.at(read, uses.buffer[before], uses.step[before])
    return core.init_count + read[core.carried], core.init_count + written[core.carried]


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
    start = first_fit(np.argsort(-size, kind="stable"), lives.first, lives.last, lives.rest, lives.wake, size)
    addresses = np.full(len(buffers), NO_ADDRESS)
    addresses[lives.buffer] = start
    return replace(core, addresses=addresses, local_bytes=int((start + size).max(initial=0)))


def drop_copies(program: PimProgram) -> PimProgram:
    """Returns the program without copies of whole buffers that no step writes afterwards, in which both are one.

    Only if no layer has a window: the order of work on lines is chosen with the copies, and fewer of them are not
    always faster. States, carried buffers, and copies that run once after power-up stay. A tensor that such a copy made
    is observed after the step that made the copied value.
    """
    if not program.cores or not all(map(_makes_pixels, program.cores.values())):
        return program
    forms = next(iter(program.cores.values())).steps.forms
    copies = _find_copies(forms)
    in_place = np.array([len(form.slots) < form.operands + form.results for form in forms.forms], np.bool_)
    cores, after = dict(program.cores), dict[int, Ints]()
    for i, core in program.cores.items():
        cores[i], after[i] = _without_copies(core, copies, in_place)
    return replace(program, cores=cores, traces=tuple(_renumbered(trace, after) for trace in program.traces))


def _makes_pixels(core: CoreProgram) -> bool:
    """Checks whether the matrices of a core are of layers that make pixels of single pixels."""
    return all(isinstance(group.matrix, Matrix) and not group.matrix.tap for group in core.groups)


def _find_copies(forms: FormTable) -> Bools:
    """Returns, for each form, whether it copies all elements of a buffer to another one of the same shape."""
    return np.array([_is_copy(form) for form in forms.forms], np.bool_)


def _is_copy(form: OperationForm) -> bool:
    operation = form.operation
    if not isinstance(operation, Move | Overlap) or len(form.slots) != 2 or len(operation.runs) != 1:
        return False
    source, result = operation.sources[0], operation.result
    at, _, first, *stride, elements = operation.runs[0].tolist()
    whole = (at, first, elements) == (0, 0, source.elements) and (elements == 1 or stride in ([], [1]))
    return whole and (source.elements, source.element) == (result.elements, result.element)


def _without_copies(core: CoreProgram, copies: Bools, in_place: Bools) -> tuple[CoreProgram, Ints]:
    """Returns a core without copies, and the step after which the result of each of its steps is observed there.

    `copies`, `in_place`: forms that copy a whole buffer, and those whose result is in the buffer of an operand.
    """
    steps, once, count = core.all_steps, core.init_count, len(core.steps.buffers)
    uses = steps.uses()
    first, written = uses.first(count), (uses.role != OPERAND) | in_place[steps.form[uses.step]]
    writes, last_write = np.bincount(uses.buffer[written], minlength=count), np.full(count, -1)
    last_write[uses.buffer[written]] = uses.step[written]
    shared = np.ones(count, np.bool_)
    shared[core.states] = shared[core.carried] = False
    one_result = np.diff(steps.forms.counts[:, :2], axis=1)[:, 0] == 1
    home, maker = np.arange(count), np.arange(len(steps))
    for step in np.flatnonzero(copies[steps.form]).tolist():
        given, result = steps.used[steps.start[step] : steps.start[step + 1]].tolist()
        source = home[given]
        made = last_write[source]
        fresh = writes[result] == 1 and first[result] == step and shared[source] and shared[result]
        if fresh and once <= made < step and one_result[steps.form[made]]:
            home[result], maker[step] = source, made
    left = maker[once:] == np.arange(once, len(steps))
    kept = core.steps.select(np.flatnonzero(left))
    return replace(core, steps=replace(kept, used=home[kept.used])), np.cumsum(left)[maker[once:] - once]


def _renumbered(trace: TensorTrace, after: Mapping[int, Ints]) -> TensorTrace:
    """Returns a trace in programs without copies. `after`: for each step of a core, the steps until it is observed."""
    pairs = zip(trace.core.tolist(), trace.step.tolist(), strict=True)
    return replace(trace, step=np.array([after[core][step - 1] for core, step in pairs], np.int64))
