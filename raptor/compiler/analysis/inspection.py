"""Inspects a model without compiling it, for `raptor inspect`: layers, crossbars, unsupported nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from pydantic import Field
from rich.table import Table

from raptor import frontend
from raptor.codegen.machine_backend import find_backend
from raptor.common.errors import UnsupportedNode
from raptor.common.files import file_access
from raptor.common.files.schema_types import JsonArray, JsonObject, JsonPair, StrictSchema
from raptor.common.terminal.abbreviation import fit_names
from raptor.common.terminal.console import LiteralConsole
from raptor.compiler import pipeline
from raptor.compiler.analysis.decoder_needs import BlockInfo, DecoderInfo, describe_blocks, describe_decoder
from raptor.compiler.analysis.zero_counts import ZeroInfo, count_held_weights, count_zeros
from raptor.compiler.compilation import find_refusal
from raptor.frontend.operator_sets import CONTRIB_DOMAIN
from raptor.frontend.registry import is_supported_op
from raptor.frontend.segments import PlacedNodes, PlacementSplit, SegmentedModel, predict_split
from raptor.frontend.segments.cut_model import READS_HOST
from raptor.graph.ir import (
    Dot,
    Filter,
    Graph,
    Node,
    Stencil,
)
from raptor.graph.layers import filter_key
from raptor.graph.mac_count import count_macs
from raptor.mapping.decision import Decision, KernelUnfolding, Matrix
from raptor.mapping.strategies import RAPTOR
from raptor.options import CompileOptions, InspectKeywords, read_options
from raptor.target.arch import Target, load_chip

if TYPE_CHECKING:
    import onnx

_MOST_CORES = 2**31 - 1
PlaceName = Literal["chip", "host", "refused"]


class OperatorInfo(StrictSchema):
    """An ONNX operator that the model uses."""

    op_type: str
    nodes: int
    unsupported: int = Field(description="nodes of it that cannot be compiled")
    status: str = Field(description="supported, not supported, computed while compiling, or how many on the host")


class NodeInfo(StrictSchema):
    """A node that cannot be compiled, or an input (`op_type` "input")."""

    node: str
    op_type: str
    reason: str


class LayerInfo(StrictSchema):
    """An ONNX node with products: on crossbars or, if it has no matrices, on the vector unit."""

    node: str
    op_type: str
    shape: JsonArray[int] = Field(description="of its last tensor")
    weights: int = Field(description="numbers in the crossbars, or factors of the vector unit")
    macs: int = Field(description="multiply-accumulates, those with padding included")
    matrices: int
    xbars: int
    utilisation: float = Field(description="cells that hold weights, of the crossbars used; 0 without matrices")
    zeros: ZeroInfo | None = Field(
        default=None, exclude_if=lambda zeros: zeros is None, description="left out if nothing is all zeros"
    )


class PlaceInfo(StrictSchema):
    """Nodes that run in one place, or are refused. Nodes that only compute constants or shapes do not count."""

    place: PlaceName
    nodes: int
    macs: int = Field(description="multiply-accumulates, as far as they are known")
    uncounted: int = Field(
        default=0, exclude_if=lambda count: not count, description="nodes whose multiply-accumulates are not known"
    )


class SegmentInfo(StrictSchema):
    """A segment of a model that is divided between chip and host."""

    kind: Literal["chip", "host"]
    nodes: int
    macs: int
    reads: JsonArray[str]
    makes: JsonArray[str]
    uncounted: int = Field(
        default=0, exclude_if=lambda count: not count, description="nodes whose multiply-accumulates are not known"
    )


class ModelInspection(StrictSchema):
    """The result of `inspect`. Layers and totals cover the nodes on the chip. `version` changes with the fields."""

    version: Literal[2] = 2
    model: str
    inputs: JsonObject[JsonArray[int]]
    outputs: JsonObject[JsonArray[int]]
    parameters: int
    weights: int
    macs: int
    matrices: int
    xbars: int
    utilisation: float
    xbar_size: JsonPair[int, int]
    outputs_per_xbar: int = Field(description="weights of `bits` bits beside each other in a crossbar")
    cores_needed: int = Field(description="filled with crossbars one after another")
    operators: JsonArray[OperatorInfo]
    unsupported: JsonArray[NodeInfo]
    layers: JsonArray[LayerInfo]
    notes: JsonArray[str] = Field(description="what was assumed of the inputs")
    places: JsonArray[PlaceInfo] = Field(description="on the chip, on the host, refused")
    host_nodes: JsonArray[NodeInfo]
    segments: JsonArray[SegmentInfo] = Field(description="in the order in which they run; empty if all is on the chip")
    decoder: DecoderInfo | None = Field(
        default=None, exclude_if=lambda found: found is None, description="caches that grow by a row with every token"
    )
    blocks: JsonArray[BlockInfo] = Field(
        default=(), exclude_if=lambda found: not found, description="weights with a scale for each block of inputs"
    )


def inspect(model: "str | Path | onnx.ModelProto", **options: Unpack[InspectKeywords]) -> ModelInspection:
    """Counts layers, MACs and crossbars of a model on a chip that is large enough, and lists where each node runs.

    The options are those of `raptor.compile`. Raises `UserError` for a bad file, option or shape. Unsupported nodes and
    inputs that are not floats are part of the result, not errors.
    """
    return inspect_model(model, read_options(CompileOptions, options, InspectKeywords))


def inspect_model(model: "str | Path | onnx.ModelProto", options: CompileOptions) -> ModelInspection:
    """Inspects a model as `inspect` does, with checked options."""
    chip = load_chip(replace(options.chip, cores=_MOST_CORES, chip=None), network=False)
    survey, numbers = frontend.survey(model, options.inputs), options.numbers
    refused = bool(survey.unsupported) or numbers.base_isa or options.host.has_named_nodes
    refuse = find_refusal(numbers, find_backend(numbers.backend))
    # A step of a decoder is never divided.
    divided = predict_split(model, options.inputs, options.host, refuse) if refused and not survey.decoder else None
    return _inspect(survey, divided, chip)


def _inspect(survey: frontend.ModelSurvey, divided: PlacementSplit | None, arch: Target) -> ModelInspection:
    """Returns the result. `divided`: None if all nodes run on the chip."""
    graphs = _graphs(survey, divided)
    mapped = [pipeline.rewrite_and_map(pipeline.simplify_channels(graph, arch), arch, RAPTOR) for graph in graphs]
    found = tuple(entry for each in mapped for entry in _layers(each.graph, each.decision, arch))
    zeros = {name: info for graph in graphs for name, info in _zeros(graph, arch)}
    layers = tuple(layer.model_copy(update={"zeros": zeros.get(layer.node)}) for layer, *_ in found)
    macs = sum(layer.macs for layer in layers)
    weights = sum(layer.weights for layer in layers if layer.matrices)
    caches = survey.decoder.steps.states if survey.decoder else ()
    states = {name for state in caches for name in (state.input, state.output)}
    return ModelInspection(
        model=survey.name,
        inputs=_shapes(survey.graph, [name for name in survey.graph.inputs if name not in states]),
        outputs=_shapes(survey.graph, [name for name in survey.graph.outputs if name not in states]),
        parameters=survey.parameters,
        weights=weights,
        macs=macs,
        matrices=sum(layer.matrices for layer in layers),
        xbars=sum(layer.xbars for layer in layers),
        utilisation=_utilisation(sum(held for _, held, _ in found), sum(places for *_, places in found)),
        xbar_size=(arch.xbar_rows, arch.xbar_cols),
        outputs_per_xbar=arch.outputs_per_xbar,
        cores_needed=sum(1 + max(each.decision.cores, default=0) for each in mapped),
        operators=tuple(_operators(survey, divided)),
        unsupported=_named_nodes(_refused(survey, divided)),
        layers=layers,
        notes=survey.notes,
        places=tuple(_by_place(survey, divided, macs)),
        host_nodes=_named_nodes(divided.host.reasons if divided else ()),
        segments=_segments(divided.cut if divided else None),
        decoder=describe_decoder(survey.decoder.steps, survey.graph, arch) if survey.decoder else None,
        blocks=tuple(describe_blocks(survey.blocks, arch)),
    )


def _graphs(survey: frontend.ModelSurvey, divided: PlacementSplit | None) -> list[Graph]:
    """Returns the graphs on the chip: one for each segment, or one with all nodes that can be compiled."""
    if divided is None or divided.cut is None:
        return [survey.graph]
    return [s.model.graph for s in divided.cut.on_chip if s.model is not None]


def _refused(survey: frontend.ModelSurvey, divided: PlacementSplit | None) -> Sequence[UnsupportedNode]:
    """Returns the inputs and nodes that cannot be compiled."""
    if divided is None or (divided.cut is None and not divided.refused.reasons):
        return survey.unsupported
    if divided.cut is not None:
        return ()
    known = {n.node for n in divided.refused.reasons}
    others = (n for n in survey.unsupported if n.op_type == "input")
    silent = {n.node for n in divided.refused.reasons if n.reason == READS_HOST}
    return (*others, *(n for n in divided.refused.reasons if n.node in known - silent))


def _by_place(survey: frontend.ModelSurvey, divided: PlacementSplit | None, macs: int) -> Iterator[PlaceInfo]:
    if divided is None:
        yield PlaceInfo(place="chip", nodes=len({n.name for n in survey.graph.nodes}), macs=macs)
        return
    parts: dict[PlaceName, PlacedNodes] = {"chip": divided.chip, "host": divided.host, "refused": divided.refused}
    for place, part in parts.items():
        if part.nodes:
            yield PlaceInfo(place=place, nodes=part.nodes, macs=part.macs, uncounted=part.uncounted)


def _segments(found: SegmentedModel | None) -> tuple[SegmentInfo, ...]:
    return tuple(
        SegmentInfo(kind=s.kind, nodes=len(s.nodes), macs=s.macs, reads=s.reads, makes=s.writes, uncounted=s.uncounted)
        for s in (found.segments if found else ())
    )


def _named_nodes(nodes: Sequence[UnsupportedNode]) -> tuple[NodeInfo, ...]:
    return tuple(NodeInfo(node=n.node, op_type=n.op_type, reason=n.reason) for n in nodes)


def _shapes(graph: Graph, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {name: graph.tensors[name].shape for name in names if name in graph.tensors}


def _operators(survey: frontend.ModelSurvey, divided: PlacementSplit | None) -> Iterator[OperatorInfo]:
    from raptor.frontend.contributed.expand_contributed import EXPANSIONS  # imports onnx

    unsupported = Counter(n.op_type for n in _refused(survey, divided))
    hosted = Counter(n.op_type for n in divided.host.reasons) if divided else Counter[str]()
    for op_type, count in survey.operators.items():
        refused = unsupported[op_type]
        known = op_type in EXPANSIONS or any(is_supported_op(domain, op_type) for domain in ("", CONTRIB_DOMAIN))
        status = "not supported" if refused else "supported" if known else "computed while compiling"
        status = f"{hosted[op_type]} on the host" if hosted[op_type] and not refused else status
        yield OperatorInfo(op_type=op_type, nodes=count, unsupported=refused, status=status)


def _layers(graph: Graph, decision: Decision, arch: Target) -> Iterator[tuple[LayerInfo, int, int]]:
    """Yields the nodes with products, in order, each with the numbers of weights that its crossbars hold and can hold.

    A crossbar that several nodes share counts for the first of them.
    """
    nodes: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if isinstance(node.operator, Filter | Dot | Stencil):
            nodes[node.name, node.op_type].append(node)
    seen: set[str] = set()
    for group in nodes.values():
        yield _layer(group, graph, decision, arch, seen)


def _zeros(graph: Graph, arch: Target) -> Iterator[tuple[str, ZeroInfo | None]]:
    """Yields what is all zeros in each layer, by name of its node. Filters of equal key count once."""
    nodes: defaultdict[str, dict[str, Filter]] = defaultdict(dict)
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            nodes[node.name][filter_key(node)] = node.operator
    for name, filters in nodes.items():
        yield name, count_zeros([*filters.values()], arch)


def _layer(
    group: Sequence[Node], graph: Graph, decision: Decision, arch: Target, seen: set[str]
) -> tuple[LayerInfo, int, int]:
    """Returns the entry of the nodes of one name, the weights in their crossbars, and the capacity in weights.

    Adds their filters to `seen`.
    """
    filters = {filter_key(n): n.operator for n in group if isinstance(n.operator, Filter)}
    fresh = [key for key in filters if key not in seen]
    seen.update(fresh)
    matrices = [m for key in fresh for m in _matrices(decision, key)]
    places = sum(_weight_capacity(filters[key], decision, key, arch) for key in fresh)
    stencils = sum(n.operator.weights.size for n in group if isinstance(n.operator, Stencil))
    weights = sum(filters[key].weights.size for key in fresh)
    held = sum(count_held_weights(filters[key], _matrices(decision, key)) for key in fresh)
    layer = LayerInfo(
        node=group[0].name,
        op_type=group[0].op_type,
        shape=graph.tensors[group[-1].output].shape,
        weights=weights + stencils,
        macs=sum(count_macs(n, graph) for n in group),
        matrices=len(matrices),
        xbars=sum(m.xbars for m in matrices),
        utilisation=_utilisation(held, places),
    )
    return layer, held, places


def _matrices(decision: Decision, key: str) -> tuple[Matrix, ...]:
    layer = decision.layers[key]
    return layer.matrices if isinstance(layer, KernelUnfolding) else ()


def _weight_capacity(filter_: Filter, decision: Decision, key: str, arch: Target) -> int:
    """Returns the number of weights, at the filter's width, that its crossbars can hold."""
    xbars = sum(m.xbars for m in _matrices(decision, key))
    return xbars * arch.xbar_rows * arch.weight_columns(filter_.weight_bits)


def _utilisation(weights: int, places: int) -> float:
    return round(weights / places, 4) if places else 0.0


def write_inspection(path: Path, found: ModelInspection) -> None:
    """Writes an inspection as JSON; `-` is standard output."""
    file_access.print_or_write("--json", path, file_access.model_to_json(found))


def show_inspection(found: ModelInspection, console: LiteralConsole) -> None:
    """Prints tables of the operators, of the layers with products, and of the totals."""
    console.print(_operator_table(found))
    console.print()
    console.print(fit_names(console, [x.node for x in found.layers], partial(_layer_table, found)))
    console.print()
    totals = Table(show_header=False, box=None, pad_edge=False)
    for name, value in format_totals(found):
        totals.add_row(name, value)
    console.print(totals)
    for layer in found.layers:
        if layer.zeros is not None:
            console.print(f"zeros: {layer.node}: {_describe_zeros(layer.zeros)}", soft_wrap=True)
    for node in found.host_nodes:
        console.print(f"host: {node.node} ({node.op_type}): {node.reason}", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _describe_zeros(zeros: ZeroInfo) -> str:
    channels = ((zeros.inputs, "inputs"), (zeros.outputs, "outputs"))
    more = "".join(f", {count:,} {name}" for count, name in channels if count)
    return f"{zeros.matrices:,} of {zeros.all_matrices:,} matrices{more}"


def _operator_table(found: ModelInspection) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("operator")
    table.add_column("nodes", justify="right")
    table.add_column("")
    for o in found.operators:
        status = f"{o.unsupported} of {o.nodes} not supported" if o.unsupported else o.status
        table.add_row(o.op_type, f"{o.nodes:,}", status)
    return table


def _layer_table(found: ModelInspection, names: Mapping[str, str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    table.add_column("operator")
    table.add_column("shape", no_wrap=True)
    for name in ("weights", "MACs", "matrices", "crossbars", "used"):
        table.add_column(name, justify="right", no_wrap=True)
    for x in found.layers:
        used = f"{x.utilisation:.1%}" if x.matrices else "vector unit"
        sizes = (_abbreviated_count(x.weights), _abbreviated_count(x.macs), f"{x.matrices:,}", f"{x.xbars:,}")
        table.add_row(names[x.node], x.op_type, "x".join(map(str, x.shape)), *sizes, used)
    return table


def _abbreviated_count(count: int) -> str:
    """Writes a count with four digits and a unit, as columns are narrow; the JSON has all digits."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return str(count)


def format_totals(found: ModelInspection) -> Iterator[tuple[str, str]]:
    """Yields name and formatted value of each total, in the order shown."""
    rows, cols = found.xbar_size
    part = " (of the nodes that can be compiled)" if found.unsupported else ""
    yield "model", f"{found.model}  {_shape_list(found.inputs)} -> {_shape_list(found.outputs)}"
    yield "parameters", f"{found.parameters:,}"
    yield "weights", f"{found.weights:,} in crossbars{part}"
    yield "MACs", f"{found.macs:,}{part}"
    yield (
        "crossbars",
        f"{found.xbars:,} of {rows}x{cols} in {found.matrices:,} matrices, {found.utilisation:.1%} used{part}",
    )
    yield "cores", f"at least {found.cores_needed:,}"
    total, known = sum(p.macs for p in found.places), not any(p.uncounted for p in found.places)
    for place in found.places if len(found.places) > 1 or found.host_nodes else ():
        share = f" ({place.macs / total:.1%})" if total and known else ""
        macs = f", {place.macs:,} MACs{share}" if total or not known else ""
        more = f" and those of {_node_count(place.uncounted)}, which are not known" if place.uncounted else ""
        yield place.place, f"{_node_count(place.nodes)}{macs}{more}"
    if found.decoder:
        yield from found.decoder.format_lines()
    for block in found.blocks:
        yield block.format_line(rows)
    if found.segments:
        yield "segments", ", ".join(f"{s.kind} {s.nodes:,}" for s in found.segments)


def _node_count(count: int) -> str:
    return f"{count:,} node{'s' if count != 1 else ''}"


def _shape_list(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in shapes.items())
