"""Replaces operators of onnxruntime that language models have by standard ones, in place."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from raptor.common.errors import UnsupportedError, UnsupportedNode
from raptor.frontend.contributed import attention_expansions as attention
from raptor.frontend.contributed import simple_expansions as simple
from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, replace_nodes
from raptor.frontend.operator_sets import CONTRIB_DOMAIN, STANDARD_DOMAINS
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, infer_shapes
from raptor.frontend.proto.opset_conversion import opset_version

EXPANSIONS: Mapping[str, Callable[[ExpansionWriter], None]] = MappingProxyType(
    {
        "BiasGelu": simple.bias_gelu,
        "FastGelu": simple.fast_gelu,
        "Gelu": simple.gelu,
        "GroupQueryAttention": attention.group_query_attention,
        "MatMulNBits": simple.matmul_nbits,
        "QuickGelu": simple.quick_gelu,
        "RotaryEmbedding": attention.rotary_embedding,
        "SimplifiedLayerNormalization": simple.simplified_layer_norm,
        "SkipLayerNormalization": simple.skip_layer_norm,
        "SkipSimplifiedLayerNormalization": simple.skip_simplified_layer_norm,
    }
)
"""Operator -> function that writes its expansion; of `com.microsoft`, if nothing else is said."""
_IN_STANDARD_DOMAIN = frozenset(("SimplifiedLayerNormalization",))
"""Operators that are in the domain of ONNX, though it does not define them."""
_BY_RANK = frozenset(("RotaryEmbedding", "SimplifiedLayerNormalization"))
"""Operators whose expansion depends on the rank of an input."""
_PAST_KEYS = 3


def is_expanded(node: NodeProto) -> bool:
    """Checks whether a node is one of these operators."""
    if node.domain == CONTRIB_DOMAIN:
        return node.op_type in EXPANSIONS and node.op_type not in _IN_STANDARD_DOMAIN
    return node.domain in STANDARD_DOMAINS and node.op_type in _IN_STANDARD_DOMAIN


def find_growing_state(proto: ModelProto) -> str | None:
    """Returns the first cache of a grouped-query attention, which grows with every step; None without one."""
    found = (n for n in proto.graph.node if n.domain == CONTRIB_DOMAIN and n.op_type == "GroupQueryAttention")
    return next((n.input[_PAST_KEYS] for n in found if len(n.input) > _PAST_KEYS and n.input[_PAST_KEYS]), None)


def expand_contributed(proto: ModelProto, read_values: Callable[[TensorProto], Array]) -> dict[str, str]:
    """Replaces these operators, in place. Returns results of new nodes -> label of the replaced node.

    `read_values`: returns the value of a weight. Raises `UnsupportedError` with all nodes in a form without expansion.
    """
    if not any(map(is_expanded, proto.graph.node)):
        return {}
    names, version = UniqueNames(proto.graph), opset_version(proto)
    weights = {t.name: t for t in proto.graph.initializer}
    labels: dict[str, str] = {}
    refused: list[UnsupportedNode] = []
    dims = dict[str, tuple[int | str, ...]]()
    while pending := [n for n in proto.graph.node if is_expanded(n)]:
        dims = _known_dims(proto) if any(n.op_type in _BY_RANK for n in pending) else dims
        done = len(pending)
        nodes: list[NodeProto] = []
        refused = []
        for node in proto.graph.node:
            writer = _try(node, version, names, dims, weights, read_values, refused) if is_expanded(node) else None
            if writer is None:
                nodes.append(node)
                continue
            done -= 1
            label = node.name or node.output[0]
            labels |= {o: label for n in writer.nodes for o in n.output}
            nodes += writer.nodes
            proto.graph.initializer.extend(writer.constants)
        if done == len(pending):
            raise UnsupportedError(refused)
        replace_nodes(proto.graph, nodes)
    _drop_domain(proto)
    return labels


def _try(
    node: NodeProto,
    version: int,
    names: UniqueNames,
    dims: Mapping[str, tuple[int | str, ...]],
    weights: Mapping[str, TensorProto],
    read_values: Callable[[TensorProto], Array],
    refused: list[UnsupportedNode],
) -> ExpansionWriter | None:
    """Returns the expansion of a node; None, with a reason in `refused`, if it has none yet."""
    own = {
        name: weights[name] if not weights[name].external_data else _inline(weights[name], read_values)
        for name in node.input
        if name in weights
    }
    view = NodeView.from_proto(node, node.name or node.output[0], version)
    writer = ExpansionWriter(view, version, names, dims, own)
    try:
        EXPANSIONS[node.op_type](writer)
    except CannotExpandError as error:
        refused.append(UnsupportedNode(view.name, node.op_type, str(error)))
        return None
    return writer


def _inline(tensor: TensorProto, read_values: Callable[[TensorProto], Array]) -> TensorProto:
    return numpy_helper.from_array(read_values(tensor), tensor.name)


def _known_dims(proto: ModelProto) -> dict[str, tuple[int | str, ...]]:
    try:
        graph = infer_shapes(proto).graph
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        graph = proto.graph
    return {
        v.name: _dims(v)
        for v in (*graph.input, *graph.value_info, *graph.output)
        if v.type.tensor_type.HasField("shape")
    }


def _dims(value: ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in value.type.tensor_type.shape.dim
    )


def _drop_domain(proto: ModelProto) -> None:
    """Removes the import of the domain if no operator uses it any more."""
    if any(n.domain == CONTRIB_DOMAIN for n in proto.graph.node):
        return
    kept = [o for o in proto.opset_import if o.domain != CONTRIB_DOMAIN]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
