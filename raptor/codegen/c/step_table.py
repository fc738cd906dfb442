"""The steps of all cores as one list of 32-bit words, in an order that needs no waiting.

A message is one entry: the copy from the sender to the receiver. Channels are numbered in an order in which messages
can be exchanged one after another, so the list runs, channel after channel, what both cores do before it, then the
message (docs/developers/architecture.md, "No deadlock").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.step_columns import LOAD, RECEIVE, SEND, STORE, TRANSFERS, WHOLE_BUFFER, Ints, StepColumns

END, LOAD_STEP, STORE_STEP, MESSAGE, CAPTURE, FORM_STEP = range(6)
"""Kinds of entries, each with the words after it. Addresses and sizes count units.

END: none. LOAD_STEP, STORE_STEP: core, local address, global address, size. MESSAGE: core and address of the sender,
core and address of the receiver, size. CAPTURE: core, address, place among the captured tensors, size. FORM_STEP: form,
core, first matrix, number of slots, address of each slot.
"""
_TOP = 2**62
"""Rank of what comes after the last message."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitSizes:
    """Units of memory in C: an element in a program of floats, a byte in one of integers.

    `bytes_per_unit`: bytes of PimIR that a unit stands for.
    """

    bytes_per_unit: int
    is_float: bool

    def addresses(self, core: CoreProgram) -> Ints:
        """Returns the address of each buffer of a core, in units."""
        assert core.addresses is not None, "buffers have addresses"
        return core.addresses // self.bytes_per_unit

    def elements(self, types: Ints) -> Ints:
        """Returns the units of an element of each type (see `encode_type`)."""
        return np.ones(len(types), np.int64) if self.is_float else -(-(types // 2) // 8)


def list_steps(program: PimProgram, sizes: UnitSizes) -> tuple[Ints, Ints]:
    """Returns the words of the steps after power-up, and of a sample, each with `END` after the last."""
    numbers = {core: number for number, core in enumerate(program.cores)}
    init = [
        words
        for core in program.cores.values()
        if core.init is not None
        for words in _local_words(core, core.init, numbers[core.core], sizes)
    ]
    return _joined(init), _joined(list(_sample(program, numbers, sizes)))


def _sample(program: PimProgram, numbers: Mapping[int, int], sizes: UnitSizes) -> Iterator[Sequence[int]]:
    receivers = _receivers(program, numbers, sizes)
    captures = _captures(program, numbers, sizes)
    keys: list[Ints] = []
    words: list[Sequence[int]] = []
    for core in program.cores.values():
        number, steps = numbers[core.core], core.steps
        rank = _ranks(steps)
        for i, found in enumerate(_local_words(core, steps, number, sizes)):
            form = int(steps.form[i])
            captured = captures.get((core.core, i + 1), ())
            if form == RECEIVE:
                # It happens with the send; what is captured after it comes after the message.
                entries = [*captured]
            elif form == SEND:
                entries = [[MESSAGE, *found[1:3], *receivers[int(steps.number[i])], found[3]], *captured]
            else:
                entries = [found, *captured]
            for k, entry in enumerate(entries):
                late = form == RECEIVE or (form == SEND and k > 0)
                keys.append(np.array([rank[i], 2 if late else int(form == SEND), number, len(words)]))
                words.append(entry)
    if not words:
        return
    order = np.lexsort(np.array(keys).T[::-1])
    yield from (words[k] for k in order.tolist())


def _ranks(steps: StepColumns) -> Ints:
    """Returns for each step the channel of the next message of its core, itself included."""
    is_message = (steps.form == SEND) | (steps.form == RECEIVE)
    rank = np.where(is_message, steps.number, _TOP)
    return np.minimum.accumulate(rank[::-1])[::-1]


def _local_words(core: CoreProgram, steps: StepColumns, number: int, sizes: UnitSizes) -> Iterator[list[int]]:
    """Yields the words of each step; of a message, as of a store, without the other end."""
    addresses = sizes.addresses(core)
    elements, types = steps.buffers.elements.T
    width = sizes.elements(types)
    kinds = {LOAD: LOAD_STEP, STORE: STORE_STEP}
    for i, form in enumerate(steps.form.tolist()):
        used = steps.used[steps.start[i] : steps.start[i + 1]]
        if form >= len(TRANSFERS):
            yield [FORM_STEP, form, number, int(steps.number[i]), len(used), *addresses[used].tolist()]
            continue
        buffer, (first, count) = int(used[0]), steps.span[i].tolist()
        first, count = (0, int(elements[buffer])) if first == WHOLE_BUFFER else (first, count)
        place = int(addresses[buffer]) + first * int(width[buffer])
        far = [int(steps.number[i]) // sizes.bytes_per_unit] if form in kinds else []
        yield [kinds.get(form, MESSAGE), number, place, *far, count * int(width[buffer])]


def _receivers(program: PimProgram, numbers: Mapping[int, int], sizes: UnitSizes) -> dict[int, tuple[int, int]]:
    """Returns core and address where each channel is received."""
    found: dict[int, tuple[int, int]] = {}
    for core in program.cores.values():
        receives = np.flatnonzero(core.steps.form == RECEIVE)
        chosen = core.steps.select(receives)
        for channel, words in zip(chosen.number.tolist(), _local_words(core, chosen, 0, sizes), strict=True):
            found[channel] = numbers[core.core], words[2]
    return found


def _captures(
    program: PimProgram, numbers: Mapping[int, int], sizes: UnitSizes
) -> dict[tuple[int, int], list[list[int]]]:
    """Returns the entries that copy the parts of observed tensors, by core and number of steps before."""
    found: dict[tuple[int, int], list[list[int]]] = {}
    place = 0
    for trace in program.traces:
        for region, number, step in zip(trace.regions, trace.core.tolist(), trace.step.tolist(), strict=True):
            core = program.cores[number]
            width = 1 if sizes.is_float else -(-trace.element.bits // 8)
            size = region.elements(trace.image) * width
            at = int(sizes.addresses(core)[core.steps.results(np.array([step - 1]))[0]])
            found.setdefault((number, step), []).append([CAPTURE, numbers[number], at, place, size])
            place += size
    return found


def count_captured_units(program: PimProgram, sizes: UnitSizes) -> int:
    """Returns the units of all captured tensors together."""
    widths = (1 if sizes.is_float else -(-trace.element.bits // 8) for trace in program.traces)
    return sum(
        width * sum(region.elements(trace.image) for region in trace.regions)
        for trace, width in zip(program.traces, widths, strict=True)
    )


def _joined(entries: Sequence[Sequence[int]]) -> Ints:
    return np.array([word for entry in entries for word in entry] + [END], np.int64)
