"""Type checker of operands: every node against the type constraints of its operator.

onnx's checker only looks at names and attributes, and its shape inference checks few types.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from raptor.common.errors import UserError
from raptor.frontend.proto.onnx_wrappers import FormalParameter, InvalidTypes, formal_parameters, infer_shapes
from raptor.frontend.proto.read_model import subgraphs

MOST_SHOWN = 50
"""Maximum number of nodes in the message."""
_SPELLED: Mapping[str, str] = MappingProxyType({"float": "float32", "double": "float64"})


def check_types(proto: ModelProto) -> None:
    """Raises `UserError` listing all nodes with operands of types that their operator excludes, alone or together.

    Tensors without a known type and operators unknown to onnx are not checked.
    """
    try:
        inferred = infer_shapes(proto)
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        inferred = proto
    versions = {o.domain: o.version for o in proto.opset_import}
    faults = list(_faults(inferred.graph, {}, versions))
    if faults:
        more = [f"  and {len(faults) - MOST_SHOWN} more"] if len(faults) > MOST_SHOWN else []
        count = f"{len(faults)} node{'s have' if len(faults) > 1 else ' has'} operands of a wrong type"
        raise UserError("\n".join([f"not a valid ONNX model: {count}:", *faults[:MOST_SHOWN], *more]))


def _faults(graph: GraphProto, outer: Mapping[str, str], versions: Mapping[str, int]) -> Iterator[str]:
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {**outer, **{v.name: text for v in values if (text := _text(v.type))}}
    types |= {t.name: _text(_tensor_type(t.data_type)) for t in graph.initializer}
    for node in graph.node:
        fault = _fault(node, types, versions.get(node.domain, 0))
        if fault:
            yield f"  {node.name or (node.output or [''])[0]} ({node.op_type}): {fault}"
        for inner in subgraphs(node):
            yield from _faults(inner, types, versions)


def _fault(node: NodeProto, types: Mapping[str, str], version: int) -> str:
    if node.op_type == "Constant":
        return ""  # it has the type of its value: onnxruntime takes any, whatever the version
    bound: dict[str, tuple[str, str]] = {}
    sides = ("input", node.input), ("output", node.output)
    for side, names in sides:
        for name, formal in zip(names, formal_parameters(node, version, side), strict=False):
            found = types.get(name) if name else None
            if found is None:
                continue
            what = f"its {side} '{name}' is {spell_type(found)}"
            if found not in formal.types:
                return f"{what}, must be {_choice(formal)}"
            first, kind = bound.setdefault(formal.variable, (what, found))
            if formal.variable and kind != found:
                return f"{first}, but {what}: they must have one type"
    return ""


def _choice(formal: FormalParameter) -> str:
    tensors = [spell_type(kind) for kind in sorted(formal.types) if kind.startswith("tensor(")]
    return f"one of {', '.join(tensors)}" if len(tensors) > 1 else spell_type(min(formal.types))


def _tensor_type(elem_type: int) -> TypeProto:
    return TypeProto(tensor_type=TypeProto.Tensor(elem_type=elem_type))


def _text(kind: TypeProto) -> str:
    """Returns a type as in operator schemas, `seq(tensor(float))`; empty if unknown."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            known = kind.tensor_type.elem_type
            return f"tensor({TensorProto.DataType.Name(known).lower()})" if known else ""
        case "sequence_type":
            inner = _text(kind.sequence_type.elem_type)
            return inner and f"seq({inner})"
        case "optional_type":
            inner = _text(kind.optional_type.elem_type)
            return inner and f"optional({inner})"
        case _:
            return ""


def spell_type(kind: str) -> str:
    """Returns a type as in messages: `float32` for `tensor(float)`."""
    if not kind.startswith("tensor("):
        return kind
    name = kind[len("tensor(") : -1]
    return _SPELLED.get(name, name)
