"""Writes a run as a Chrome trace (for https://ui.perfetto.dev): a process for each core, a track for each of its units.

An event is named after ONNX node, operation and instruction. If there are too many events, neighbours are joined: first
instructions of one kind with a short pause or none between them, then of one step, then any of one unit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from raptor.common.files import file_access
from raptor.common.option_spelling import spell_option
from raptor.target.isa import BY_OPCODE, Timing, Unit
from validator.simulate.analysis.instruction_nodes import Provenance
from validator.simulate.analysis.power import PARTS, make_curve_by_part, make_sample_activity, widen_window
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun

Ints = npt.NDArray[np.int64]

EVENT_LIMIT = 150_000
"""Most events of instructions in a trace; one takes about 200 bytes."""
MESSAGE_LIMIT = 50_000
COUNTER_LIMIT = 5_000
"""Most windows of power in a trace."""

_UNITS = (Unit.MATRIX, Unit.VECTOR, Unit.TRANSFER)
_PS_PER_US = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """Table of events; an event consists of the instructions order[first] to order[last - 1]. Times are in ps."""

    order: Ints
    first: Ints
    last: Ints
    start: Ints
    end: Ints


def write_chrome_trace(path: Path, machine: CycleModel, run: CycleRun, of: Provenance, window_ns: float) -> None:
    """Writes the trace of a run of one sample that has ended. Raises `UserError` if the file cannot be written.

    `window_ns`: length of the windows of power; a long run has longer ones.
    """
    with file_access.open_atomic(spell_option("trace_file"), path) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        for k, event in enumerate(_all(machine, run, of, window_ns)):
            file.write((b",\n" if k else b"") + orjson.dumps(event))
        file.write(b"\n]}\n")


def _all(machine: CycleModel, run: CycleRun, of: Provenance, window_ns: float) -> Iterator[dict[str, Any]]:
    unit = _unit_of(machine)
    yield from _tracks(machine, unit)
    yield from _spans(machine, run, of, unit)
    yield from _messages(machine, run)
    yield from _counters(machine, run, window_ns)


def _unit_of(machine: CycleModel) -> Ints:
    """Returns the index into `_UNITS` of each instruction, or -1 for scalar instructions."""
    return np.array([_UNITS.index(unit) if unit in _UNITS else -1 for unit in Unit], np.int64)[machine.unit_index]


def _tracks(machine: CycleModel, unit: Ints) -> Iterator[dict[str, Any]]:
    for i in np.flatnonzero(np.diff(machine.first)):
        name = int(machine.cores[i])
        yield {"ph": "M", "name": "process_name", "pid": name, "args": {"name": f"core {name}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": name, "args": {"sort_index": name}}
        for k in np.unique(unit[machine.first[i] : machine.first[i + 1]]):
            if k >= 0:
                yield {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": name,
                    "tid": int(k),
                    "args": {"name": str(_UNITS[int(k)])},
                }


def _spans(machine: CycleModel, run: CycleRun, of: Provenance, unit: Ints) -> Iterator[dict[str, Any]]:
    core_of, opcodes = machine.core_index, machine.opcodes
    events = _merge(run, unit, core_of, of.step_index, opcodes)
    # Groups of one core work at once with a reorder buffer; on a track one event ends before the next begins.
    lead = events.order[events.first]
    for k in range(len(lead)):
        pc = int(lead[k])
        start, end = int(events.start[k]), int(events.end[k])
        if k and unit[lead[k - 1]] == unit[pc] and core_of[lead[k - 1]] == core_of[pc]:
            start = max(start, int(events.end[k - 1]))
        count = int(events.last[k] - events.first[k])
        name = BY_OPCODE[int(opcodes[pc])].name
        yield {
            "ph": "X",
            "name": f"{of.names[of.step_index[pc]]} ({name})" if of.has_nodes else name,
            "pid": int(machine.cores[core_of[pc]]),
            "tid": int(unit[pc]),
            "ts": start / _PS_PER_US,
            "dur": max(end - start, 0) / _PS_PER_US,
            "args": {"pc": pc - int(machine.first[core_of[pc]]), "instructions": count},
        }


def _merge(run: CycleRun, unit: Ints, core_of: Ints, step: Ints, opcodes: npt.NDArray[np.int32]) -> _Events:
    """Groups the instructions of each track into about `EVENT_LIMIT` events at most."""
    pcs = np.flatnonzero(unit >= 0)
    order = pcs[np.lexsort((pcs, unit[pcs], core_of[pcs]))]
    track = core_of[order] * len(_UNITS) + unit[order]
    cuts = _changes(track) | _changes(step[order])
    with_opcode = cuts | _changes(opcodes[order])
    room = EVENT_LIMIT - int(cuts.sum())
    if room > 0:
        cuts |= _some(with_opcode & ~cuts, room)
        cuts |= _at_pauses(run.start[order], run.end[order], ~cuts, EVENT_LIMIT - int(cuts.sum()))
    else:
        cuts = _changes(track) | _some(cuts, EVENT_LIMIT)
    first = np.flatnonzero(cuts)
    last = np.append(first[1:], len(order))
    if not len(order):
        return _Events(order, first, last, first, first)
    start, end = np.minimum.reduceat(run.start[order], first), np.maximum.reduceat(run.end[order], first)
    return _Events(order, first, last, start, end)


def _at_pauses(start: Ints, end: Ints, allowed: npt.NDArray[np.bool_], limit: int) -> npt.NDArray[np.bool_]:
    """Chooses the `limit` longest pauses of a unit: true for the instruction after each. `allowed`: possible places."""
    pause = np.zeros(len(start), np.int64)
    pause[1:] = start[1:] - end[:-1]
    pause[~allowed] = 0
    longest = np.argsort(-pause, kind="stable")[: max(limit, 0)]
    cuts = np.zeros(len(start), np.bool_)
    cuts[longest] = pause[longest] > 0
    return cuts


def _some(chosen: npt.NDArray[np.bool_], limit: int) -> npt.NDArray[np.bool_]:
    """Keeps every second, third, ... of the chosen places, so that no more than `limit` are left."""
    step = max(1, -(-int(chosen.sum()) // limit))
    return chosen & (np.cumsum(chosen) % step == 0)


def _changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Marks the values that differ from the one before them; the first is marked too."""
    changed = np.ones(len(values), np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return changed


def _messages(machine: CycleModel, run: CycleRun) -> Iterator[dict[str, Any]]:
    """Yields an arrow from each send to its receive, and from each token to the wait that it ended."""
    waits = machine.timing_mask(Timing.RECEIVE, Timing.WAIT) & (run.cause >= 0)
    arrows = np.flatnonzero(waits)
    core_of = machine.core_index
    for k, pc in enumerate(arrows[:: max(1, -(-len(arrows) // MESSAGE_LIMIT))]):
        sender = int(run.cause[pc])
        common = {"name": "message", "cat": "message", "id": k, "tid": _UNITS.index(Unit.TRANSFER)}
        start, end = int(run.start[sender]), int(run.end[pc])
        yield {"ph": "s", "pid": int(machine.cores[core_of[sender]]), "ts": start / _PS_PER_US, **common}
        yield {"ph": "f", "bp": "e", "pid": int(machine.cores[core_of[pc]]), "ts": end / _PS_PER_US, **common}


def _counters(machine: CycleModel, run: CycleRun, window_ns: float) -> Iterator[dict[str, Any]]:
    """Yields the watts of each part at the begin of each window, as a process of its own, and 0 at the end."""
    active = make_sample_activity(machine, run)
    if active.time_ns <= 0:
        return
    curve = make_curve_by_part(active, widen_window(active.time_ns, window_ns, COUNTER_LIMIT))
    pid = int(machine.cores.max()) + 1
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "chip"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -1}}
    used = [(part, row) for part, row in zip(PARTS, curve.watts, strict=True) if row.any()]
    for k, ns in enumerate(curve.edges_ns.tolist()):
        watts = {part: float(row[k]) if k < len(row) else 0.0 for part, row in used}
        yield {"ph": "C", "name": "power (W)", "pid": pid, "ts": ns / 1000, "args": watts}
