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
from raptor.frontend.check import INDICES, NUMBERS, label
from raptor.frontend.codes import CODES, CodeType, Steps, host_coding
from raptor.frontend.declared import static_dims
from raptor.frontend.demands import demanded
from raptor.frontend.fixed_nodes import import_fixed
from raptor.frontend.import_node import apply
from raptor.frontend.import_refusal import NeedsConstantError, Refusal
from raptor.frontend.importing import ImportContext
from raptor.frontend.model_tensors import Kind, Shape
from raptor.frontend.nodes import Constants, NodeView
from raptor.frontend.operator_sets import QUANTISED, STANDARD_DOMAINS
from raptor.frontend.ranges import Range
from raptor.frontend.read_quantiser import quantiser
from raptor.frontend.reading import Source
from raptor.frontend.registry import find_importer, op_reason
from raptor.frontend.whole import LEAST_INPUT, BoundRefusal
from raptor.graph.ir import Graph, Node
from raptor.graph.macs import count_macs
from raptor.target.element import FLOAT32, MODELLED, MOST_WHOLE


@dataclass(frozen=True, slots=True)
class Origin:
    """Names and other facts of the original model, to which error messages refer."""

    node_names: frozenset[str]
    producers: Mapping[str, str]
    """Tensor -> label of the node that computes it."""
    inner: frozenset[str]
    """Tensors that the original model does not have."""
    reasons: Mapping[str, str]
    """First output of a node -> reason why it cannot be lowered, where it is known already."""
    kinds: Mapping[str, int]
    """ONNX types of inputs and outputs."""
    lengths: Mapping[str, int]
    """Inputs that are sequence lengths -> largest length."""

    @classmethod
    def of(cls, model: Source) -> Origin:
        nodes = model.proto.graph.node
        names = frozenset(n.name for n in nodes if n.name)
        producers = {output: model.labels.get(output) or label(n) for n in nodes for output in n.output if output}
        return cls(names, producers, model.inner, model.reasons, model.kinds, model.lengths)

    def label(self, node: NodeProto) -> str:
        """Returns the name of the original node that computes the result of a canonical node."""
        return node.name if node.name in self.node_names else self.producers.get(node.output[0], label(node))


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """Result of importing one node of the canonical model.

    refused: why the chip does not compute it; None if it does, empty if one of its inputs is not on the chip. nodes:
    the nodes of the Graph that it became. macs: their multiply-accumulates.
    """

    name: str
    refused: str | None
    nodes: tuple[Node, ...]
    macs: int = 0


def import_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> Graph:
    """Returns the Graph of a model. Raises `UnsupportedError` listing every node that cannot be lowered."""
    graph, refused = survey_graph(proto, folder, name, origin)
    if refused:
        raise UnsupportedError(refused)
    return graph


def survey_graph(proto: ModelProto, folder: Path, name: str, origin: Origin) -> tuple[Graph, list[UnsupportedNode]]:
    """Returns the part of the model that can be lowered, and all nodes that cannot; without such nodes, it is complete.

    The bound of integer inputs is the largest that float32 holds, or the largest that keeps all results exact.
    """
    best = _best(proto, folder, name, origin)
    return best.graph, best.refused


class Answers(NamedTuple):
    """Results of importing every node. graph: the lowered nodes. of_floats: results of a float program."""

    graph: Graph
    answers: tuple[Answer, ...]
    of_floats: tuple[Answer, ...]


def ask_nodes(proto: ModelProto, folder: Path, origin: Origin) -> Answers:
    """Tries to import every node of a canonical model; outputs of refused nodes count as inputs of the chip.

    An integer model is tried twice: its nodes between quantised tensors may also be computed by a float program, which
    refuses quantised operators.
    """
    name = proto.graph.name
    best = _best(proto, folder, name, origin)
    if not _has_integers(proto.graph, Constants(proto.graph.initializer, folder)):
        return Answers(best.graph, best.answers, best.answers)
    floats = _survey(proto, folder, name, origin, MOST_WHOLE, without=QUANTISED)
    return Answers(best.graph, best.answers, floats.answers)


def _best(proto: ModelProto, folder: Path, name: str, origin: Origin) -> _Survey:
    first = _survey(proto, folder, name, origin, MOST_WHOLE)
    found, most = first, MOST_WHOLE
    while found.too_wide and most > LEAST_INPUT:
        most //= 2
        found = _survey(proto, folder, name, origin, most)
    return first if found.refused else found


class _Survey(NamedTuple):
    """Result of an import. `too_wide`: all refusals are bounds that smaller integer inputs may satisfy."""

    graph: Graph
    refused: list[UnsupportedNode]
    too_wide: bool
    answers: tuple[Answer, ...]


def _survey(
    proto: ModelProto, folder: Path, name: str, origin: Origin, most: int, without: Set[str] = frozenset()
) -> _Survey:
    """Imports all nodes, with integer inputs bounded by `most`; operators in `without` are refused."""
    graph = proto.graph
    version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 1)
    inputs = [v.name for v in graph.input]
    in_model = frozenset(origin.producers) - origin.inner | frozenset(inputs)
    constants = Constants(graph.initializer, folder)
    floats = FLOAT32 if not without and _has_integers(graph, constants) else MODELLED
    codes = {} if floats == MODELLED else _codes(graph)
    kinds = _kinds(graph, origin)
    context = ImportContext(_shapes(graph), constants, in_model, codes, floats, kinds, most)
    read = {i for n in graph.node for i in n.input if i}
    context.used = frozenset(read) | frozenset(v.name for v in graph.output)
    context.opsets = tuple(proto.opset_import)
    lengths = {name: Range(0, most) for name, most in origin.lengths.items()}
    context.demanded = demanded(graph, _shapes(graph), constants) | lengths
    by_host = _quantised_by_host(graph, context, version)
    for value in inputs:
        with suppress(Refusal):  # an input that cannot be on the chip; `survey` reports it
            context.input(value, by_host.get(value))
    inputs = [value for value in inputs if value in context.tensors]
    refused, bounds, answers = _import_nodes(graph, context, origin, version, without)
    outputs = tuple(dict.fromkeys(v.name for v in graph.output))
    for output in outputs:
        context.output(output)
    made = Graph(name, context.tensors, tuple(context.nodes), tuple(inputs), outputs, _float_nodes(context))
    answers = tuple(replace(a, macs=sum(count_macs(n, made) for n in a.nodes)) for a in answers)
    return _Survey(made, refused, 0 < bounds == len(refused), answers)


def _import_nodes(
    graph: GraphProto, context: ImportContext, origin: Origin, version: int, without: Set[str]
) -> tuple[list[UnsupportedNode], int, tuple[Answer, ...]]:
    """Imports all nodes. Returns the refused nodes, how many of them only for a bound, and the result of every node."""
    refused: list[UnsupportedNode] = []
    answers: list[Answer] = []
    bounds = 0
    for proto in graph.node:
        node, first = NodeView.of(proto, origin.label(proto), version), len(context.nodes)
        reason = None
        try:
            if proto.op_type in without:
                raise Refusal
            if not import_fixed(proto, context):
                _import_node(node, proto.domain, context, origin.reasons.get(node.outputs[0] if node.outputs else ""))
        except Refusal as refusal:
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
        answers.append(Answer(node.name, reason, tuple(context.nodes[first:])))
    return refused, bounds, tuple(answers)


def _reason(refusal: Refusal, graph: GraphProto) -> str:
    settable = (v.name for v in graph.input if v.type.tensor_type.elem_type in INDICES)
    if isinstance(refusal, NeedsConstantError) and refusal.name in settable:
        return f"{refusal} (--set {refusal.name}=VALUE)"
    return str(refusal)


def _needs(node: NodeView, refusal: Refusal) -> tuple[str, ...]:
    """Returns the inputs that must become constants: the input that the refusal names, or all but the data."""
    return (refusal.name,) if isinstance(refusal, NeedsConstantError) else tuple(i for i in node.inputs[1:] if i)


def _import_node(node: NodeView, domain: str, context: ImportContext, reason: str | None) -> None:
    """Imports one node. Raises `Refusal`, with an empty text if the refusal of an earlier node explains it.

    reason: why the node cannot be lowered, where it is known already.
    """
    found = find_importer(node.op_type, node.version, domain)
    if found is None:
        raise Refusal(reason or op_reason(domain, node.op_type))
    if not all(context.is_known(i) for i in node.inputs if i):
        raise Refusal
    unneeded = [o for o in node.outputs[1:] if o in context.used]
    if unneeded and not found.all_outputs:
        raise Refusal(f"its output '{unneeded[0]}' is used, only the first output is supported")
    try:
        apply(node, context, found)
    except (Refusal, RaptorError, MemoryError, OSError):
        raise
    except Exception as error:  # a bug of an importer: it names the node, and keeps the cause
        raise InternalError(f"import of {node.name} ({node.op_type}) failed: {error!r}") from error


def _has_integers(graph: GraphProto, constants: Constants) -> bool:
    """Checks whether the model computes with quantised integers; quantised constants alone do not count."""
    computed = {v.name for v in graph.input if v.name not in constants}
    for node in graph.node:
        if not computed.isdisjoint(node.input):
            if node.op_type in QUANTISED:
                return True
            computed.update(node.output)
    return False


def _quantised_by_host(graph: GraphProto, context: ImportContext, version: int) -> dict[str, Steps]:
    """Returns the float inputs that only equal quantisers read: the host quantises them."""
    readers: defaultdict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {v.name for v in graph.output}
    found: dict[str, Steps] = {}
    for name in (v.name for v in graph.input if v.name not in outputs and v.name not in context.codes):
        if all(n.op_type == "QuantizeLinear" for n in readers[name]) and readers[name]:
            # The chip handles scales in blocks; the importer refuses scales that are not constant.
            with suppress(Refusal):
                views = [NodeView.of(n, label(n), version) for n in readers[name]]
                all_steps = [quantiser(v, context, context.shape(name)) for v in views]
                if all(_are_equal(s, all_steps[0]) for s in all_steps):
                    host_coding(all_steps[0])
                    found[name] = all_steps[0]
    return found


def _are_equal(a: Steps, b: Steps) -> bool:
    return a.code == b.code and np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def _float_nodes(context: ImportContext) -> tuple[str, ...]:
    if context.floats == MODELLED:
        return ()
    floats = (n.name for n in context.nodes if context.tensors[n.output].element.kind == "float")
    return tuple(dict.fromkeys(floats))


def _assume_outputs(node: NodeView, context: ImportContext, *, floats_only: bool = False) -> None:
    """Declares the outputs of a refused node, as far as their shapes are known, so that later nodes can be imported."""
    for output in node.outputs:
        if floats_only and context.kind(output) != np.float32:
            continue
        with suppress(Refusal):
            context.input(output)


def _kinds(graph: GraphProto, origin: Origin) -> dict[str, Kind]:
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {v.name: origin.kinds.get(v.name, v.type.tensor_type.elem_type) for v in values}
    return {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in found.items() if kind in NUMBERS}


def _shapes(graph: GraphProto) -> dict[str, Shape]:
    values = (*graph.input, *graph.value_info, *graph.output)
    data = [v for v in values if v.type.tensor_type.elem_type in NUMBERS]
    shapes = {v.name: static_dims(v) for v in data}
    return {name: shape for name, shape in shapes.items() if shape is not None and math.prod(shape) > 0}


def _codes(graph: GraphProto) -> dict[str, CodeType]:
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = {v.name: v.type.tensor_type.elem_type for v in values}
    return {name: CODES[kind] for name, kind in kinds.items() if kind in CODES}
