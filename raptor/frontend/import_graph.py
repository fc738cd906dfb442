"""Translates a canonical ONNX model into a Graph: calls the importer of every node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from raptor.common.errors import InternalError, RaptorError, UnsupportedError, UnsupportedNode
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_node import import_node
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.inputs.declared_shapes import static_dims
from raptor.frontend.integers.fold_quantised import fold_constant_node
from raptor.frontend.model_tensors import Kind, Shape
from raptor.frontend.operator_sets import QUANTISED_OPS, STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import INDEX_TYPES, NUMERIC_TYPES, describe_node
from raptor.frontend.proto.nodes import ModelConstants, NodeView
from raptor.frontend.proto.read_model import SourceModel
from raptor.frontend.read_quantiser import read_quantiser
from raptor.frontend.registry import explain_unsupported, find_importer
from raptor.frontend.types.float32_integers import LEAST_INPUT_BOUND, BoundRefusal
from raptor.frontend.types.index_ranges import compute_demanded_ranges
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.frontend.types.quant_params import CODE_TYPES, CodeType, QuantParams, make_host_coding
from raptor.graph.ir import Graph, Node
from raptor.graph.mac_count import count_macs
from raptor.target.chip_elements import FLOAT32, MODELLED_FLOAT, MOST_EXACT_INTEGER


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Names and other facts of the original model, to which error messages refer."""

    node_names: frozenset[str]
    producers: Mapping[str, str]
    """Tensor -> label of the node that computes it."""
    added_tensors: frozenset[str]
    """Tensors that the original model does not have."""
    reasons: Mapping[str, str]
    """First output of a node -> reason why it cannot be lowered, where it is known already."""
    interface_types: Mapping[str, int]
    """ONNX types of inputs and outputs."""
    lengths: Mapping[str, int]
    """Inputs that are sequence lengths -> largest length."""

    @classmethod
    def from_model(cls, model: SourceModel) -> ModelOrigin:
        nodes = model.proto.graph.node
        names = frozenset(n.name for n in nodes if n.name)
        producers = {
            output: model.labels.get(output) or describe_node(n) for n in nodes for output in n.output if output
        }
        return cls(names, producers, model.added_results, model.reasons, model.interface_types, model.cache_lengths)

    def label(self, node: NodeProto) -> str:
        """Returns the name of the original node that computes the result of a canonical node."""
        return node.name if node.name in self.node_names else self.producers.get(node.output[0], describe_node(node))


@dataclass(frozen=True, slots=True, eq=False)
class NodeSupport:
    """Result of importing one node of the canonical model.

    refused: why the chip does not compute it; None if it does, empty if one of its inputs is not on the chip. nodes:
    the nodes of the Graph that it became. macs: their multiply-accumulates.
    """

    name: str
    refusal: str | None
    nodes: tuple[Node, ...]
    macs: int = 0


def import_graph(proto: ModelProto, folder: Path, name: str, origin: ModelOrigin) -> Graph:
    """Returns the Graph of a model. Raises `UnsupportedError` listing every node that cannot be lowered."""
    graph, refused = survey_graph(proto, folder, name, origin)
    if refused:
        raise UnsupportedError(refused)
    return graph


def survey_graph(
    proto: ModelProto, folder: Path, name: str, origin: ModelOrigin
) -> tuple[Graph, list[UnsupportedNode]]:
    """Returns the part of the model that can be lowered, and all nodes that cannot; without such nodes, it is complete.

    The bound of integer inputs is the largest that float32 holds, or the largest that keeps all results exact.
    """
    best = _best(proto, folder, name, origin)
    return best.graph, best.refused


class ModelSupport(NamedTuple):
    """Results of importing every node. graph: the lowered nodes. of_floats: results of a float program."""

    graph: Graph
    answers: tuple[NodeSupport, ...]
    float_answers: tuple[NodeSupport, ...]


def query_nodes(proto: ModelProto, folder: Path, origin: ModelOrigin) -> ModelSupport:
    """Tries to import every node of a canonical model; outputs of refused nodes count as inputs of the chip.

    An integer model is tried twice: its nodes between quantised tensors may also be computed by a float program, which
    refuses quantised operators.
    """
    name = proto.graph.name
    best = _best(proto, folder, name, origin)
    if not _has_integers(proto.graph, ModelConstants(proto.graph.initializer, folder)):
        return ModelSupport(best.graph, best.answers, best.answers)
    floats = _survey(proto, folder, name, origin, MOST_EXACT_INTEGER, without=QUANTISED_OPS)
    return ModelSupport(best.graph, best.answers, floats.answers)


def _best(proto: ModelProto, folder: Path, name: str, origin: ModelOrigin) -> _ImportResult:
    first = _survey(proto, folder, name, origin, MOST_EXACT_INTEGER)
    found, most = first, MOST_EXACT_INTEGER
    while found.too_wide and most > LEAST_INPUT_BOUND:
        most //= 2
        found = _survey(proto, folder, name, origin, most)
    return first if found.refused else found


class _ImportResult(NamedTuple):
    """Result of an import. `too_wide`: all refusals are bounds that smaller integer inputs may satisfy."""

    graph: Graph
    refused: list[UnsupportedNode]
    too_wide: bool
    answers: tuple[NodeSupport, ...]


def _survey(
    proto: ModelProto, folder: Path, name: str, origin: ModelOrigin, most: int, without: Set[str] = frozenset()
) -> _ImportResult:
    """Imports all nodes, with integer inputs bounded by `most`; operators in `without` are refused."""
    graph = proto.graph
    version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 1)
    inputs = [v.name for v in graph.input]
    in_model = frozenset(origin.producers) - origin.added_tensors | frozenset(inputs)
    constants = ModelConstants(graph.initializer, folder)
    floats = FLOAT32 if not without and _has_integers(graph, constants) else MODELLED_FLOAT
    codes = {} if floats == MODELLED_FLOAT else _codes(graph)
    kinds = _kinds(graph, origin)
    context = ImportContext(_shapes(graph), constants, in_model, codes, floats, kinds, most)
    read = {i for n in graph.node for i in n.input if i}
    context.read_names = frozenset(read) | frozenset(v.name for v in graph.output)
    context.opsets = tuple(proto.opset_import)
    lengths = {name: IntegerInterval(0, most) for name, most in origin.lengths.items()}
    context.demanded_ranges = compute_demanded_ranges(graph, _shapes(graph), constants) | lengths
    by_host = _quantised_by_host(graph, context, version)
    for value in inputs:
        with suppress(ImportRefusal):  # an input that cannot be on the chip; `survey` reports it
            context.add_input(value, by_host.get(value))
    inputs = [value for value in inputs if value in context.tensors]
    refused, bounds, answers = _import_nodes(graph, context, origin, version, without)
    outputs = tuple(dict.fromkeys(v.name for v in graph.output))
    for output in outputs:
        context.add_output(output)
    made = Graph(name, context.tensors, tuple(context.nodes), tuple(inputs), outputs, _float_nodes(context))
    answers = tuple(replace(a, macs=sum(count_macs(n, made) for n in a.nodes)) for a in answers)
    return _ImportResult(made, refused, 0 < bounds == len(refused), answers)


def _import_nodes(
    graph: GraphProto, context: ImportContext, origin: ModelOrigin, version: int, without: Set[str]
) -> tuple[list[UnsupportedNode], int, tuple[NodeSupport, ...]]:
    """Imports all nodes. Returns the refused nodes, how many of them only for a bound, and the result of every node."""
    refused: list[UnsupportedNode] = []
    answers: list[NodeSupport] = []
    bounds = 0
    for proto in graph.node:
        node, first = NodeView.from_proto(proto, origin.label(proto), version), len(context.nodes)
        reason = None
        try:
            if proto.op_type in without:
                raise ImportRefusal
            if not fold_constant_node(proto, context):
                _import_node(node, proto.domain, context, origin.reasons.get(node.outputs[0] if node.outputs else ""))
        except ImportRefusal as refusal:
            reason = str(refusal) and _reason(refusal, graph)
            if reason:
                refused.append(UnsupportedNode(node.name, node.op_type, reason, _needs(node, refusal)))
                bounds += isinstance(refusal, BoundRefusal)
            # Integer sums may exceed the integers that a float program holds.
            _assume_outputs(node, context, floats_only=proto.op_type in without)
        except InternalError:
            if not refused and not without:
                raise
            reason = ""  # after a refused node, shapes may contradict each other
            _assume_outputs(node, context)
        answers.append(NodeSupport(node.name, reason, tuple(context.nodes[first:])))
    return refused, bounds, tuple(answers)


def _reason(refusal: ImportRefusal, graph: GraphProto) -> str:
    settable = (v.name for v in graph.input if v.type.tensor_type.elem_type in INDEX_TYPES)
    if isinstance(refusal, NeedsConstantError) and refusal.name in settable:
        return f"{refusal} (--set {refusal.name}=VALUE)"
    return str(refusal)


def _needs(node: NodeView, refusal: ImportRefusal) -> tuple[str, ...]:
    """Returns the inputs that must become constants: the input that the refusal names, or all but the data."""
    return (refusal.name,) if isinstance(refusal, NeedsConstantError) else tuple(i for i in node.inputs[1:] if i)


def _import_node(node: NodeView, domain: str, context: ImportContext, reason: str | None) -> None:
    """Imports one node. Raises `ImportRefusal`, with an empty text if the refusal of an earlier node explains it.

    reason: why the node cannot be lowered, where it is known already.
    """
    found = find_importer(node.op_type, node.version, domain)
    if found is None:
        raise ImportRefusal(reason or explain_unsupported(domain, node.op_type))
    if not all(context.is_imported(i) for i in node.inputs if i):
        raise ImportRefusal
    unneeded = [o for o in node.outputs[1:] if o in context.read_names]
    if unneeded and not found.all_outputs:
        raise ImportRefusal(f"its output '{unneeded[0]}' is used, only the first output is supported")
    try:
        import_node(node, context, found)
    except (ImportRefusal, RaptorError, MemoryError, OSError):
        raise
    except Exception as error:  # a bug of an importer: it names the node, and keeps the cause
        raise InternalError(f"import of {node.name} ({node.op_type}) failed: {error!r}") from error


def _has_integers(graph: GraphProto, constants: ModelConstants) -> bool:
    """Checks whether the model computes with quantised integers; quantised constants alone do not count."""
    computed = {v.name for v in graph.input if v.name not in constants}
    for node in graph.node:
        if not computed.isdisjoint(node.input):
            if node.op_type in QUANTISED_OPS:
                return True
            computed.update(node.output)
    return False


def _quantised_by_host(graph: GraphProto, context: ImportContext, version: int) -> dict[str, QuantParams]:
    """Returns the float inputs that only equal quantisers read: the host quantises them."""
    readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {v.name for v in graph.output}
    found: dict[str, QuantParams] = {}
    for name in (v.name for v in graph.input if v.name not in outputs and v.name not in context.code_types):
        if all(n.op_type == "QuantizeLinear" for n in readers[name]) and readers[name]:
            # The chip handles scales in blocks; the importer refuses scales that are not constant.
            with suppress(ImportRefusal):
                views = [NodeView.from_proto(n, describe_node(n), version) for n in readers[name]]
                all_steps = [read_quantiser(v, context, context.shape(name)) for v in views]
                if all(_are_equal(s, all_steps[0]) for s in all_steps):
                    make_host_coding(all_steps[0])
                    found[name] = all_steps[0]
    return found


def _are_equal(a: QuantParams, b: QuantParams) -> bool:
    return a.code == b.code and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def _float_nodes(context: ImportContext) -> tuple[str, ...]:
    if context.floats == MODELLED_FLOAT:
        return ()
    floats = (n.name for n in context.nodes if context.tensors[n.output].element.kind == "float")
    return tuple(dict.fromkeys(floats))


def _assume_outputs(node: NodeView, context: ImportContext, *, floats_only: bool = False) -> None:
    """Declares the outputs of a refused node, as far as their shapes are known, so that later nodes can be imported."""
    for output in node.outputs:
        if floats_only and context.numpy_dtype(output) != np.float32:
            continue
        with suppress(ImportRefusal):
            context.add_input(output)


def _kinds(graph: GraphProto, origin: ModelOrigin) -> dict[str, Kind]:
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {v.name: origin.interface_types.get(v.name, v.type.tensor_type.elem_type) for v in values}
    return {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in found.items() if kind in NUMERIC_TYPES}


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    values = (*graph.input, *graph.value_info, *graph.output)
    data = [v for v in values if v.type.tensor_type.elem_type in NUMERIC_TYPES]
    shapes = {v.name: static_dims(v) for v in data}
    return {name: shape for name, shape in shapes.items() if shape is not None and math.prod(shape) > 0}


def _codes(graph: GraphProto) -> dict[str, CodeType]:
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = {v.name: v.type.tensor_type.elem_type for v in values}
    return {name: CODE_TYPES[kind] for name, kind in kinds.items() if kind in CODE_TYPES}
