"""Verifier of PimIR: channels, definitions, crossbars, addresses (docs/developers/architecture.md, "Invariants")."""

import numpy as np

from raptor.common.errors import VerifyError
from raptor.pim.allocate_memory import BufferLifetimes, buffer_alignments, reserved_bytes
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.operations import Buffer, LoadRows, Receive, Send, Store
from raptor.pim.step_columns import (
    OPERAND,
    RECEIVE,
    RESULT,
    SCRATCH,
    SEND,
    WHOLE_BUFFER,
    Ints,
    StepColumns,
    bytes_of_types,
)
from raptor.spatial.operations import Move
from raptor.target.arch import Target


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
        raise VerifyError(f"pim: channel {channel}: send {sent.get(channel)} and receive {taken.get(channel)} disagree")
    if not np.array_equal(channels, np.arange(program.channel_count)):
        raise VerifyError(f"pim: {program.channel_count} channels are declared, {len(channels)} are used")
    for channel in np.flatnonzero(sends[:, 0] == sends[:, 1]).tolist():
        raise VerifyError(f"pim: channel {channels[channel]} goes from core {sends[channel, 0]} to itself")
    for core in program.cores.values():
        numbers = core.steps.number[(core.steps.form == SEND) | (core.steps.form == RECEIVE)]
        if (numbers[1:] < numbers[:-1]).any():
            raise VerifyError(f"pim: core {core.core} meets its channels out of the global order")


def _by_channel(channels: Ints, ends: Ints) -> dict[int, tuple[int, ...]]:
    rows: list[list[int]] = np.column_stack([channels, ends]).tolist()
    return {channel: tuple(end) for channel, *end in rows}


def _ends(program: PimProgram, form: int, arch: Target) -> tuple[Ints, Ints]:
    """Returns the channels of all sends or receives, sorted, and [channels, 3]: own core, other core, bytes.

    Raises `VerifyError` for a channel that is used twice.
    """
    channels, ends, nodes = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int64)], list[str]()
    for core in program.cores.values():
        steps = core.steps
        at = np.flatnonzero(steps.form == form)
        whole = steps.buffers.elements[steps.used[steps.start[at]]]
        elements = np.where(steps.span[at, 0] == WHOLE_BUFFER, whole[:, 0], steps.span[at, 1])
        channels.append(steps.number[at])
        own, sizes = np.full(len(at), core.core), elements * bytes_of_types(whole[:, 1], arch)
        ends.append(np.stack([own, steps.peer[at], sizes], axis=1))
        nodes += [steps.nodes[int(node)] for node in steps.node[at]]
    channel, end = np.concatenate(channels), np.concatenate(ends)
    order = np.argsort(channel, kind="stable")
    for twice in order[1:][np.diff(channel[order]) == 0].tolist():
        raise VerifyError(f"pim: {nodes[twice]}: channel {channel[twice]} is used twice")
    return channel[order], end[order]


def _check_core(core: CoreProgram, arch: Target) -> None:
    """Checks that the core exists, has crossbars for its groups, and that its embedding lookups are consistent."""
    xbars = sum(g.matrix.xbars for g in core.groups)
    if xbars > arch.xbars_per_core or core.core >= arch.core_count:
        raise VerifyError(
            f"pim: core {core.core} of {arch.core_count} holds {xbars} of {arch.xbars_per_core} crossbars"
        )
    for i in core.steps.of_class(LoadRows).tolist():
        op = core.steps.operation(i)
        assert isinstance(op, LoadRows)
        _check_rows(_where(core, core.init_count + i), op, arch)


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
        raise VerifyError(f"{_where(core, int(uses.step[first]))}: %{name} is used before it is defined")


def _check_init(core: CoreProgram) -> None:
    """Checks that steps after power-up meet no other core, and that a sample leaves what later ones read."""
    if core.init is None:
        return
    alone = ~core.init.forms.of_class(Send, Receive, Store)[core.init.form]
    for step in np.flatnonzero(~alone).tolist():
        raise VerifyError(f"{_where(core, step)}: runs once after power-up, but meets another core or stores")
    _check_kept(core)


def _check_kept(core: CoreProgram) -> None:
    """Checks that a sample writes no resident buffer but states, these as a whole, and after it has read them."""
    steps = core.steps
    uses, count = steps.uses(), len(steps.buffers)
    kept, last_read = np.zeros(count, np.bool_), np.full(count, -1)
    kept[core.resident] = True
    reads = uses.role == OPERAND
    np.maximum.at(last_read, uses.buffer[reads], uses.step[reads])
    parts: dict[int, list[tuple[int, int]]] = {state: [] for state in core.states.tolist()}
    for use in np.flatnonzero(kept[uses.buffer] & ~reads).tolist():
        step, buffer = int(uses.step[use]), int(uses.buffer[use])
        where, name = _where(core, core.init_count + step), steps.buffers.name(buffer)
        if buffer not in parts:
            raise VerifyError(f"{where}: overwrites %{name}, which later samples read")
        if step < last_read[buffer]:
            raise VerifyError(f"{where}: overwrites the state %{name}, which this sample still reads")
        parts[buffer] += _written_ranges(steps, step)
    for state, written in parts.items():
        name, elements = steps.buffers.name(state), int(steps.buffers.elements[state, 0])
        ends = [0, *(first + size for first, size in sorted(written))]
        if [first for first, _ in sorted(written)] != ends[:-1] or ends[-1] != elements:
            raise VerifyError(f"pim: core {core.core}: the elements of the state %{name} are not written once each")


def _written_ranges(steps: StepColumns, step: int) -> list[tuple[int, int]]:
    """Returns first element and number of elements of each part of its result that a step writes."""
    first, elements = steps.span[step].tolist()
    operation = steps.operation(step)
    if isinstance(operation, Move):
        return [(int(into), int(size)) for into, *_, size in operation.runs.tolist()]
    result = int(steps.results(np.array([step]))[0])
    return [(0, int(steps.buffers.elements[result, 0])) if first == WHOLE_BUFFER else (first, elements)]


def _where(core: CoreProgram, step: int) -> str:
    """Names a step by its number among all steps, those after power-up first."""
    steps = core.all_steps
    return f"pim: core {core.core} step {step} ({steps.nodes[steps.node[step]]})"


def _check_rows(where: str, op: LoadRows[Buffer], arch: Target) -> None:
    """Checks that an embedding lookup has an id for each pixel, and that a pixel is not longer than a row."""
    if len(op.ids) != op.result.pixels:
        raise VerifyError(f"{where}: {op.result} has {op.result.pixels} pixels, but {len(op.ids)} ids")
    if op.result.channels * arch.bytes_of(op.result.element) > op.stride:
        raise VerifyError(f"{where}: {op.result} takes more than the {op.stride} bytes from one row to the next")


def _check_addresses(core: CoreProgram, addresses: Ints, arch: Target) -> None:
    """Checks that buffers alive at the same time are disjoint, and all are aligned and inside the memory used."""
    from raptor.pim.allocate_kernel import first_clash  # compiled code is loaded only where it runs

    lives, buffers = BufferLifetimes.from_core(core), core.steps.buffers
    low = addresses[lives.buffer]
    high = low + reserved_bytes(buffers, arch)[lives.buffer]
    unaligned = low % buffer_alignments(buffers.elements[lives.buffer, 1], arch) != 0
    outside = (low < 0) | (high > core.local_bytes)
    clashing, other = first_clash(lives.first, lives.last, low, high)
    for i in np.flatnonzero(unaligned | outside | (np.arange(len(low)) == clashing)).tolist():
        where, name = _where(core, int(lives.first[i])), buffers.name(lives.buffer[i])
        if unaligned[i]:
            raise VerifyError(f"{where}: %{name} at {low[i]} is not aligned")
        obstacle = buffers.name(lives.buffer[other]) if i == clashing else "the end of local memory"
        raise VerifyError(f"{where}: %{name} at {low[i]} overlaps {obstacle}")
