"""Replaces operators of onnxruntime that language models have by standard ones, in place."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from raptor.common.errors import UnsupportedError, UnsupportedNode
from raptor.frontend.contributed import attention_expansions as attention
from raptor.frontend.contributed import embedding_expansions as embedding
from raptor.frontend.contributed import multi_head_expansions as multi_head
from raptor.frontend.contributed import simple_expansions as simple
from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter, KnownTensors
from raptor.frontend.control_flow.eliminate_control_flow import is_control_flow
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, read_constant, replace_nodes
from raptor.frontend.operator_sets import CONTRIB_DOMAIN, RANDOM_OPS, STANDARD_DOMAINS
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, infer_shapes, run_node
from raptor.frontend.proto.opset_conversion import opset_version

EXPANSIONS: Mapping[str, Callable[[ExpansionWriter], None]] = MappingProxyType(
    {
        "Attention": multi_head.attention,
        "BiasGelu": simple.bias_gelu,
        "EmbedLayerNormalization": embedding.embed_layer_norm,
        "FastGelu": simple.fast_gelu,
        "GatherBlockQuantized": embedding.gather_block_quantized,
        "Gelu": simple.gelu,
        "GroupQueryAttention": attention.group_query_attention,
        "MatMulNBits": simple.matmul_nbits,
        "MultiHeadAttention": multi_head.multi_head_attention,
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
_WITH_CACHES: Mapping[str, Callable[[ExpansionWriter], None]] = MappingProxyType(
    {"Attention": multi_head.standard_attention}
)
"""Operators of ONNX that are expanded where they append rows to a cache."""
_BY_RANK = frozenset(
    ("Attention", "GroupQueryAttention", "MultiHeadAttention", "RotaryEmbedding", "SimplifiedLayerNormalization")
)
"""Operators whose expansion depends on the rank, the type or a size of an input."""
_PAST_KEYS = 3


def is_expanded(node: NodeProto) -> bool:
    """Checks whether a node is one of these operators."""
    return _find_expansion(node, with_caches=False) is not None


def _find_expansion(node: NodeProto, *, with_caches: bool) -> Callable[[ExpansionWriter], None] | None:
    own = node.op_type in _IN_STANDARD_DOMAIN
    if node.domain == CONTRIB_DOMAIN:
        return None if own else EXPANSIONS.get(node.op_type)
    if node.domain not in STANDARD_DOMAINS:
        return None
    return EXPANSIONS[node.op_type] if own else _WITH_CACHES.get(node.op_type) if with_caches else None


def find_growing_state(proto: ModelProto) -> str | None:
    """Returns the first cache of a grouped-query attention, which grows with every step; None without one."""
    found = (n for n in proto.graph.node if n.domain == CONTRIB_DOMAIN and n.op_type == "GroupQueryAttention")
    return next((n.input[_PAST_KEYS] for n in found if len(n.input) > _PAST_KEYS and n.input[_PAST_KEYS]), None)


def expand_contributed(
    proto: ModelProto, read_values: Callable[[TensorProto], Array], *, with_caches: bool = False
) -> dict[str, str]:
    """Replaces these operators, in place. Returns results of new nodes -> label of the replaced node.

    `read_values`: returns the value of a weight. `with_caches`: Attention of ONNX is replaced, too. Raises
    `UnsupportedError` with all nodes in a form without expansion.
    """

    def count() -> int:
        return sum(_find_expansion(n, with_caches=with_caches) is not None for n in proto.graph.node)

    if not count():
        return {}
    expander = _Expander(proto, read_values, with_caches)
    while left := count():
        expander.expand_all()
        if count() == left:
            raise UnsupportedError(expander.refused)
    _drop_domain(proto)
    return expander.labels


class _Expander:
    """Replaces nodes of a model. `labels`: results of new nodes -> label of the replaced node."""

    def __init__(self, proto: ModelProto, read_values: Callable[[TensorProto], Array], with_caches: bool) -> None:
        self.proto, self.read_values, self.with_caches = proto, read_values, with_caches
        self.names, self.version = UniqueNames(proto.graph), opset_version(proto)
        self.weights = {t.name: t for t in proto.graph.initializer}
        self.makers = {o: node for node in proto.graph.node for o in node.output if o}
        self.known = KnownTensors({}, {})
        self.computed: dict[str, TensorProto | None] = {}
        self.labels: dict[str, str] = {}
        self.refused: list[UnsupportedNode] = []

    def expand_all(self) -> None:
        """Replaces each node whose expansion the shapes known so far allow."""
        found = [(n, _find_expansion(n, with_caches=self.with_caches)) for n in self.proto.graph.node]
        if any(n.op_type in _BY_RANK for n, expand in found if expand):
            self.known = _find_known(self.proto)
        self.refused = []
        nodes: list[NodeProto] = []
        for node, expand in found:
            writer = self._try(node, expand) if expand else None
            if writer is None:
                nodes.append(node)
                continue
            label = node.name or node.output[0]
            self.labels |= {o: label for n in writer.nodes for o in n.output}
            nodes += writer.nodes
            self.proto.graph.initializer.extend(writer.constants)
        replace_nodes(self.proto.graph, nodes)

    def _try(self, node: NodeProto, expand: Callable[[ExpansionWriter], None]) -> ExpansionWriter | None:
        """Returns the expansion of a node; None, with a reason in `refused`, if it has none yet."""
        own = {name: t for name in node.input if name and (t := self._find_constant(name)) is not None}
        view = NodeView.from_proto(node, node.name or node.output[0], self.version)
        writer = ExpansionWriter(view, self.version, self.names, self.known, own)
        try:
            expand(writer)
        except CannotExpandError as error:
            self.refused.append(UnsupportedNode(view.name, node.op_type, str(error)))
            return None
        return writer

    def _find_constant(self, name: str) -> TensorProto | None:
        """Returns a weight, or what nodes make of weights alone; None for anything else."""
        if (weight := self.weights.get(name)) is not None:
            return _inline(weight, self.read_values) if weight.external_data else weight
        if name not in self.computed:
            self.computed[name] = self._compute_constant(name)
        return self.computed[name]

    def _compute_constant(self, name: str) -> TensorProto | None:
        node = self.makers.get(name)
        if node is None or node.op_type in RANDOM_OPS or node.domain not in STANDARD_DOMAINS:
            return None
        if node.op_type == "Constant":
            return read_constant(node)
        operands = {n: self._find_constant(n) for n in node.input if n}
        known = {n: self.read_values(t) for n, t in operands.items() if t is not None}
        if not operands or len(known) < len(operands) or is_control_flow(node):
            return None
        found = run_node(node, known, self.proto.opset_import) or []
        values = dict(zip(filter(None, node.output), found, strict=False))
        return numpy_helper.from_array(np.asarray(values[name]), name) if name in values else None


def _inline(tensor: TensorProto, read_values: Callable[[TensorProto], Array]) -> TensorProto:
    return numpy_helper.from_array(read_values(tensor), tensor.name)


def _find_known(proto: ModelProto) -> KnownTensors:
    try:
        graph = infer_shapes(proto).graph
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        graph = proto.graph
    values = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    return KnownTensors(
        {name: _dims(v) for name, v in values.items() if v.type.tensor_type.HasField("shape")},
        {name: v.type.tensor_type.elem_type for name, v in values.items()},
    )


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
