"""Compiles a model in rounds: cuts it by a plan, compiles each piece for the whole chip, lists the crossbar writes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from raptor.common.errors import CapacityError, UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import CutMethod
from raptor.compiler.compilation import CompileRequest
from raptor.compiler.rounds.crossbar_writes import find_steady_writes, list_crossbar_writes, list_groups
from raptor.compiler.rounds.layer_slices import slice_layers
from raptor.compiler.rounds.range_estimate import RangeEstimates
from raptor.compiler.rounds.round_plan import MethodResult, RoundPlan, WaitingMemory, find_too_large, plan_rounds
from raptor.frontend import LoadedModel
from raptor.frontend.segments.cut_model import SegmentedModel
from raptor.frontend.segments.cut_points import ModelSource, ModelUnits, divide_into_units
from raptor.options import ModelInputs
from raptor.output import files, round_files
from raptor.output.writer import ProgramArtifacts
from raptor.target.arch import Target
from raptor.target.chip_elements import bytes_of
from raptor.target.device_file import CrossbarWrite, DeviceFile

MOST_SLICINGS = 4
"""Most times that the slices of a layer are sliced again until each of them fits the chip."""

CompilePiece = Callable[[LoadedModel, int, Target], ProgramArtifacts]
"""Function that compiles a piece, given its model, its number and its target."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedModel:
    """A model as units. `split`: sliced layers. `cuts`: units before which it may be cut. `method`: see `CutMethod`."""

    ranges: RangeEstimates
    split: tuple[str, ...]
    cuts: set[int]
    memory: WaitingMemory
    batch: int
    method: CutMethod

    def plan(self) -> RoundPlan:
        """Makes the plan by `method`, without the ranges and cuts that were refused so far."""
        return plan_rounds(self.ranges, self.cuts, self.batch, self.memory, self.method)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRounds:
    """A model compiled in rounds. `cut`: its pieces as models. `programs`: the program of each piece."""

    cut: SegmentedModel
    programs: tuple[ProgramArtifacts, ...]
    plan: RoundPlan
    planned: PlannedModel


def divide_model(source: ModelSource, request: CompileRequest) -> PlannedModel:
    """Divides a model into units and slices the layers that are too large for the chip. Raises `UserError`."""
    arch, options = request.arch, request.options
    units, split = divide_into_units(source, options.inputs, request.refusal_function), dict[str, None]()
    for _ in range(MOST_SLICINGS):
        ranges = _ranges(units, request)
        large = find_too_large(ranges, units.cuts)
        slicer = slice_layers(units, large, arch) if large else None
        if slicer is None:
            break
        split |= dict.fromkeys(units.unit_name(unit).split("/part")[0] for unit in large)
        units = _with_interface(divide_into_units(slicer.proto, ModelInputs(), request.refusal_function), units)
    else:
        ranges = _ranges(units, request)
    memory = arch.memory
    limit = memory.size_bytes if memory.size_given else None

    @cache
    def needed(first: int, last: int) -> int:
        return sum(_size_bytes(units, name, arch) for name in units.live_tensors(first, last))

    found = WaitingMemory(needed, limit)
    return PlannedModel(ranges, tuple(split), set(units.cuts), found, options.rounds.batch, options.rounds.cuts)


def _with_interface(units: ModelUnits, original: ModelUnits) -> ModelUnits:
    """Gives a sliced model the name, the file and the interface of the original."""
    first = original.asked
    units.cutter.interface = original.cutter.interface
    units.cutter.asked = replace(
        units.asked, name=first.name, onnx_bytes=first.onnx_bytes, notes=first.notes, constants=first.constants
    )
    return units


def _ranges(units: ModelUnits, request: CompileRequest) -> RangeEstimates:
    mapping, batch = request.options.mapping, request.options.rounds.batch
    goal = "writes" if mapping.optimize == "writes" else "time"
    return RangeEstimates(units, request.arch, _written(request), mapping.mapping, request.requantising, batch, goal)


def _written(request: CompileRequest) -> DeviceFile:
    assert request.device is not None, "rounds are asked for"
    return request.device


def _size_bytes(units: ModelUnits, name: str, arch: Target) -> int:
    elements = 1
    for size in units.shape(name):
        elements *= size
    return elements * (arch.element_bytes if units.is_float(name) else bytes_of(8))


def compile_rounds(source: ModelSource, request: CompileRequest, compile_one: CompilePiece) -> CompiledRounds:
    """Compiles a model in rounds. A piece that cannot be compiled after all is left out of the next plan.

    Raises `UserError` if no plan is left.
    """
    found, programs = divide_model(source, request), dict[tuple[int, int, int], ProgramArtifacts]()
    while True:
        plan = found.plan()
        cut = found.ranges.units.cut_before(plan.cuts)
        if isinstance(cut, int):
            _forbid_cuts(found, plan, cut)
            continue
        ends = (*plan.cuts, len(found.ranges.units.nodes))
        if all(
            _compile_piece(found, programs, (a, b), plan.ways[k].cores, cut, k, compile_one)
            for k, (a, b) in enumerate(zip((0, *plan.cuts), ends, strict=True))
        ):
            made = tuple(programs[a, b, way.cores] for a, b, way in zip((0, *plan.cuts), ends, plan.ways, strict=True))
            return CompiledRounds(cut, made, plan, found)


def _forbid_cuts(found: PlannedModel, plan: RoundPlan, piece: int) -> None:
    """Forbids the cuts at both ends of a piece that the front end refuses. Raises `UserError` if none is left."""
    around = {0, *plan.cuts, len(found.ranges.units.nodes)}
    ends = sorted(around)[piece : piece + 2]
    if not found.cuts.intersection(ends):
        raise UserError(f"{found.ranges.units.unit_name(0)}: the model cannot be cut into rounds")
    found.cuts.difference_update(ends)


def _compile_piece(
    found: PlannedModel,
    programs: dict[tuple[int, int, int], ProgramArtifacts],
    ends: tuple[int, int],
    cores: int,
    cut: SegmentedModel,
    number: int,
    compile_one: CompilePiece,
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
class CompiledRound:
    """A compiled round. `path`: its directory. `waits`: bytes of each tensor in global memory during the round."""

    path: str
    program: ProgramArtifacts
    waits: Mapping[str, int]


def make_round_list(
    found: Sequence[CompiledRound], done: Sequence[CompiledRounds], request: CompileRequest
) -> round_files.RoundList:
    """Makes `rounds.json`. Raises `UserError` if what waits does not fit into global memory."""
    arch, device = request.arch, _written(request)
    written = find_steady_writes([list_groups(one.program) for one in found])
    return round_files.RoundList(
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


def _round(one: CompiledRound, writes: tuple[files.GroupWrite, ...], request: CompileRequest) -> round_files.RoundEntry:
    arch, costs, cells = request.arch, _written(request).write, sum(w.cells for w in writes)
    return round_files.RoundEntry(
        path=one.path,
        cores=one.program.report.cores_used,
        writes=writes,
        write_ns=costs.all_ns(list_crossbar_writes(writes, arch), arch.cell_bits),
        write_pj=None if costs.pj_per_cell is None else costs.pj_per_cell * cells,
        waits=tuple(one.waits),
        memory_bytes=_memory_bytes(one, arch, request.options.rounds.batch),
    )


def _memory_bytes(one: CompiledRound, arch: Target, batch: int) -> int:
    """Returns the bytes of global memory in a round: constants, plus waiting tensors of all samples of the batch."""
    constants = one.program.memory.constants.elements * one.program.memory.element_bytes
    needed = constants + batch * sum(one.waits.values())
    if arch.memory.size_given and needed > arch.memory.size_bytes:
        raise UserError(
            f"{spell_option('batch', batch)}: {one.path} needs {needed:,} bytes of global memory, "
            f"{constants:,} of them for constants; the chip has {arch.memory.size_bytes:,}; "
            f"try a smaller {spell_option('batch')} or a larger global_memory_config.memory_size"
        )
    return needed


def _cuts(done: CompiledRounds) -> Iterator[round_files.RoundCut]:
    units, arch = done.planned.ranges.units, done.planned.ranges.arch
    for reason in done.plan.reasons:
        yield round_files.RoundCut(
            before=units.unit_name(reason.cut),
            waiting_bytes=sum(_size_bytes(units, name, arch) for name in units.crossing_tensors(reason.cut)),
            apart_ns=reason.apart_ns,
            joined_ns=reason.joined_ns,
        )


def _alternative(each: tuple[MethodResult, ...]) -> round_files.CutAlternative:
    """Returns the record of a cutting method. `each`: its result for each part of the model between host segments."""
    times = [one.batch_ns for one in each if one.batch_ns is not None]
    return round_files.CutAlternative(
        name=each[0].name,
        rounds=sum(one.rounds for one in each),
        batch_ns=sum(times) if len(times) == len(each) else None,
    )


def list_waiting_tensors(done: CompiledRounds) -> Iterator[dict[str, int]]:
    """Yields for each round the bytes of each tensor in global memory: inputs, results, tensors for later rounds."""
    units, arch = done.planned.ranges.units, done.planned.ranges.arch
    cuts = (0, *done.plan.cuts, len(units.nodes))
    for a, b in pairwise(cuts):
        yield {name: _size_bytes(units, name, arch) for name in units.live_tensors(a, b)}


def describe_rounds(needed: int, arch: Target, device: DeviceFile) -> str:
    """Describes the cost of rounds for `needed` crossbars, for the error about a chip that is too small."""
    rounds = -(-needed // (arch.core_count * arch.xbars_per_core))
    cells = arch.xbar_rows * arch.xbar_cols
    each = [CrossbarWrite(k % arch.core_count, arch.xbar_rows, cells) for k in range(needed)]
    writing_ms = device.write.all_ns(each, arch.cell_bits) / 1e6
    return (
        f"{spell_option('rounds', True)} ({rounds} or more, which take {writing_ms:.3g} ms to write with {device.name})"
    )
