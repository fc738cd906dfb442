"""Verifier of PimIR: channels, definitions, crossbars, addresses (docs/developers/architecture.md, "Invariants")."""

from typing import NoReturn

import numpy as np

from raptor.common.errors import VerifyError
from raptor.pim.allocate_memory import BufferLifetimes, buffer_alignments, reserved_bytes
from raptor.pim.global_memory import WORD_BYTES, GlobalMemory
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.operations import Buffer, LoadRows, Receive, Send, Store
from raptor.pim.step_columns import (
    LOAD,
    OPERAND,
    RECEIVE,
    RESULT,
    SCRATCH,
    SEND,
    STORE,
    WHOLE_BUFFER,
    Ints,
    StepColumns,
    bytes_of_types,
)
from raptor.spatial.operations import Move
from raptor.target.arch import Target


class PimError(VerifyError):
    """A program breaks an invariant, at a step of a core, or in a form. Each is None if the error is elsewhere."""

    def __init__(
        self, message: str, *, core: int | None = None, step: int | None = None, form: int | None = None
    ) -> None:
        self.core, self.step, self.form = core, step, form
        super().__init__(message)


def verify_pim(program: PimProgram, arch: Target) -> None:
    """Checks a program, before or after allocation. Raises `VerifyError` that names core, step and ONNX node."""
    _check_channels(program, arch)
    for core in program.cores.values():
        _check_core(core, arch)
        _check_defined(core)
        _check_init(core)
        if core.addresses is not None:
            _check_addresses(core, core.addresses, arch)


def _check_channels(program: PimProgram, arch: Target) -> None:
    """Checks that each channel has one send and one receive, of one size, on different cores that name each other.

    Channel numbers must be ascending on each core, as in the schedule, so that no cores wait in a cycle.
    """
    (channels, sends), (received, receives) = (_ends(program, kind, arch) for kind in (SEND, RECEIVE))
    receives = receives[:, [1, 0, 2]]
    if not np.array_equal(channels, received) or (sends != receives).any():
        both = (channels, sends), (received, receives)
        sent, taken = (_by_channel(*ends) for ends in both)
        channel = next(c for c in sorted(sent.keys() | taken.keys()) if sent.get(c) != taken.get(c))
        core = (sent.get(channel) or taken[channel])[0]
        raise PimError(
            f"pim: channel {channel}: send {sent.get(channel)} and receive {taken.get(channel)} disagree",
            **_place_of_channel(program, core, channel),
        )
    if not np.array_equal(channels, np.arange(program.channel_count)):
        raise VerifyError(f"pim: {program.channel_count} channels are declared, {len(channels)} are used")
    for channel in np.flatnonzero(sends[:, 0] == sends[:, 1]).tolist():
        core = int(sends[channel, 0])
        raise PimError(
            f"pim: channel {channels[channel]} goes from core {core} to itself",
            **_place_of_channel(program, core, int(channels[channel])),
        )
    for core in program.cores.values():
        steps = np.flatnonzero((core.steps.form == SEND) | (core.steps.form == RECEIVE))
        early = np.flatnonzero(np.diff(core.steps.number[steps]) < 0)
        if len(early):
            where = {"core": core.core, "step": core.init_count + int(steps[early[0] + 1])}
            raise PimError(f"pim: core {core.core} meets its channels out of the global order", **where)


def _place_of_channel(program: PimProgram, core: int, channel: int) -> dict[str, int]:
    """Returns core and step of a send or receive of a channel, as arguments of `PimError`."""
    steps = program.cores[core].steps
    uses = (steps.number == channel) & ((steps.form == SEND) | (steps.form == RECEIVE))
    return {"core": core, "step": program.cores[core].init_count + int(np.argmax(uses))}


def _by_channel(channels: Ints, ends: Ints) -> dict[int, tuple[int, ...]]:
    rows: list[list[int]] = np.column_stack([channels, ends]).tolist()
    return {channel: tuple(end) for channel, *end in rows}


def _ends(program: PimProgram, form: int, arch: Target) -> tuple[Ints, Ints]:
    """Returns the channels of all sends or receives, sorted, and [channels, 3]: own core, other core, bytes.

    Raises `VerifyError` for a channel that is used twice.
    """
    channels, ends, places = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int64)], [np.zeros((0, 2), np.int64)]
    for core in program.cores.values():
        steps = core.steps
        at = np.flatnonzero(steps.form == form)
        whole = steps.buffers.elements[steps.used[steps.start[at]]]
        elements = np.where(steps.span[at, 0] == WHOLE_BUFFER, whole[:, 0], steps.span[at, 1])
        channels.append(steps.number[at])
        own, sizes = np.full(len(at), core.core), elements * bytes_of_types(whole[:, 1], arch)
        ends.append(np.stack([own, steps.peer[at], sizes], axis=1))
        places.append(np.stack([own, at], axis=1))
    channel, end = np.concatenate(channels), np.concatenate(ends)
    order = np.argsort(channel, kind="stable")
    for twice in order[1:][np.diff(channel[order]) == 0].tolist():
        core, step = np.concatenate(places)[twice].tolist()
        steps = program.cores[core].steps
        node = steps.nodes[int(steps.node[step])]
        raise PimError(
            f"pim: {node}: channel {channel[twice]} is used twice",
            core=core,
            step=program.cores[core].init_count + step,
        )
    return channel[order], end[order]


def _check_core(core: CoreProgram, arch: Target) -> None:
    """Checks that the core exists, has crossbars for its groups, and that its embedding lookups are consistent."""
    xbars = sum(g.matrix.xbars for g in core.groups)
    if xbars > arch.xbars_per_core or core.core >= arch.core_count:
        raise PimError(
            f"pim: core {core.core} of {arch.core_count} holds {xbars} of {arch.xbars_per_core} crossbars",
            core=core.core,
        )
    for i in core.steps.of_class(LoadRows).tolist():
        op = core.steps.operation(i)
        assert isinstance(op, LoadRows)
        _check_rows(core, core.init_count + i, op, arch)


def _check_defined(core: CoreProgram) -> None:
    """Checks that each operand was written before, with the number and type of elements that are read."""
    uses = core.all_steps.uses()
    known = np.flatnonzero(uses.role != SCRATCH)
    order = known[np.lexsort((known, uses.buffer[known]))]
    # For each use, the last write of the same buffer before it: writes and reads of a buffer are neighbours now.
    place = np.arange(len(order))
    written = np.maximum.accumulate(np.where(uses.role[order] == RESULT, place, -1))
    maker = order[np.maximum(written, 0)]
    right = (written >= 0) & (uses.buffer[maker] == uses.buffer[order])
    right &= (uses.elements[maker] == uses.elements[order]).all(axis=1)
    wrong = order[~right & (uses.role[order] == OPERAND)]
    if len(wrong):
        first = int(wrong.min())
        name = core.steps.buffers.name(uses.buffer[first])
        step = int(uses.step[first])
        raise PimError(f"{_where(core, step)}: %{name} is used before it is defined", core=core.core, step=step)


def _check_init(core: CoreProgram) -> None:
    """Checks that steps after power-up meet no other core, and that a sample leaves what later ones read."""
    if core.init is None:
        return
    alone = ~core.init.forms.of_class(Send, Receive, Store)[core.init.form]
    for step in np.flatnonzero(~alone).tolist():
        message = f"{_where(core, step)}: runs once after power-up, but meets another core or stores"
        raise PimError(message, core=core.core, step=step)
    _check_kept(core)


def _check_kept(core: CoreProgram) -> None:
    """Checks that a sample writes no resident buffer but states, these as a whole, and after it has read them."""
    steps = core.steps
    uses, count = steps.uses(), len(steps.buffers)
    kept, last_read = np.zeros(count, np.bool_), np.full(count, -1)
    kept[core.resident] = True
    kept[core.carried] = False
    reads = uses.role == OPERAND
    for buffer in np.setdiff1d(core.carried, uses.buffer[~reads])[:1].tolist():
        message = f"%{steps.buffers.name(buffer)} is read for an older sample, but no step of a sample writes it"
        raise PimError(message, core=core.core)
    np.maximum.at(last_read, uses.buffer[reads], uses.step[reads])
    writes = np.flatnonzero(kept[uses.buffer] & ~reads)
    step, buffer = uses.step[writes], uses.buffer[writes]
    is_state = np.isin(buffer, core.states)
    for k in np.flatnonzero(~is_state | (step < last_read[buffer])).tolist():
        name = steps.buffers.name(int(buffer[k]))
        state = f"overwrites the state %{name}, which this sample still reads"
        _refuse_step(core, int(step[k]), state if is_state[k] else f"overwrites %{name}, which later samples read")
    written, first, elements = _written_ranges(steps, step, buffer).T
    order = np.lexsort((first, written))
    ends = first[order] + elements[order]
    follows = np.append(-1, written[order])[:-1] == written[order]
    gaps = first[order] != np.where(follows, np.append(0, ends)[:-1], 0)
    total = np.bincount(written, elements, len(steps.buffers))
    wrong = np.zeros(len(steps.buffers), np.bool_)
    wrong[written[order][gaps]] = True
    wrong[core.states] |= total[core.states] != steps.buffers.elements[core.states, 0]
    for number in np.flatnonzero(wrong).tolist():
        name = steps.buffers.name(number)
        raise VerifyError(f"pim: core {core.core}: the elements of the state %{name} are not written once each")


def _refuse_step(core: CoreProgram, step: int, fault: str) -> NoReturn:
    """Raises `PimError` for a step of a sample."""
    at = core.init_count + step
    raise PimError(f"{_where(core, at)}: {fault}", core=core.core, step=at)


def _written_ranges(steps: StepColumns, step: Ints, buffer: Ints) -> Ints:
    """Returns [ranges, 3], buffer, first element and number of elements, of what steps write into a buffer each."""
    first: Ints = steps.span[step, 0]
    elements: Ints = steps.span[step, 1]
    whole, size = first == WHOLE_BUFFER, steps.buffers.elements[buffer, 0]
    found = np.column_stack([buffer, np.where(whole, 0, first), np.where(whole, size, elements)])
    forms, which = np.unique(steps.form[step], return_inverse=True)
    numbers: list[int] = forms.tolist()
    operations = [steps.forms.forms[number].operation for number in numbers]
    runs = [op.runs[:, [0, -1]] if isinstance(op, Move) else np.zeros((0, 2), np.int64) for op in operations]
    counts, begin = np.array([len(r) for r in runs], np.int64)[which], np.cumsum([0, *map(len, runs)])
    moved = np.array([isinstance(op, Move) for op in operations], np.bool_)[which]
    row = np.repeat(begin[which] - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
    parts = np.concatenate([np.zeros((0, 2), np.int64), *runs])[row]
    return np.concatenate([found[~moved], np.column_stack([np.repeat(buffer, counts), parts])])


def _where(core: CoreProgram, step: int) -> str:
    """Names a step by its number among all steps, those after power-up first."""
    steps = core.all_steps
    return f"pim: core {core.core} step {step} ({steps.nodes[steps.node[step]]})"


def _check_rows(core: CoreProgram, step: int, op: LoadRows[Buffer], arch: Target) -> None:
    """Checks that an embedding lookup has an id for each pixel, and that a pixel is not longer than a row."""
    fault = None
    if len(op.ids) != op.result.pixels:
        fault = f"has {op.result.pixels} pixels, but {len(op.ids)} ids"
    elif op.result.channels * arch.bytes_of(op.result.element) > op.stride:
        fault = f"takes more than the {op.stride} bytes from one row to the next"
    if fault is not None:
        raise PimError(f"{_where(core, step)}: {op.result} {fault}", core=core.core, step=step)


def _check_addresses(core: CoreProgram, addresses: Ints, arch: Target) -> None:
    """Checks that buffers alive at the same time are disjoint, and all are aligned and inside the memory used."""
    from raptor.pim.allocate_kernel import first_clash  # compiled code is loaded only where it runs

    lives, buffers = BufferLifetimes.from_core(core), core.steps.buffers
    low = addresses[lives.buffer]
    high = low + reserved_bytes(buffers, arch)[lives.buffer]
    unaligned = low % buffer_alignments(buffers.elements[lives.buffer, 1], arch) != 0
    outside = (low < 0) | (high > core.local_bytes)
    clashing, other = first_clash(lives.first, lives.last, lives.rest, lives.wake, low, high)
    for i in np.flatnonzero(unaligned | outside | (np.arange(len(low)) == clashing)).tolist():
        step, name = int(lives.first[i]), buffers.name(lives.buffer[i])
        obstacle = buffers.name(lives.buffer[other]) if i == clashing else "the end of local memory"
        fault = "is not aligned" if unaligned[i] else f"overlaps {obstacle}"
        raise PimError(f"{_where(core, step)}: %{name} at {low[i]} {fault}", core=core.core, step=step)


def verify_global_addresses(program: PimProgram, memory: GlobalMemory, arch: Target) -> None:
    """Checks that loads stay inside global memory, and that stores write outputs and computed ids only.

    Raises `PimError` that names core, step and ONNX node.
    """
    values = memory.constant_values
    constant_bytes = values.size * (1 if values.dtype == np.uint8 else arch.element_bytes)
    outputs = memory.constants_address + constant_bytes
    for core in program.cores.values():
        steps = core.all_steps
        for step in steps.of_class(LoadRows).tolist():
            op = steps.operation(step)
            assert isinstance(op, LoadRows)
            low = min(op.table, int(op.ids.min(initial=0)), op.rows, op.stride)
            high = max(op.table + op.rows * op.stride, int(op.ids.max(initial=0)) + WORD_BYTES)
            if low < 0 or high > memory.size_bytes:
                what = f"its table and ids leave the {memory.size_bytes} bytes of global memory"
                raise PimError(f"{_where(core, step)}: {what}", core=core.core, step=step)
        for kind, lowest in ((LOAD, 0), (STORE, outputs)):
            at = np.flatnonzero(steps.form == kind)
            whole = steps.buffers.elements[steps.used[steps.start[at]]]
            moved = np.where(steps.span[at, 0] == WHOLE_BUFFER, whole[:, 0], steps.span[at, 1])
            end = steps.number[at] + moved * bytes_of_types(whole[:, 1], arch)
            wrong = at[(steps.number[at] < lowest) | (end > memory.size_bytes)]
            if len(wrong):
                step = int(wrong[0])
                what = f"{'loads from' if kind == LOAD else 'stores at'} global address {steps.number[step]}"
                range_ = f"outside of {lowest} to {memory.size_bytes}"
                raise PimError(f"{_where(core, step)}: {what}, {range_}", core=core.core, step=step)
