"""Divides a model into units, the smallest parts between which rounds can cut it.

A unit is one layer with weights and the nodes after it up to the next such layer. A `DequantizeLinear` is copied into
every piece that reads it, so that integers cross a cut and not the floats made of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto, TensorProto

from raptor.frontend import support_query
from raptor.frontend.canonical import standardise
from raptor.frontend.segments.cut_model import ModelCutter, Refuse, SegmentedModel, read_interface_types
from raptor.frontend.segments.data_flow import DataFlow
from raptor.frontend.segments.submodel import TensorTypes
from raptor.frontend.support_query import QueriedModel
from raptor.graph.ir import Graph
from raptor.options import HostOptions, ModelInputs

ModelSource = str | Path | ModelProto

_CROSSING = frozenset((TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8))
"""Element types that may cross a cut, because every layer accepts them as input."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelUnits:
    """A model in units. nodes: ONNX nodes of each unit. cuts: numbers of the units before which the model can be cut.

    graph: all nodes as imported. unit_of: tensor of the graph -> unit that computes it.
    """

    cutter: ModelCutter
    nodes: tuple[tuple[int, ...], ...]
    cuts: frozenset[int]
    graph: Graph
    unit_of: Mapping[str, int]

    @property
    def asked(self) -> QueriedModel:
        return self.cutter.asked

    def unit_name(self, unit: int) -> str:
        """Returns the name of the unit's layer with weights."""
        weighted = [i for i in self.nodes[unit] if i in self.cutter.weighted]
        return self.cutter.node_name((weighted or [*self.nodes[unit]])[0])

    def crossing_tensors(self, cut: int) -> tuple[str, ...]:
        """Returns the tensors that cross a cut: model inputs and results of earlier units that later units read."""
        flow, behind = self.cutter.flow, {i for unit in self.nodes[cut:] for i in unit}
        inputs = [v.name for v in self.asked.proto.graph.input]
        made = (o for unit in self.nodes[:cut] for i in unit for o in flow.nodes[i].output if o)
        return tuple(name for name in (*inputs, *made) if not behind.isdisjoint(flow.readers.get(name, ())))

    def live_tensors(self, first: int, last: int) -> tuple[str, ...]:
        """Returns the tensors in memory while units `first` to `last` run: crossing tensors and model outputs."""
        outputs, flow = {v.name for v in self.asked.proto.graph.output}, self.cutter.flow
        made = (o for unit in self.nodes[first:last] for i in unit for o in flow.nodes[i].output if o in outputs)
        return tuple(dict.fromkeys((*self.crossing_tensors(first), *made, *self.crossing_tensors(last))))

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor that crosses a cut."""
        shape = self.cutter.types.shape(name)
        assert shape is not None, "a tensor of the chip has a known shape"
        return shape

    def is_float(self, name: str) -> bool:
        return self.cutter.types.known[name].tensor_type.elem_type == TensorProto.FLOAT

    def cut_before(self, cuts: Sequence[int]) -> SegmentedModel | int:
        """Returns the model cut before these units, or the number of the first piece that cannot be imported."""
        ends = [*cuts, len(self.nodes)]
        groups = [[i for unit in self.nodes[a:b] for i in unit] for a, b in zip([0, *cuts], ends, strict=True) if a < b]
        return self.cutter.cut_into_groups(groups)


def divide_into_units(source: ModelSource, inputs: ModelInputs, refuse: Refuse) -> ModelUnits:
    """Divides a model that the chip can compute into units. Raises `UserError` as `frontend.load` does."""
    model = standardise.read_standard_model(source)
    own = read_interface_types(model.proto)
    cutter = ModelCutter.for_model(support_query.query_support(model, inputs), own, HostOptions(), refuse)
    cutter.check_refused()
    cutter.flow = _copying(cutter.flow, cutter.asked.proto)
    nodes = _grouped(cutter.flow, cutter.weighted)
    number = {i: k for k, unit in enumerate(nodes) for i in unit}
    graph, unit_of = cutter.asked.graph, dict[str, int]()
    for i, answer in enumerate(cutter.asked.answers):
        readers = [
            number[r] for o in cutter.flow.nodes[i].output for r in cutter.flow.readers.get(o, ()) if r in number
        ]
        at = number.get(i, min(readers, default=0))
        unit_of |= {node.output: at for node in answer.nodes}
    units = ModelUnits(cutter, nodes, frozenset(), graph, unit_of)
    return replace(units, cuts=frozenset(k for k in range(1, len(nodes)) if _can_cut(units, k, cutter.types)))


def _can_cut(units: ModelUnits, cut: int, types: TensorTypes) -> bool:
    names = units.crossing_tensors(cut)
    return all(n in types.known and types.known[n].tensor_type.elem_type in _CROSSING for n in names) and all(
        types.shape(n) is not None for n in names
    )


def _copying(flow: DataFlow, proto: ModelProto) -> DataFlow:
    """Returns the flow with every `DequantizeLinear` that is no output marked as shared."""
    outputs = {v.name for v in proto.graph.output}
    copied = frozenset(
        i
        for i in flow.placed_nodes
        if flow.nodes[i].op_type == "DequantizeLinear" and outputs.isdisjoint(flow.nodes[i].output)
    )
    readers = {name: list(found) for name, found in flow.readers.items()}
    for i in sorted(copied, reverse=True):
        for name in flow.reads[i]:
            behind = (r for o in flow.nodes[i].output for r in readers.get(o, ()))
            readers[name] = sorted({*readers.get(name, ()), *behind} - {i})
    return replace(flow, shared=flow.shared | copied, readers=readers)


def _grouped(flow: DataFlow, weighted: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    units: list[list[int]] = [[]]
    for i in flow.placed_nodes:
        if i in weighted and not weighted.isdisjoint(units[-1]):
            units.append([])
        units[-1].append(i)
    return tuple(map(tuple, units))
