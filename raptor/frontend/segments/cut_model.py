"""Cuts a model into segments: the chip gets the nodes that the importers accept, the host the others.

A chip segment is imported as a model of its own. Where the importers then refuse a node, because of a tensor that
crosses its border, the node moves to the host and the model is cut again, so that every returned cut can be compiled.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
from onnx import GraphProto, ModelProto

from raptor.common.errors import IncompleteError, InternalError, UnsupportedError, UnsupportedNode, UserError
from raptor.frontend import loading, support_query
from raptor.frontend.canonical import standardise
from raptor.frontend.canonical.fold_constants import lacks_kernel
from raptor.frontend.import_graph import NodeSupport
from raptor.frontend.inputs import bind_inputs
from raptor.frontend.loading import LoadedModel
from raptor.frontend.proto.model_checks import describe_node, extract_runtime_fault, find_input_fault
from raptor.frontend.proto.onnx_wrappers import find_load_fault
from raptor.frontend.segments.colour_partition import partition_colours
from raptor.frontend.segments.data_flow import DataFlow, analyse_flow
from raptor.frontend.segments.host_requests import find_requested_nodes
from raptor.frontend.segments.mac_counts import count_node_macs
from raptor.frontend.segments.submodel import Sizes, TensorTypes, extract_submodel, read_types
from raptor.frontend.support_query import QueriedModel
from raptor.graph.ir import Filter, Node
from raptor.options import HostOptions, ModelInputs

Refuse = Callable[[Node], str | None]
"""Returns the reason why an operator must not be on the chip, such as an excluded instruction; None if it may."""
READS_HOST = "reads what is computed on the host"
WITHOUT_WEIGHTS = "in a segment without weights, which is quicker on the host"


@dataclass(frozen=True, slots=True, eq=False)
class ModelSegment:
    """A convex part of the model. `model`: its imported form for the chip; None on the host.

    nodes: names of its nodes. reads, makes: tensors that cross its border. macs: its known multiply-accumulates.
    onnx_bytes: the part as an ONNX model. uncounted: number of nodes whose multiply-accumulates are unknown.
    """

    kind: Literal["chip", "host"]
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    macs: int
    onnx_bytes: bytes
    model: LoadedModel | None = None
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class CrossingTensor:
    """A tensor that crosses a segment border: its type as onnxruntime writes it, and its shape.

    Sizes that depend on values are None; the shape is None if it is unknown, or if the value is no tensor.
    """

    name: str
    type: str
    shape: Sizes | None


@dataclass(frozen=True, slots=True, eq=False)
class SegmentedModel:
    """A model in segments, in execution order.

    onnx_bytes: the original model. inputs, outputs: interface of the model, with its declared types. crossings: all
    tensors that segments read or make, with their types in the segments. host: every node on the host, with the reason.
    """

    name: str
    onnx_bytes: bytes
    segments: tuple[ModelSegment, ...]
    inputs: tuple[CrossingTensor, ...]
    outputs: tuple[CrossingTensor, ...]
    crossings: tuple[CrossingTensor, ...]
    host: tuple[UnsupportedNode, ...]
    notes: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[Any]]

    @property
    def on_chip(self) -> tuple[ModelSegment, ...]:
        return tuple(s for s in self.segments if s.kind == "chip")

    @property
    def chip_share(self) -> float | None:
        """Share of the multiply-accumulates on the chip; None if there are none or some are unknown."""
        total = sum(s.macs for s in self.segments)
        known = not any(s.uncounted for s in self.segments)
        return sum(s.macs for s in self.on_chip) / total if total and known else None


def cut_model(
    source: str | Path | ModelProto, inputs: ModelInputs, host: HostOptions, refuse: Refuse
) -> SegmentedModel:
    """Cuts a model into segments.

    Raises `UnsupportedError` for nodes that the chip cannot compute and that must not go to the host, and `UserError`
    as `frontend.load` does. With `host.host`, a model that the front end cannot read becomes one host segment, if
    onnxruntime accepts it.
    """
    model = standardise.read_standard_model(source)
    own = read_interface_types(model.proto)
    if host.host and _has_empty_input(model.proto):
        return _all_on_host(source, inputs, UserError("an input has no elements"))
    try:
        asked = support_query.query_support(model, inputs)
    except IncompleteError:
        raise
    except UserError as error:
        if not host.host:
            raise
        return _all_on_host(source, inputs, error)
    found = ModelCutter.for_model(asked, own, host, refuse).run()
    if found.on_chip:
        _check_loadable(found.segments)
        return found
    # Nothing is gained by a model that was changed for the chip: the host runs the original.
    return _all_on_host(source, inputs, UserError("nothing of the model is for the chip"), found.host)


def advise_host(source: str | Path | ModelProto, inputs: ModelInputs, refuse: Refuse) -> str:
    """Returns a sentence on the nodes that would run on the host; empty if the host does not help either."""
    try:
        found = cut_model(source, inputs, HostOptions(host=True), refuse)
    except UserError:
        return ""
    names = [n.node for n in found.host]
    if not names:
        return f"would divide the model into {len(found.segments)} programs, all on the chip"
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    count = f"{len(names)} node{'s' if len(names) != 1 else ''}"
    share = found.chip_share
    rest = "; no layer with weights stays on the chip"
    if found.on_chip and share is not None:
        rest = f"; {share:.1%} of the multiply-accumulates stay on the chip"
    elif found.on_chip:
        macs, unknown = sum(s.macs for s in found.on_chip), sum(s.uncounted for s in found.segments)
        nodes = f"{unknown} node{'s' if unknown != 1 else ''}"
        rest = f"; {macs:,} multiply-accumulates stay on the chip, those of {nodes} on the host are not known"
    return f"would run {count} on the host ({shown}){rest}"


_SHOWN = 8


def read_interface_types(proto: ModelProto) -> TensorTypes:
    """Returns the types of inputs and outputs as declared in the file, unaffected by later changes of `proto`."""
    declared = ModelProto.FromString(ModelProto(graph=_interface(proto)).SerializeToString()).graph
    return TensorTypes({v.name: v.type for v in (*declared.output, *declared.input)})


def _interface(proto: ModelProto) -> GraphProto:
    return GraphProto(input=proto.graph.input, output=proto.graph.output)


def _all_on_host(
    source: str | Path | ModelProto, inputs: ModelInputs, error: UserError, host: tuple[UnsupportedNode, ...] = ()
) -> SegmentedModel:
    """Returns the model as one host segment. Raises `error` if onnxruntime rejects it, too.

    host: nodes and reasons; if empty, all nodes with `error` as the reason.
    """
    model = standardise.read_standard_model(source)
    bound = ModelProto.FromString(model.onnx_bytes)
    own, graph = read_interface_types(bound), bound.graph
    weights = {t.name for t in graph.initializer}
    constants: Mapping[str, npt.NDArray[Any]] = _bind(bound, inputs)
    onnx_bytes = bound.SerializeToString(deterministic=True)
    if find_load_fault(onnx_bytes) is not None:
        raise error
    types = read_interface_types(bound)
    reads = tuple(v.name for v in graph.input if v.name not in weights)
    makes = tuple(dict.fromkeys(v.name for v in graph.output))
    reason = str(error).splitlines()[0]
    host = host or tuple(UnsupportedNode(describe_node(n), n.op_type, reason) for n in graph.node)
    segment = ModelSegment("host", tuple(n.node for n in host), reads, makes, 0, onnx_bytes)
    taken = tuple(_crossing(n, types) for n in reads)
    outputs = tuple(_crossing(n, own) for n in makes)
    every = tuple({c.name: c for c in (*outputs, *taken)}.values())
    return SegmentedModel(model.name, model.onnx_bytes, (segment,), taken, outputs, every, host, (), constants)


def _check_loadable(segments: tuple[ModelSegment, ...]) -> None:
    for number, segment in enumerate(segments):
        fault = find_load_fault(segment.onnx_bytes) if segment.kind == "host" else None
        if fault is not None:
            what = f"segment {number} of the host ({', '.join(segment.nodes[:_SHOWN])})"
            reason = extract_runtime_fault(fault, Path())
            if lacks_kernel(fault):
                raise UserError(f"{what}: onnxruntime does not compute it: {reason}")
            raise InternalError(f"{what}: onnxruntime refuses it: {reason}")


def _bind(proto: ModelProto, inputs: ModelInputs) -> Mapping[str, npt.NDArray[Any]]:
    """Binds the inputs in place, if all are tensors with elements; the outputs keep their declaration.

    Returns the inputs that became constants.
    """
    if _has_empty_input(proto) or not all(v.type.HasField("tensor_type") for v in proto.graph.input):
        return {}
    outputs = list(ModelProto(graph=_interface(proto)).graph.output)
    constants = bind_inputs.bind_inputs(proto, inputs).constants
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return constants


def _has_empty_input(proto: ModelProto) -> bool:
    """Checks whether a model input is declared without elements, which the chip does not support."""
    dims = (d for v in proto.graph.input for d in v.type.tensor_type.shape.dim)
    return any(d.HasField("dim_value") and d.dim_value == 0 for d in dims)


def _crossing(name: str, types: TensorTypes) -> CrossingTensor:
    return CrossingTensor(name, types.format_type(name), types.sizes(name))


@dataclass(slots=True, eq=False)
class ModelCutter:
    """State of the cut. `reasons`: node -> why it must be on the host; it only grows.

    floats: chip nodes computed by float programs of a model that also has integer programs; it only grows. macs: of
    each node, None if unknown. weighted: nodes that contain a layer with constant weights.
    """

    asked: QueriedModel
    interface: TensorTypes
    host: HostOptions
    refuse: Refuse
    flow: DataFlow
    types: TensorTypes
    macs: Sequence[int | None]
    weighted: frozenset[int]
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    floats: set[int] = field(default_factory=set[int])

    @classmethod
    def for_model(cls, asked: QueriedModel, own: TensorTypes, host: HostOptions, refuse: Refuse) -> "ModelCutter":
        types, nodes = read_types(asked.proto), asked.proto.graph.node
        both = [*zip(asked.answers, asked.float_answers, strict=True)]
        counted = [next((a.macs for a in answers if a.refusal is None), None) for answers in both]
        macs = [count_node_macs(n, types) if c is None else c for c, n in zip(counted, nodes, strict=True)]
        weighted = frozenset(
            i for i, answers in enumerate(both) if any(isinstance(n.operator, Filter) for a in answers for n in a.nodes)
        )
        return cls(asked, own, host, refuse, analyse_flow(asked.proto.graph), types, macs, weighted)

    def run(self) -> SegmentedModel:
        """Cuts the model; repeats as long as a chip segment is refused."""
        self._colour()
        while True:
            groups = self._without_idle()
            loaded = {label: self._load(nodes) for label, nodes in groups.items() if nodes[0] not in self.reasons}
            if all(isinstance(found, LoadedModel) for found in loaded.values()):
                return self._cut(groups, loaded)

    def cut_into_groups(self, groups: Sequence[Sequence[int]]) -> SegmentedModel | int:
        """Returns the cut into these groups, all on the chip, or the number of the first group that is refused."""
        loaded: dict[int, LoadedModel | None] = {}
        for number, nodes in enumerate(groups):
            loaded[number] = self._load(nodes)
            if loaded[number] is None:
                self.reasons.clear()
                return number
        return self._cut(dict(enumerate(groups)), loaded)

    def check_refused(self) -> None:
        """Raises `UnsupportedError` listing all nodes that the chip does not compute."""
        self._colour()

    def _colour(self) -> None:
        """Fills `floats`, and `reasons` with the nodes that the user puts on the host and the refused nodes."""
        self.reasons |= find_requested_nodes(self.host, self.asked)
        if self.host.host or self.host.has_named_nodes:
            self._find_floats()
        named, refused = frozenset(self.reasons), list[UnsupportedNode]()
        for i in self.flow.placed_nodes:
            reason = self.find_refusal(i)
            if reason is not None and i not in self.reasons:
                self.reasons[i] = reason or READS_HOST
                if reason:
                    refused.append(UnsupportedNode(self.node_name(i), self.flow.nodes[i].op_type, reason))
        if refused and not self.host.host:
            raise UnsupportedError(refused)
        for i in named & (self.flow.dead | self.flow.shared):
            del self.reasons[i]

    def _find_floats(self) -> None:
        """Finds the nodes that only a float program can compute, and the neighbours that can join it."""
        placed = [i for i in self.flow.placed_nodes if i not in self.reasons]
        possible = {i for i in placed if self._refusal(self.asked.float_answers[i]) is None}
        needing = {i for i in placed if self._refusal(self.asked.answers[i]) is None} - possible
        self.floats |= possible if not needing else {i for i in possible if self.find_refusal(i) is not None}
        for i in self.flow.placed_nodes:
            if i in possible and not self.floats.isdisjoint(self.flow.predecessors(i)):
                self.floats.add(i)
        for i in reversed(self.flow.placed_nodes):
            readers = {r for o in self.flow.nodes[i].output for r in self.flow.readers.get(o, ())}
            if i in possible and readers and readers <= self.floats:
                self.floats.add(i)

    def find_refusal(self, node: int) -> str | None:
        """Returns why the chip does not compute a node; None if it does, empty if an input is not on the chip."""
        return self._refusal((self.asked.float_answers if node in self.floats else self.asked.answers)[node])

    def _refusal(self, answer: NodeSupport) -> str | None:
        if answer.refusal is not None:
            return answer.refusal
        return next(filter(None, map(self.refuse, answer.nodes)), None)

    def node_name(self, node: int) -> str:
        return self.asked.answers[node].name

    def _without_idle(self) -> dict[int, list[int]]:
        """Returns the nodes of each segment, after moving chip segments without weights to the host."""
        while True:
            self._join_pairs()
            groups = self._grouped()
            idle = [nodes for nodes in groups.values() if self._is_chip(nodes) and self.weighted.isdisjoint(nodes)]
            if not idle or not self.reasons:
                return groups
            self.reasons |= {i: WITHOUT_WEIGHTS for nodes in idle for i in nodes}

    def _is_chip(self, nodes: Sequence[int]) -> bool:
        return bool(nodes) and nodes[0] not in self.reasons

    def _join_pairs(self) -> None:
        """Moves a QuantizeLinear and the DequantizeLinear that reads it to the host if either is there."""
        for i in self.flow.placed_nodes:
            if self.flow.nodes[i].op_type != "DequantizeLinear":
                continue
            for j in self.flow.predecessors(i):
                if self.flow.nodes[j].op_type == "QuantizeLinear" and (i in self.reasons) != (j in self.reasons):
                    on_host = i if i in self.reasons else j
                    self.reasons[i + j - on_host] = f"one half of {self.node_name(on_host)}, which is on the host"

    def _grouped(self) -> dict[int, list[int]]:
        placed = self.flow.placed_nodes
        at = {node: k for k, node in enumerate(placed)}
        before = [[at[j] for j in self.flow.predecessors(i)] for i in placed]
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for node, part in zip(placed, partition_colours([self._colour_of(i) for i in placed], before), strict=True):
            groups[part].append(node)
        return dict(sorted(groups.items()))

    def _colour_of(self, node: int) -> int:
        return 1 if node in self.reasons else 2 if node in self.floats else 0

    def _load(self, nodes: Sequence[int]) -> LoadedModel | None:
        """Imports a chip segment; None if it moved nodes to the host, so that the model must be cut again."""
        proto = self._piece(nodes, self._made(nodes), "segment")
        faults = {v.name: fault for v in proto.graph.input if (fault := find_input_fault(proto, v))}
        readers = {i: f"reads '{n}', which is {faults[n]}" for i in nodes for n in self.flow.reads[i] if n in faults}
        if readers:
            self.reasons |= readers
            return None
        try:
            model = loading.load(proto)
        except UnsupportedError as error:
            self._move(nodes, {n.node: n.reason for n in error.nodes})
            return None
        except UserError as error:
            self.reasons |= dict.fromkeys(nodes, str(error).splitlines()[0])
            return None
        refused = {n.name: reason for n in model.graph.nodes if (reason := self.refuse(n))}
        if refused:
            self._move(nodes, refused)
            return None
        return model

    def _move(self, nodes: Sequence[int], reasons: Mapping[str, str]) -> None:
        found = {i: reasons[self.flow.nodes[i].name] for i in nodes if self.flow.nodes[i].name in reasons}
        self.reasons |= found or dict.fromkeys(nodes, next(iter(reasons.values())))

    def _made(self, nodes: Sequence[int]) -> list[str]:
        """Returns the results of these nodes that are read outside of their segment."""
        inside, outputs = set(nodes), {v.name for v in self.asked.proto.graph.output}
        names = (o for i in nodes for o in self.flow.nodes[i].output if o)
        return [o for o in names if o in outputs or not inside.issuperset(self.flow.readers.get(o, ()))]

    def _piece(self, nodes: Sequence[int], makes: Sequence[str], what: str) -> ModelProto:
        return extract_submodel(self.asked.proto, self.flow, nodes, makes, self.types, f"{self.asked.name}.{what}")

    def _cut(self, groups: Mapping[int, Sequence[int]], loaded: Mapping[int, LoadedModel | None]) -> SegmentedModel:
        graph, constants = self.asked.proto.graph, self._constant_outputs()
        last_host = max(
            (label for label, nodes in groups.items() if not self._is_chip(nodes)), default=max(groups, default=0) + 1
        )
        if constants and last_host not in groups:
            groups = {**groups, last_host: ()}
        segments: list[ModelSegment] = []
        for number, (at, nodes) in enumerate(groups.items()):
            makes = [*self._made(nodes), *(constants if at == last_host else ())]
            proto = self._piece(nodes, makes, f"segment_{number:03d}")
            segments.append(self._segment(nodes, makes, proto, loaded.get(at)))
        inputs = [v.name for v in graph.input]
        outputs = list(dict.fromkeys(v.name for v in graph.output))
        crossing = dict.fromkeys([*inputs, *(n for s in segments for n in (*s.reads, *s.writes))])
        return SegmentedModel(
            self.asked.name,
            self.asked.onnx_bytes,
            tuple(segments),
            tuple(CrossingTensor(n, self.interface.format_type(n), self.types.sizes(n)) for n in inputs),
            tuple(CrossingTensor(n, self.interface.format_type(n), self.types.sizes(n)) for n in outputs),
            tuple(_crossing(n, self.types) for n in crossing),
            tuple(self._on_host(i) for i in self.flow.placed_nodes if i in self.reasons),
            self.asked.notes,
            self.asked.constants,
        )

    def _constant_outputs(self) -> list[str]:
        weights = {t.name for t in self.asked.proto.graph.initializer}
        return [v.name for v in self.asked.proto.graph.output if v.name in weights]

    def _on_host(self, node: int) -> UnsupportedNode:
        return UnsupportedNode(self.node_name(node), self.flow.nodes[node].op_type, self.reasons[node])

    def _segment(
        self, nodes: Sequence[int], makes: Sequence[str], proto: ModelProto, model: LoadedModel | None
    ) -> ModelSegment:
        return ModelSegment(
            "chip" if self._is_chip(nodes) else "host",
            tuple(dict.fromkeys(map(self.node_name, nodes))),
            tuple(v.name for v in proto.graph.input),
            tuple(makes),
            sum(self.macs[i] or 0 for i in nodes),
            proto.SerializeToString(deterministic=True),
            None if model is None else replace(model, name=proto.graph.name),
            sum(self.macs[i] is None for i in nodes),
        )
