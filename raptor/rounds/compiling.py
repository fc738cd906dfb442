"""Compiles a model in rounds: cuts it by a plan, compiles each piece for the whole chip, lists the crossbar writes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from raptor.common.errors import CapacityError, UserError
from raptor.common.option_values import Cuts
from raptor.common.spelling import option
from raptor.compiler import CompileRequest
from raptor.frontend import Model
from raptor.frontend.segments.cutting import Cut
from raptor.frontend.segments.units import ModelSource, Units, units_of
from raptor.options import ModelInputs
from raptor.output import files, round_files
from raptor.output.writer import Artifacts
from raptor.rounds.plan import Alternative, Memory, Plan, plan_rounds, too_large
from raptor.rounds.ranges import Ranges
from raptor.rounds.slices import sliced
from raptor.rounds.writes import crossbars, groups_of, steady_writes
from raptor.target.arch import Target
from raptor.target.device_file import CrossbarWrite, DeviceFile
from raptor.target.element import bytes_of

MOST_SLICINGS = 4
"""Most times that the slices of a layer are sliced again until each of them fits the chip."""

Compile = Callable[[Model, int, Target], Artifacts]
"""Function that compiles a piece, given its model, its number and its target."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A model as units. `split`: sliced layers. `cuts`: units before which it may be cut. `method`: see `Cuts`."""

    ranges: Ranges
    split: tuple[str, ...]
    cuts: set[int]
    memory: Memory
    batch: int
    method: Cuts

    def plan(self) -> Plan:
        """Makes the plan by `method`, without the ranges and cuts that were refused so far."""
        return plan_rounds(self.ranges, self.cuts, self.batch, self.memory, self.method)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A model compiled in rounds. `cut`: its pieces as models. `programs`: the program of each piece."""

    cut: Cut
    programs: tuple[Artifacts, ...]
    plan: Plan
    planned: Planned


def planned(source: ModelSource, request: CompileRequest) -> Planned:
    """Divides a model into units and slices the layers that are too large for the chip. Raises `UserError`."""
    arch, options = request.arch, request.options
    units, split = units_of(source, options.inputs, request.refuse), dict[str, None]()
    for _ in range(MOST_SLICINGS):
        ranges = _ranges(units, request)
        large = too_large(ranges, units.cuts)
        slicer = sliced(units, large, arch) if large else None
        if slicer is None:
            break
        split |= dict.fromkeys(units.name(unit).split("/part")[0] for unit in large)
        units = _with_interface(units_of(slicer.proto, ModelInputs(), request.refuse), units)
    else:
        ranges = _ranges(units, request)
    memory = arch.memory
    limit = memory.size_bytes if memory.size_given else None

    @cache
    def needed(first: int, last: int) -> int:
        return sum(_size_bytes(units, name, arch) for name in units.waiting(first, last))

    found = Memory(needed, limit)
    return Planned(ranges, tuple(split), set(units.cuts), found, options.rounds.batch, options.rounds.cuts)


def _with_interface(units: Units, original: Units) -> Units:
    """Gives a sliced model the name, the file and the interface of the original."""
    first = original.asked
    units.cutter.own = original.cutter.own
    units.cutter.asked = replace(
        units.asked, name=first.name, onnx_bytes=first.onnx_bytes, notes=first.notes, constants=first.constants
    )
    return units


def _ranges(units: Units, request: CompileRequest) -> Ranges:
    mapping, batch = request.options.mapping, request.options.rounds.batch
    goal = "writes" if mapping.optimize == "writes" else "time"
    return Ranges(units, request.arch, _written(request), mapping.mapping, request.requantising, batch, goal)


def _written(request: CompileRequest) -> DeviceFile:
    assert request.device is not None, "rounds are asked for"
    return request.device


def _size_bytes(units: Units, name: str, arch: Target) -> int:
    elements = 1
    for size in units.shape(name):
        elements *= size
    return elements * (arch.element_bytes if units.is_float(name) else bytes_of(8))


def compile_rounds(source: ModelSource, request: CompileRequest, compile_one: Compile) -> Compiled:
    """Compiles a model in rounds. A piece that cannot be compiled after all is left out of the next plan.

    Raises `UserError` if no plan is left.
    """
    found, programs = planned(source, request), dict[tuple[int, int, int], Artifacts]()
    while True:
        plan = found.plan()
        cut = found.ranges.units.into(plan.cuts)
        if isinstance(cut, int):
            _forbid_cuts(found, plan, cut)
            continue
        ends = (*plan.cuts, len(found.ranges.units.nodes))
        if all(
            _compile_piece(found, programs, (a, b), plan.ways[k].cores, cut, k, compile_one)
            for k, (a, b) in enumerate(zip((0, *plan.cuts), ends, strict=True))
        ):
            made = tuple(programs[a, b, way.cores] for a, b, way in zip((0, *plan.cuts), ends, plan.ways, strict=True))
            return Compiled(cut, made, plan, found)


def _forbid_cuts(found: Planned, plan: Plan, piece: int) -> None:
    """Forbids the cuts at both ends of a piece that the front end refuses. Raises `UserError` if none is left."""
    around = {0, *plan.cuts, len(found.ranges.units.nodes)}
    ends = sorted(around)[piece : piece + 2]
    if not found.cuts.intersection(ends):
        raise UserError(f"{found.ranges.units.name(0)}: the model cannot be cut into rounds")
    found.cuts.difference_update(ends)


def _compile_piece(
    found: Planned,
    programs: dict[tuple[int, int, int], Artifacts],
    ends: tuple[int, int],
    cores: int,
    cut: Cut,
    number: int,
    compile_one: Compile,
) -> bool:
    """Compiles a piece unless it is in `programs`. Returns False and records the refusal if it does not fit."""
    model = cut.segments[number].model
    assert model is not None, "every piece is for the chip"
    if (*ends, cores) in programs:
        return True
    try:
        programs[*ends, cores] = compile_one(model, number, found.ranges.arch.with_places(range(cores)))
    except CapacityError as error:
        found.ranges.refuse(*ends, error)
        return False
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """A compiled round. `path`: its directory. `waits`: bytes of each tensor in global memory during the round."""

    path: str
    program: Artifacts
    waits: Mapping[str, int]


def rounds_of(found: Sequence[Round], done: Sequence[Compiled], request: CompileRequest) -> round_files.Rounds:
    """Makes `rounds.json`. Raises `UserError` if what waits does not fit into global memory."""
    arch, device = request.arch, _written(request)
    written = steady_writes([groups_of(one.program) for one in found])
    return round_files.Rounds(
        batch=request.options.rounds.batch,
        device=device.name,
        source=device.source,
        cells=arch.core_count * arch.xbars_per_core * arch.xbar_rows * arch.xbar_cols,
        rounds=tuple(_round(one, writes, request) for one, writes in zip(found, written, strict=True)),
        split=tuple(name for one in done for name in one.planned.split),
        estimated_ns=sum(one.plan.batch_ns for one in done),
        cuts=tuple(cut for one in done for cut in _cuts(one)),
        alternatives=tuple(map(_alternative, zip(*(one.plan.alternatives for one in done), strict=True))),
    )


def _round(one: Round, writes: tuple[files.GroupWrite, ...], request: CompileRequest) -> round_files.Round:
    arch, costs, cells = request.arch, _written(request).write, sum(w.cells for w in writes)
    return round_files.Round(
        path=one.path,
        cores=len(one.program.records),
        writes=writes,
        write_ns=costs.all_ns(crossbars(writes, arch), arch.cell_bits),
        write_pj=None if costs.pj_per_cell is None else costs.pj_per_cell * cells,
        waits=tuple(one.waits),
        memory_bytes=_memory_bytes(one, arch, request.options.rounds.batch),
    )


def _memory_bytes(one: Round, arch: Target, batch: int) -> int:
    """Returns the bytes of global memory in a round: constants, plus waiting tensors of all samples of the batch."""
    constants = one.program.memory.constants.elements * one.program.memory.element_bytes
    needed = constants + batch * sum(one.waits.values())
    if arch.memory.size_given and needed > arch.memory.size_bytes:
        raise UserError(
            f"{option('batch', batch)}: {one.path} needs {needed:,} bytes of global memory, {constants:,} of them for "
            f"constants; the chip has {arch.memory.size_bytes:,}; try a smaller {option('batch')} or a larger "
            "global_memory_config.memory_size"
        )
    return needed


def _cuts(done: Compiled) -> Iterator[round_files.RoundCut]:
    units, arch = done.planned.ranges.units, done.planned.ranges.arch
    for reason in done.plan.reasons:
        yield round_files.RoundCut(
            before=units.name(reason.cut),
            waiting_bytes=sum(_size_bytes(units, name, arch) for name in units.crossing(reason.cut)),
            apart_ns=reason.apart_ns,
            joined_ns=reason.joined_ns,
        )


def _alternative(each: tuple[Alternative, ...]) -> round_files.CutAlternative:
    """Returns the record of a cutting method. `each`: its result for each part of the model between host segments."""
    times = [one.batch_ns for one in each if one.batch_ns is not None]
    return round_files.CutAlternative(
        name=each[0].name,
        rounds=sum(one.rounds for one in each),
        batch_ns=sum(times) if len(times) == len(each) else None,
    )


def waits_of(done: Compiled) -> Iterator[dict[str, int]]:
    """Yields for each round the bytes of each tensor in global memory: inputs, results, tensors for later rounds."""
    units, arch = done.planned.ranges.units, done.planned.ranges.arch
    cuts = (0, *done.plan.cuts, len(units.nodes))
    for a, b in pairwise(cuts):
        yield {name: _size_bytes(units, name, arch) for name in units.waiting(a, b)}


def in_words(needed: int, arch: Target, device: DeviceFile) -> str:
    """Describes the cost of rounds for `needed` crossbars, for the error about a chip that is too small."""
    rounds = -(-needed // (arch.core_count * arch.xbars_per_core))
    cells = arch.xbar_rows * arch.xbar_cols
    each = [CrossbarWrite(k % arch.core_count, arch.xbar_rows, cells) for k in range(needed)]
    writing_ms = device.write.all_ns(each, arch.cell_bits) / 1e6
    return f"{option('rounds', True)} ({rounds} or more, which take {writing_ms:.3g} ms to write with {device.name})"
