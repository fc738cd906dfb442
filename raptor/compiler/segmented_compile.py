"""Compiles a model in segments: programs for the chip, and ONNX models for the host.

Segments on the chip divide its cores among them, or run on all of them one after another, as rounds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raptor.common.errors import CapacityError, UnsupportedError, UserError
from raptor.common.option_spelling import spell_name, spell_option
from raptor.common.options.option_values import DEFAULT_DEVICE, Requant
from raptor.compiler import pipeline
from raptor.compiler.compilation import CompileRequest, check_driver, compile_loaded, compile_model
from raptor.compiler.pass_driver import Driver
from raptor.compiler.rounds.compile_rounds import (
    CompiledRound,
    CompiledRounds,
    compile_rounds,
    describe_rounds,
    list_waiting_tensors,
    make_round_list,
)
from raptor.frontend import LoadedModel
from raptor.frontend.segments import ModelSegment, SegmentedModel, advise_host, cut_model
from raptor.frontend.segments.cut_model import CrossingTensor
from raptor.frontend.segments.submodel import find_static_shape
from raptor.graph.mac_count import count_macs
from raptor.mapping.strategies import STRATEGIES
from raptor.options import MappingOptions, ModelInputs
from raptor.output import files, round_files
from raptor.output.compile_report import CompileReport, CoreReport
from raptor.output.writer import HostedArtifacts, ProgramArtifacts, SegmentArtifacts
from raptor.target.arch import Target
from raptor.target.avoid_defects import describe_loss
from raptor.target.device_file import load_device

if TYPE_CHECKING:
    import onnx

_ELEMENT_BYTES = {"bool": 1, "float": 4, "double": 8, "float16": 2, "bfloat16": 2} | {
    f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Bytes of an element in numpy, by onnxruntime's name of the type."""


def compile_or_segment(
    source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver
) -> ProgramArtifacts | HostedArtifacts:
    """Compiles a model; in segments if the user wants nodes on the host, or the chip cannot compute some.

    Unless nodes are assigned to the host by name, a model that the chip can compute alone is compiled as one program.
    Rounds are used only if the model does not fit the chip.
    """
    check_driver(driver, request)
    options = request.options
    if request.arch.defects is not None:
        return _compile_around(source, request, driver)
    if options.residency.capacity is not None:
        return _compile_decoder(source, request, driver)
    if not options.host.has_named_nodes:
        try:
            return compile_model(source, request, driver)
        except CapacityError as error:
            if not options.rounds.rounds:
                raise _with_rounds(error, request) from None
            return _compile_rounds(source, request, driver)
        except UserError as error:
            if not options.host.host:
                raise _advised(error, source, request) from None
    found = driver.timed("cut", cut_model, source, options.inputs, options.host, request.refusal_function)
    _check_requant(found, options.numbers.requant)
    alone = _alone(found)
    if alone is not None:
        return _compile_one(alone, request, driver)
    return _compile_segments(found, request, driver)


def _compile_around(
    source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver
) -> ProgramArtifacts:
    """Compiles a model as one program around the defects of a chip. A `CapacityError` tells what the defects cost."""
    if request.options.host.host or request.options.host.has_named_nodes:
        raise UserError(
            f"{spell_option('chip')}: not with {spell_option('host', True)}, whose segments share the cores"
        )
    if request.options.rounds.rounds:
        raise UserError(f"{spell_option('chip')}: not with {spell_option('rounds', True)}, which use all cores")
    try:
        return compile_model(source, request, driver)
    except CapacityError as error:
        error.args = (f"{error}\n{describe_loss(request.arch)}",)
        raise


def _compile_decoder(
    source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver
) -> ProgramArtifacts:
    """Compiles one step of a decoder, which is never cut. Raises `UserError` for options that would cut it."""
    host, capacity = request.options.host, spell_option("capacity", request.options.residency.capacity)
    for name, value in (("host", host.host), ("host_ops", host.host_ops), ("host_nodes", host.host_nodes)):
        if value:
            raise UserError(f"{capacity}: not with {spell_name(name)}, whose segments keep no states")
    return compile_model(source, request, driver)


def _alone(found: SegmentedModel) -> LoadedModel | None:
    """Returns the whole model if it is a single segment on the chip; else None."""
    first = found.segments[0]
    reads, makes = ({t.name for t in tensors} for tensors in (found.inputs, found.outputs))
    if len(found.segments) > 1 or first.model is None or set(first.reads) != reads or set(first.writes) != makes:
        return None
    return replace(
        first.model,
        name=found.name,
        onnx_bytes=found.onnx_bytes,
        notes=(*found.notes, *first.model.notes),
        constants=found.constants,
    )


def _advised(error: UserError, source: "str | Path | onnx.ModelProto", request: CompileRequest) -> UserError:
    """Adds to an `UnsupportedError` a sentence about the nodes that would run on the host. Returns the error."""
    found = (
        advise_host(source, request.options.inputs, request.refusal_function)
        if isinstance(error, UnsupportedError)
        else ""
    )
    if not found or not isinstance(error, UnsupportedError):
        return error
    return UnsupportedError(error.nodes, f"{spell_option('host', True)} {found}")


def _compile_segments(found: SegmentedModel, request: CompileRequest, driver: Driver) -> HostedArtifacts:
    options = request.options
    _check_one_mapping(found, options.mapping)
    nodes = {"host_ops": list(options.host.host_ops), "host_nodes": list(options.host.host_nodes)}
    request = request.with_records(host=options.host.host, **nodes)
    try:
        chips = iter(_shared(found.on_chip, request))
    except CapacityError:
        if not options.rounds.rounds:
            raise
        return _rounds_beside_host(found, request, driver)
    segments: list[SegmentArtifacts] = []
    for number, segment in enumerate(found.segments):
        artifacts = None
        if segment.model is not None:
            artifacts = _compile_part(segment.model, replace(request, arch=next(chips)), _driver_of(driver, number))
        segments.append(_contents(segment, artifacts))
    report = _combined([s.artifacts.report for s in segments if s.artifacts], found, request)
    return _hosted(found, (), segments, request, report)


def _hosted(
    found: SegmentedModel,
    inner: Sequence[SegmentedModel],
    segments: Sequence[SegmentArtifacts],
    request: CompileRequest,
    report: CompileReport,
    rounds: round_files.RoundList | None = None,
) -> HostedArtifacts:
    """Makes the contents of all files. `inner`: cuts of segments, whose crossing tensors are added."""
    constants = {files.CONSTANT_INPUTS: {n: v.tolist() for n, v in found.constants.items()}}
    crossings = {c.name: c for cut in (found, *inner) for c in cut.crossings}
    return HostedArtifacts(
        name=found.name,
        options={**request.recorded, **constants},
        inputs=tuple(map(_crossing, found.inputs)),
        outputs=tuple(map(_crossing, found.outputs)),
        crossings=tuple(map(_crossing, crossings.values())),
        segments=tuple(segments),
        host_nodes=tuple(files.HostNode(node=n.node, op_type=n.op_type, reason=n.reason) for n in found.host),
        report=report,
        onnx_bytes=found.onnx_bytes,
        rounds=rounds,
        device=request.device if rounds else None,
    )


# Rounds: all cores for each piece of the model, one piece after another.


def _compile_rounds(source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver) -> HostedArtifacts:
    """Compiles a model without host segments that is too large for the chip."""
    request = _checked_rounds(request, driver)
    done = _in_rounds(source, request, driver, 0)
    return _of_rounds(done.cut, [done], request)


def _rounds_beside_host(found: SegmentedModel, request: CompileRequest, driver: Driver) -> HostedArtifacts:
    """Compiles a model with host segments, each segment on the chip in rounds, as a model of its own."""
    request = _checked_rounds(request, driver)
    parts, first = list[ModelSegment | CompiledRounds](), 0
    for segment in found.segments:
        if segment.model is None:
            parts.append(segment)
            first += 1
            continue
        own = request.with_options(inputs=ModelInputs())  # shapes are known by now
        done = _in_rounds(_proto(segment.onnx_bytes), own, driver, first)
        parts.append(done)
        first += len(done.programs)
    return _of_rounds(found, parts, request)


def _in_rounds(
    source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver, first: int
) -> CompiledRounds:
    """Compiles a model in rounds. `first`: the number of its first segment."""

    def one(model: LoadedModel, number: int, arch: Target) -> ProgramArtifacts:
        return _compile_part(model, replace(request, arch=arch), _driver_of(driver, first + number))

    return driver.timed("cut", compile_rounds, source, request, one)


def _proto(onnx_bytes: bytes) -> "onnx.ModelProto":
    from onnx import ModelProto

    return ModelProto.FromString(onnx_bytes)


def _of_rounds(
    found: SegmentedModel, parts: Sequence[ModelSegment | CompiledRounds], request: CompileRequest
) -> HostedArtifacts:
    """Makes the contents of all files from host segments and models in rounds."""
    segments, rounds = list[SegmentArtifacts](), list[CompiledRound]()
    done = [part for part in parts if isinstance(part, CompiledRounds)]
    for part in parts:
        if isinstance(part, ModelSegment):
            segments.append(_contents(part, None))
            continue
        for number, (program, waits) in enumerate(
            zip(part.programs, list_waiting_tensors(part), strict=True), len(segments)
        ):
            rounds.append(CompiledRound(files.segment_name(number, "chip"), program, waits))
        programs = (*part.programs, *[None] * (len(part.cut.segments) - len(part.programs)))
        segments += map(_contents, part.cut.segments, programs)
    programs = [s.artifacts.report for s in segments if s.artifacts]
    report = _taking_turns(_combined(programs, found, request))
    listed = make_round_list(rounds, done, request)
    return _hosted(found, [one.cut for one in done], segments, request, report, listed)


def _checked_rounds(request: CompileRequest, driver: Driver) -> CompileRequest:
    """Records the rounds in the request. Raises `UserError` for options that need a single program."""
    mapping, rounds, device = request.options.mapping, request.options.rounds, request.device
    for keyword, given in (
        ("mapping", mapping.mapping not in STRATEGIES),
        ("emit_mapping", mapping.emit_mapping is not None),
        ("emit_ops", mapping.emit_ops is not None),
        ("stop_after", driver.stop_after is not None),
    ):
        if given:
            raise UserError(
                f"{spell_option(keyword)}: of one program, but each round of the model is a program of its own"
            )
    assert device is not None, "rounds are asked for"
    return request.with_records(rounds=True, batch=rounds.batch, device=device.name, cuts=rounds.cuts)


def _with_rounds(error: CapacityError, request: CompileRequest) -> CapacityError:
    """Extends a `CapacityError` by an estimate of `--rounds`, if the model would fit that way."""
    if error.crossbars is None or request.options.mapping.mapping not in STRATEGIES:
        return error
    found = describe_rounds(error.crossbars, request.arch, load_device(DEFAULT_DEVICE))
    sizes = error.resource, error.needed, error.available
    more = error.crossbars
    return CapacityError(*sizes, where=error.where, levers=error.levers, without=found, crossbars=more)


def _check_one_mapping(found: SegmentedModel, mapping: MappingOptions) -> None:
    """Raises `UserError` for options that need a single program (mapping file, flow) if there are several."""
    count = len(found.on_chip)
    is_stored, is_emitted = mapping.mapping not in STRATEGIES, mapping.emit_mapping is not None
    for keyword, given in (("mapping", is_stored), ("emit_mapping", is_emitted)):
        if given and count != 1:
            raise UserError(
                f"{spell_option(keyword)}: a stored mapping is of one program, but {count} segments of the model "
                f"are for "
                "the chip; each has its own mapping.json in the output"
            )
    if mapping.emit_ops is not None and count != 1:
        raise UserError(
            f"{spell_option('emit_ops')}: a flow is of one program, but {count} segments of the model are for the chip"
        )


def _check_requant(found: SegmentedModel, requant: Requant | None) -> None:
    """Raises `UserError` if no segment has integers on which the option `requant` would act."""
    if requant is not None and all(s.model.graph.arithmetic == "float" for s in found.on_chip if s.model):
        raise UserError(
            f"{spell_option('requant', requant)}: no segment of the chip has integers, which are requantised"
        )


def _driver_of(driver: Driver, number: int) -> Driver:
    """Returns the driver of one segment: it dumps into a folder of its own, and verifies each result at once.

    Raises `UserError` for a pass of the user, which is for a single program.
    """
    for user in driver.passes.values():
        raise UserError(f"{user.label}: of one program, but the model is compiled as several")
    dump = driver.dump and driver.dump / files.segment_name(number, "chip")
    return replace(driver, dump=dump, done=[], beside=None)


def _compile_one(model: LoadedModel, request: CompileRequest, driver: Driver) -> ProgramArtifacts:
    if model.graph.arithmetic == "float":
        request = request.with_options(numbers=replace(request.options.numbers, requant=None))
    return compile_loaded(model, request, driver)


def _compile_part(model: LoadedModel, request: CompileRequest, driver: Driver) -> ProgramArtifacts:
    """Compiles a segment. The options `shapes` and `dims` do not apply to its model, whose sizes are all known.

    Its samples overlap only if an option says so: the segments after it would have to wait for late outputs.
    """
    mapping = replace(request.options.mapping, overlap=request.options.mapping.overlap or 1)
    return _compile_one(model, request.with_options(mapping=mapping).with_records(shapes={}, dims={}), driver)


def _contents(segment: ModelSegment, artifacts: ProgramArtifacts | None) -> SegmentArtifacts:
    return SegmentArtifacts(
        segment.kind,
        segment.nodes,
        segment.reads,
        segment.writes,
        segment.macs,
        segment.onnx_bytes,
        artifacts,
        segment.uncounted,
    )


def _crossing(tensor: CrossingTensor) -> files.BorderTensor:
    width = _ELEMENT_BYTES.get(tensor.type.removeprefix("tensor(").removesuffix(")"))
    shape = find_static_shape(tensor.shape)
    return files.BorderTensor(
        name=tensor.name,
        type=tensor.type,
        shape=tensor.shape or (),
        size_bytes=None if shape is None or width is None else math.prod(shape) * width,
    )


# Segments of the chip hold their weights all the time, so each has cores of its own.


def _shared(segments: Sequence[ModelSegment], request: CompileRequest) -> list[Target]:
    """Returns the target of each segment: the whole chip for a single one, else a range of cores (see `divide_cores`).

    Raises `CapacityError` if the chip has too few cores for all segments together.
    """
    arch = request.arch
    if len(segments) < 2:
        return [arch] * len(segments)
    models = [s.model for s in segments if s.model is not None]
    needs = [find_least_cores(model, request) for model in models]
    if sum(needs) > arch.core_count:
        raise CapacityError(
            "cores",
            sum(needs),
            arch.core_count,
            where=f"{len(segments)} segments, which share the chip",
            levers=(
                spell_option("cores", sum(needs)),
                spell_option("xbars_per_core"),
                "fewer segments: more nodes on the host",
            ),
        )
    counts = divide_cores(arch.core_count, needs, [sum(count_macs(n, m.graph) for n in m.graph.nodes) for m in models])
    ends = np.cumsum(counts).tolist()
    return [arch.with_places(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]


def find_least_cores(model: LoadedModel, request: CompileRequest) -> int:
    """Returns the fewest cores on which a model fits. Raises `CapacityError` if it does not fit the chip at all."""
    arch = request.arch
    graph = pipeline.prepare_graph(model.graph, arch, request.requantising)
    strategy = STRATEGIES.get(request.options.mapping.mapping, STRATEGIES["raptor"])
    count = 1
    while True:
        try:
            pipeline.rewrite_and_map(graph, arch.with_places(range(count)), strategy)
        except CapacityError as error:
            if error.resource != "cores" or not count < error.needed <= arch.core_count:
                raise
            count = error.needed
        else:
            return count


def divide_cores(cores: int, needs: Sequence[int], work: Sequence[int]) -> list[int]:
    """Gives each segment the cores that it needs, and divides the remaining cores in proportion to work."""
    free, total = cores - sum(needs), sum(work)
    if not total:
        return list(needs)
    counts = [need + free * one // total for need, one in zip(needs, work, strict=True)]
    busiest = max(range(len(counts)), key=lambda k: work[k])
    counts[busiest] += cores - sum(counts)
    return counts


def _taking_turns(report: CompileReport) -> CompileReport:
    """Merges the reports of a core's rounds, which run one after another: the largest need of a round counts."""
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


def _combined(reports: Sequence[CompileReport], found: SegmentedModel, request: CompileRequest) -> CompileReport:
    """Merges the reports of all segments into one. They use different cores, so all figures add up."""
    arch = request.arch
    instructions: dict[str, int] = {}
    for name, count in (item for r in reports for item in r.instructions.items()):
        instructions[name] = instructions.get(name, 0) + count
    return CompileReport(
        strategy=reports[0].strategy if reports else request.options.mapping.mapping,
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
