"""Extracts a set of nodes from an ONNX graph as a model of its own; names stay, unused weights are dropped."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from raptor.common.errors import UserError
from raptor.frontend.proto import read_model
from raptor.frontend.segments.data_flow import DataFlow, find_outer_reads
from raptor.frontend.support_query import is_typed

Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorTypes:
    """Types of tensors by name, as ONNX describes them."""

    known: Mapping[str, TypeProto]

    def enter_graph(self, graph: GraphProto) -> "TensorTypes":
        """Returns the types in a graph, which may be a subgraph; outer types remain known."""
        values = {v.name: v.type for v in (*graph.output, *graph.value_info, *graph.input) if is_typed(v.type)}
        weights = {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
        return TensorTypes({**self.known, **values, **weights})

    def make_value_info(self, name: str) -> ValueInfoProto:
        """Returns name and type of a tensor, without the type if it is unknown."""
        value = ValueInfoProto(name=name)
        if name in self.known:
            value.type.CopyFrom(self.known[name])
        return value

    def sizes(self, name: str) -> Sizes | None:
        """Returns the shape of a tensor, None for each size that depends on values; None if no shape is known."""
        if name not in self.known or not self.known[name].tensor_type.HasField("shape"):
            return None
        dims = self.known[name].tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the shape of a tensor; None if a size is unknown."""
        return find_static_shape(self.sizes(name))

    def format_type(self, name: str) -> str:
        """Returns the type as onnxruntime writes it, `tensor(float)`; empty if unknown."""
        return _text(self.known[name]) if name in self.known else ""


def find_static_shape(sizes: Sizes | None) -> tuple[int, ...] | None:
    """Returns the shape if all its sizes are known; else None."""
    known = tuple(size for size in sizes or () if size is not None)
    return None if sizes is None or len(known) < len(sizes) else known


def read_types(proto: ModelProto) -> TensorTypes:
    """Returns the types of all tensors of a model, inner ones included."""
    return TensorTypes({}).enter_graph(proto.graph)


def _text(kind: TypeProto) -> str:
    match kind.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({_ELEMENTS.get(kind.tensor_type.elem_type, 'unknown')})"
        case "sequence_type":
            return f"seq({_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = _ELEMENTS.get(kind.map_type.key_type, "unknown")
            return f"map({key},{_text(kind.map_type.value_type)})"
        case other:
            return str(other)


_ELEMENTS = {number: name.lower() for name, number in TensorProto.DataType.items()}


def extract_submodel(
    proto: ModelProto, flow: DataFlow, nodes: Sequence[int], makes: Iterable[str], types: TensorTypes, name: str
) -> ModelProto:
    """Returns a model of the given nodes and the shared nodes that they read. `makes`: its outputs.

    Its inputs are the tensors that it reads and does not compute. Raises `UserError` if it exceeds 2 GiB.
    """
    chosen = _with_shared(flow, nodes)
    own = dict.fromkeys(o for i in chosen for o in flow.nodes[i].output)  # in order: same input, same bytes
    makes = dict.fromkeys(makes)
    wanted = {n for i in chosen for n in find_outer_reads(flow.nodes[i])} | makes.keys()
    inputs = dict.fromkeys(n for i in chosen for n in flow.reads[i] if n not in own)
    cut = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = cut.graph
    graph.name = name
    graph.node.extend(flow.nodes[i] for i in chosen)
    graph.initializer.extend(t for t in proto.graph.initializer if t.name in wanted)
    graph.sparse_initializer.extend(t for t in proto.graph.sparse_initializer if t.values.name in wanted)
    graph.input.extend(types.make_value_info(n) for n in inputs)
    graph.output.extend(types.make_value_info(n) for n in makes)
    graph.value_info.extend(types.make_value_info(n) for n in own if n not in makes and n in types.known)
    if cut.ByteSize() > read_model.LIMIT_BYTES:
        raise UserError(f"{name}: with its weights, this segment is larger than 2 GiB, the limit of ONNX")
    return cut


def _with_shared(flow: DataFlow, nodes: Sequence[int]) -> list[int]:
    """Adds the shared nodes that these nodes need, directly or indirectly; in topological order."""
    chosen, open_ = set(nodes), list(nodes)
    while open_:
        for name in flow.reads[open_.pop()]:
            maker = flow.producers.get(name)
            if maker in flow.shared and maker not in chosen:
                chosen.add(maker)
                open_.append(maker)
    return sorted(chosen)
