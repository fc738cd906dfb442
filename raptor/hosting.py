"""Compiles a model in segments: programs for the chip, and ONNX models for the host.

Segments of the chip share its cores, or take turns on all of them, as rounds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raptor import pipeline
from raptor.common.errors import CapacityError, UnsupportedError, UserError
from raptor.common.options import DEFAULT_DEVICE, Requant
from raptor.common.spelling import option
from raptor.compiler import Choice, check_driver, compile_loaded, compile_model, extension_fault
from raptor.driver import Driver
from raptor.frontend import Model
from raptor.frontend.fixed import Fixed
from raptor.frontend.segments import Cut, Segment, Wishes, advice, cut
from raptor.frontend.segments.cutting import Crossing, Refuse
from raptor.frontend.segments.pieces import known_shape
from raptor.graph.macs import count_macs
from raptor.mapping.choose_recipes import Requantising
from raptor.mapping.strategies import STRATEGIES
from raptor.output import files
from raptor.output.compile_report import CompileReport, CoreReport
from raptor.output.writer import Artifacts, HostedArtifacts, SegmentArtifacts
from raptor.rounds.compiling import Compiled, Job, Round, Wanted, compile_rounds, in_words, rounds_of, waits_of
from raptor.target.arch import Target
from raptor.target.device_file import DeviceFile, load_device

if TYPE_CHECKING:
    import onnx

_ELEMENT_BYTES = {"bool": 1, "float": 4, "double": 8, "float16": 2, "bfloat16": 2} | {
    f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Bytes of an element in numpy, by onnxruntime's name of the type."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a compilation: the arguments of `raptor.compile`, checked."""

    arch: Target
    fixed: Fixed
    base_isa: bool
    requant: Requant | None
    choice: Choice
    options: Mapping[str, Any]

    @property
    def refuse(self) -> Refuse:
        """Says why an operator may not be on the chip."""
        return extension_fault if self.base_isa else lambda _: None


def compile_any(
    source: "str | Path | onnx.ModelProto",
    request: Request,
    driver: Driver,
    wishes: Wishes,
    rounds: Wanted | None = None,
) -> Artifacts | HostedArtifacts:
    """Compiles a model, in segments where the user wants nodes on the host or the chip cannot compute some.

    A model that the chip computes alone is compiled as without `wishes`, and one that fits the chip as without
    `rounds`.
    """
    check_driver(driver, request.arch)
    if not wishes.by_name:
        try:
            return compile_whole(source, request, driver)
        except CapacityError as error:
            if rounds is None:
                raise _with_rounds(error, request) from None
            return _compile_rounds(source, request, driver, rounds)
        except UserError as error:
            if not wishes.needed:
                raise _advised(error, source, request) from None
    found = driver.timed("cut", cut, source, request.fixed, wishes, request.refuse)
    _check_requant(found, request.requant)
    alone = _alone(found)
    if alone is not None:
        return _compile_one(alone, request, driver)
    return _compile_segments(found, request, driver, wishes, rounds)


def _alone(found: Cut) -> Model | None:
    """Returns the model if all of it is one segment of the chip, as a program that is nothing else; else None."""
    first = found.segments[0]
    reads, makes = ({t.name for t in tensors} for tensors in (found.inputs, found.outputs))
    if len(found.segments) > 1 or first.model is None or set(first.reads) != reads or set(first.makes) != makes:
        return None
    return replace(
        first.model,
        name=found.name,
        onnx_bytes=found.onnx_bytes,
        notes=(*found.notes, *first.model.notes),
        constants=found.constants,
    )


def compile_whole(source: "str | Path | onnx.ModelProto", request: Request, driver: Driver) -> Artifacts:
    """Compiles a model for the chip alone."""
    fixed = request.fixed
    return compile_model(
        source,
        request.arch,
        driver,
        shapes=fixed.shapes,
        dims=fixed.dims,
        constants=fixed.constants,
        base_isa=request.base_isa,
        requant=request.requant,
        choice=request.choice,
        options=request.options,
    )


def _advised(error: UserError, source: "str | Path | onnx.ModelProto", request: Request) -> UserError:
    """Returns the error; one about operators with a sentence on what would run on the host, if that helps."""
    found = advice(source, request.fixed, request.refuse) if isinstance(error, UnsupportedError) else ""
    if not found or not isinstance(error, UnsupportedError):
        return error
    return UnsupportedError(error.nodes, f"{option('host', True)} {found}")


def _compile_segments(
    found: Cut, request: Request, driver: Driver, wishes: Wishes, rounds: Wanted | None
) -> HostedArtifacts:
    _check_one_mapping(found, request.choice)
    options = {**request.options, "host": wishes.needed, "host_ops": list(wishes.ops), "host_nodes": list(wishes.nodes)}
    request = replace(request, options=options)
    try:
        chips = iter(_shared(found.on_chip, request))
    except CapacityError:
        if rounds is None:
            raise
        return _rounds_beside_host(found, request, driver, rounds)
    segments: list[SegmentArtifacts] = []
    for number, segment in enumerate(found.segments):
        artifacts = None
        if segment.model is not None:
            artifacts = _compile_part(segment.model, replace(request, arch=next(chips)), _driver_of(driver, number))
        segments.append(_contents(segment, artifacts))
    report = _combined([s.artifacts.report for s in segments if s.artifacts], found, request)
    return _hosted(found, (), segments, request, report)


def _hosted(
    found: Cut,
    inner: Sequence[Cut],
    segments: Sequence[SegmentArtifacts],
    request: Request,
    report: CompileReport,
    rounds: files.Rounds | None = None,
    device: DeviceFile | None = None,
) -> HostedArtifacts:
    """Makes the contents of all files. `inner`: cuts of segments, whose crossings are added."""
    constants = {files.CONSTANT_INPUTS: {n: v.tolist() for n, v in found.constants.items()}}
    crossings = {c.name: c for cut in (found, *inner) for c in cut.crossings}
    return HostedArtifacts(
        name=found.name,
        options={**request.options, **constants},
        inputs=tuple(map(_crossing, found.inputs)),
        outputs=tuple(map(_crossing, found.outputs)),
        crossings=tuple(map(_crossing, crossings.values())),
        segments=tuple(segments),
        host_nodes=tuple(files.HostNode(node=n.node, op_type=n.op_type, reason=n.reason) for n in found.host),
        report=report,
        onnx_bytes=found.onnx_bytes,
        rounds=rounds,
        device=device,
    )


# Rounds: all cores for each piece of the model, one piece after another.


def _compile_rounds(
    source: "str | Path | onnx.ModelProto", request: Request, driver: Driver, wanted: Wanted
) -> HostedArtifacts:
    """Compiles a model of the chip alone that is too large for it."""
    _check_rounds(request, driver)
    request = replace(request, options=_with_batch(request.options, wanted))
    done = _in_rounds(source, request.fixed, request, driver, wanted, 0)
    return _of_rounds(done.cut, [done], request, wanted)


def _rounds_beside_host(found: Cut, request: Request, driver: Driver, wanted: Wanted) -> HostedArtifacts:
    """Compiles a model with segments on the host: those of the chip in rounds, each as a model of its own."""
    _check_rounds(request, driver)
    request, parts, first = (
        replace(request, options=_with_batch(request.options, wanted)),
        list[Segment | Compiled](),
        0,
    )
    for segment in found.segments:
        if segment.model is None:
            parts.append(segment)
            first += 1
            continue
        done = _in_rounds(_proto(segment.onnx_bytes), Fixed(), request, driver, wanted, first)
        parts.append(done)
        first += len(done.programs)
    return _of_rounds(found, parts, request, wanted)


def _in_rounds(
    source: "str | Path | onnx.ModelProto", fixed: Fixed, request: Request, driver: Driver, wanted: Wanted, first: int
) -> Compiled:
    """Compiles a model in rounds. `first`: the number of its first segment."""

    def one(model: Model, number: int, arch: Target) -> Artifacts:
        return _compile_part(model, replace(request, arch=arch), _driver_of(driver, first + number))

    job = _job(source, fixed, request, wanted)
    return driver.timed("cut", compile_rounds, job, one)


def _proto(onnx_bytes: bytes) -> "onnx.ModelProto":
    from onnx import ModelProto

    return ModelProto.FromString(onnx_bytes)


def _job(source: "str | Path | onnx.ModelProto", fixed: Fixed, request: Request, wanted: Wanted) -> Job:
    requantising = Requantising(request.requant or "exact")
    return Job(source, fixed, request.arch, wanted, request.choice.strategy, requantising, request.refuse)


def _of_rounds(found: Cut, parts: Sequence[Segment | Compiled], request: Request, wanted: Wanted) -> HostedArtifacts:
    """Makes the contents of all files from segments of the host and of models in rounds."""
    segments, rounds = list[SegmentArtifacts](), list[Round]()
    done = [part for part in parts if isinstance(part, Compiled)]
    for part in parts:
        if isinstance(part, Segment):
            segments.append(_contents(part, None))
            continue
        for number, (program, waits) in enumerate(zip(part.programs, waits_of(part), strict=True), len(segments)):
            rounds.append(Round(files.segment_name(number, "chip"), program, waits))
        programs = (*part.programs, *[None] * (len(part.cut.segments) - len(part.programs)))
        segments += map(_contents, part.cut.segments, programs)
    programs = [s.artifacts.report for s in segments if s.artifacts]
    report = _taking_turns(_combined(programs, found, request))
    listed = rounds_of(rounds, done, request.arch, wanted)
    return _hosted(found, [one.cut for one in done], segments, request, report, listed, wanted.device)


def _check_rounds(request: Request, driver: Driver) -> None:
    """Raises `UserError` for options that are of one program."""
    choice = request.choice
    for keyword, given in (
        ("mapping", choice.strategy not in STRATEGIES),
        ("emit_mapping", choice.emit is not None),
        ("emit_ops", choice.emit_ops is not None),
        ("stop_after", driver.stop_after is not None),
    ):
        if given:
            raise UserError(f"{option(keyword)}: of one program, but each round of the model is a program of its own")


def _with_batch(options: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    return {**options, "rounds": True, "batch": wanted.batch, "device": wanted.device.name, "cuts": wanted.cuts}


def _with_rounds(error: CapacityError, request: Request) -> CapacityError:
    """Returns the error with what rounds would take, if they help."""
    if error.crossbars is None or request.choice.strategy not in STRATEGIES:
        return error
    found = in_words(error.crossbars, request.arch, load_device(DEFAULT_DEVICE))
    sizes = error.resource, error.needed, error.available
    more = error.crossbars
    return CapacityError(*sizes, where=error.where, levers=error.levers, without=found, crossbars=more)


def _check_one_mapping(found: Cut, choice: Choice) -> None:
    """Raises `UserError` for a mapping file or a flow, which is of one program, where there are several."""
    count = len(found.on_chip)
    for keyword, given in (("mapping", choice.strategy not in STRATEGIES), ("emit_mapping", choice.emit is not None)):
        if given and count != 1:
            raise UserError(
                f"{option(keyword)}: a stored mapping is of one program, but {count} segments of the model are for "
                "the chip; each has its own mapping.json in the output"
            )
    if choice.emit_ops is not None and count != 1:
        raise UserError(
            f"{option('emit_ops')}: a flow is of one program, but {count} segments of the model are for the chip"
        )


def _check_requant(found: Cut, requant: Requant | None) -> None:
    """Raises `UserError` for an option that would act on nothing."""
    if requant is not None and all(s.model.graph.numbers == "float" for s in found.on_chip if s.model):
        raise UserError(f"{option('requant', requant)}: no segment of the chip has integers, which are requantised")


def _driver_of(driver: Driver, number: int) -> Driver:
    """Returns the driver of one segment, which dumps into a directory of its own, and keeps nothing to check later."""
    dump = driver.dump and driver.dump / files.segment_name(number, "chip")
    return replace(driver, dump=dump, done=[], beside=None)


def _compile_one(model: Model, request: Request, driver: Driver) -> Artifacts:
    return compile_loaded(
        model,
        request.arch,
        driver,
        base_isa=request.base_isa,
        requant=None if model.graph.numbers == "float" else request.requant,
        choice=request.choice,
        options=request.options,
    )


def _compile_part(model: Model, request: Request, driver: Driver) -> Artifacts:
    """Compiles a segment. Its own model has no open sizes, and other inputs than those whose shapes were given."""
    return _compile_one(model, replace(request, options={**request.options, "shapes": {}, "dims": {}}), driver)


def _contents(segment: Segment, artifacts: Artifacts | None) -> SegmentArtifacts:
    return SegmentArtifacts(
        segment.kind,
        segment.nodes,
        segment.reads,
        segment.makes,
        segment.macs,
        segment.onnx_bytes,
        artifacts,
        segment.uncounted,
    )


def _crossing(tensor: Crossing) -> files.Crossing:
    width = _ELEMENT_BYTES.get(tensor.type.removeprefix("tensor(").removesuffix(")"))
    shape = known_shape(tensor.shape)
    return files.Crossing(
        name=tensor.name,
        type=tensor.type,
        shape=tensor.shape or (),
        size_bytes=None if shape is None or width is None else math.prod(shape) * width,
    )


# Segments of the chip hold their weights all the time, so each has cores of its own.


def _shared(segments: Sequence[Segment], request: Request) -> list[Target]:
    """Returns the target of each segment: all cores for one alone, else cores by need first, then by work.

    Raises `CapacityError` if the chip has too few cores for all together.
    """
    arch = request.arch
    if len(segments) < 2:
        return [arch] * len(segments)
    models = [s.model for s in segments if s.model is not None]
    needs = [least_cores(model, request) for model in models]
    if sum(needs) > arch.core_count:
        raise CapacityError(
            "cores",
            sum(needs),
            arch.core_count,
            where=f"{len(segments)} segments, which share the chip",
            levers=(option("cores", sum(needs)), option("xbars_per_core"), "fewer segments: more nodes on the host"),
        )
    counts = share_out(arch.core_count, needs, [sum(count_macs(n, m.graph) for n in m.graph.nodes) for m in models])
    ends = np.cumsum(counts).tolist()
    return [arch.with_places(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]


def least_cores(model: Model, request: Request) -> int:
    """Returns the fewest cores on which a model fits. Raises `CapacityError` if it does not fit the chip at all."""
    arch = request.arch
    graph = pipeline.prepare(model.graph, arch, Requantising(request.requant or "exact"))
    strategy = STRATEGIES.get(request.choice.strategy, STRATEGIES["raptor"])
    count = 1
    while True:
        try:
            strategy(graph, arch.with_places(range(count)))
        except CapacityError as error:
            if error.resource != "cores" or not count < error.needed <= arch.core_count:
                raise
            count = error.needed
        else:
            return count


def share_out(cores: int, needs: Sequence[int], work: Sequence[int]) -> list[int]:
    """Returns the cores of each segment: what it needs, and of the others a part as large as its part of the work."""
    free, total = cores - sum(needs), sum(work)
    if not total:
        return list(needs)
    counts = [need + free * one // total for need, one in zip(needs, work, strict=True)]
    busiest = max(range(len(counts)), key=lambda k: work[k])
    counts[busiest] += cores - sum(counts)
    return counts


def _taking_turns(report: CompileReport) -> CompileReport:
    """Returns the report of programs that use the chip one after another: of a core, the round that needs most."""
    cores: dict[int, CoreReport] = {}
    for core in report.cores:
        known = cores.get(core.core)
        cores[core.core] = core if known is None else _fuller(known, core)
    found = tuple(cores[core] for core in sorted(cores))
    update = {"cores": found, "cores_used": len(found), "xbars_used": sum(core.xbars for core in found)}
    return report.model_copy(update=update)


def _fuller(one: CoreReport, other: CoreReport) -> CoreReport:
    counts = Counter(one.instructions) + Counter(other.instructions)
    return CoreReport(
        core=one.core,
        xbars=max(one.xbars, other.xbars),
        local_bytes=max(one.local_bytes, other.local_bytes),
        instructions=dict(sorted(counts.items())),
    )


def _combined(reports: Sequence[CompileReport], found: Cut, request: Request) -> CompileReport:
    """Returns one report of all programs. Their cores are different ones, so that everything adds up."""
    arch = request.arch
    instructions: dict[str, int] = {}
    for name, count in (item for r in reports for item in r.instructions.items()):
        instructions[name] = instructions.get(name, 0) + count
    return CompileReport(
        strategy=reports[0].strategy if reports else request.choice.strategy,
        pace=reports[0].pace if reports else "own",
        tile_channels=reports[0].tile_channels if reports else 0,
        macs=sum(r.macs or 0 for r in reports),
        matrices=sum(r.matrices for r in reports),
        xbars_used=sum(r.xbars_used for r in reports),
        xbars_available=arch.core_count * arch.xbars_per_core,
        cores_used=sum(r.cores_used for r in reports),
        cores_available=arch.core_count,
        peak_local_bytes=max((r.peak_local_bytes for r in reports), default=0),
        instructions=dict(sorted(instructions.items())),
        layers=tuple(layer for r in reports for layer in r.layers),
        cores=tuple(sorted((core for r in reports for core in r.cores), key=lambda c: c.core)),
        warnings=tuple(dict.fromkeys((*found.notes, *(w for r in reports for w in r.warnings)))),
        search=tuple(trial for r in reports for trial in r.search),
    )
