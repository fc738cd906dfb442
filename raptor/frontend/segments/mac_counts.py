"""Multiply-accumulate counts of ONNX nodes that the chip does not compute."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from onnx import NodeProto

from raptor.frontend.operator_sets import CONTRIB_DOMAIN, STANDARD_DOMAINS
from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.proto.read_model import subgraphs
from raptor.frontend.segments.submodel import TensorTypes

_LEARNING = "ai.onnx.ml"
_GATES: Mapping[str, int] = MappingProxyType({"LSTM": 4, "GRU": 3, "RNN": 1})


class _UnknownError(Exception):
    """Raised if the count depends on an unknown size."""


def count_node_macs(node: NodeProto, types: TensorTypes) -> int | None:
    """Returns the multiply-accumulates of a node; None if they are unknown.

    Unknown are nodes with unknown sizes, loops with products inside, and operators of other libraries. Element-wise
    products do not count. Of the branches of an If, the largest counts.
    """
    try:
        return _counted(node, types)
    except (_UnknownError, LookupError, ValueError, ZeroDivisionError):  # the latter three: inconsistent shapes
        return None


def _counted(node: NodeProto, types: TensorTypes) -> int:
    bodies = list(subgraphs(node))
    if bodies:
        inside = [sum(_counted(n, types.enter_graph(graph)) for n in graph.node) for graph in bodies]
        if any(inside) and node.op_type != "If":
            raise _UnknownError
        return max(inside)
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    count = _PRODUCTS.get((domain, node.op_type))
    if count is not None:
        return count(_Operands(node, types, read_attributes(node)))
    if domain in ("", _LEARNING) or (domain == CONTRIB_DOMAIN and node.op_type in _WITHOUT_PRODUCTS):
        return 0
    raise _UnknownError


@dataclass(frozen=True, slots=True)
class _Operands:
    """Shapes of a node's operands and result. Raises `_UnknownError` for a shape that is not known."""

    node: NodeProto
    types: TensorTypes
    attributes: Mapping[str, Any]

    def has(self, position: int) -> bool:
        return position < len(self.node.input) and bool(self.node.input[position])

    def shape(self, position: int) -> tuple[int, ...]:
        return self._known(self.node.input[position] if self.has(position) else "")

    @property
    def result(self) -> tuple[int, ...]:
        return self._known(self.node.output[0])

    def _known(self, name: str) -> tuple[int, ...]:
        found = self.types.shape(name)
        if found is None:
            raise _UnknownError
        return found


def _convolution(weights: int) -> Callable[[_Operands], int]:
    return lambda x: math.prod(x.result) * math.prod(x.shape(weights)[1:])


def _transposed_convolution(x: _Operands) -> int:
    return math.prod(x.shape(0)) * math.prod(x.shape(1)[1:])


def _product(x: _Operands) -> int:
    first = x.shape(0)
    return math.prod(x.result) * first[-2 if x.attributes.get("transA", 0) and len(first) > 1 else -1]


def _packed_product(x: _Operands) -> int:
    """Product with weights in packed blocks; their shape does not give the sizes."""
    return math.prod(x.shape(0)) * int(x.attributes["N"])


def _einsum(x: _Operands) -> int:
    """Every combination of indices is one product; with a single operand there is none."""
    terms = x.attributes["equation"].decode().replace(" ", "").partition("->")[0].split(",")
    if len(terms) < 2:
        return 0
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        shape, letters = x.shape(position), term.replace("...", "")
        axes = [*term.partition("...")[0]], [*term.partition("...")[2]]
        open_ = len(shape) - len(letters)
        names = [*axes[0], *(f".{k - open_}" for k in range(open_)), *axes[1]]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    return math.prod(sizes.values())


def _recurrent(x: _Operands) -> int:
    (steps, batch, _), (directions, rows, size) = x.shape(0), x.shape(1)
    return directions * steps * batch * rows * (size + rows // _GATES[x.node.op_type])


def _quantised_recurrent(x: _Operands) -> int:
    """LSTM whose weights are [directions, size, rows]."""
    (steps, batch, _), (directions, size, rows) = x.shape(0), x.shape(1)
    return directions * steps * batch * rows * (size + rows // _GATES["LSTM"])


def _attention(x: _Operands) -> int:
    """Products for the scores and with the values; heads are an axis, or parts of the last one."""
    query, key, value = x.shape(0), x.shape(1), x.shape(2)
    heads = query[1] if len(query) == 4 else int(x.attributes["q_num_heads"])
    ones = heads if len(query) == 4 else int(x.attributes["kv_num_heads"])
    wide, deep = (key[-1], value[-1]) if len(query) == 4 else (key[-1] // ones, value[-1] // ones)
    past = x.shape(4)[2] if x.has(4) else 0
    return query[0] * heads * query[-2] * (key[-2] + past) * (wide + deep)


def _projected_attention(past: int) -> Callable[[_Operands], int]:
    """Attention that projects query, key and value in one product; `past`: input of earlier keys and values."""

    def count(x: _Operands) -> int:
        (batch, length, size), columns = x.shape(0), x.shape(1)[-1]
        query, _, value = x.attributes.get("qkv_hidden_sizes") or [columns // 3] * 3
        earlier = x.shape(past)[3] if x.has(past) else 0
        return batch * length * (size * columns + (length + earlier) * (query + value))

    return count


def _many_headed_attention(x: _Operands) -> int:
    query = x.shape(0)
    if not x.has(1) or not x.has(2) or len(query) != 3:
        raise _UnknownError  # query, key and value in one tensor
    key, value = x.shape(1), x.shape(2)
    length, deep = (key[1], value[2]) if len(value) == 3 else (value[2], value[1] * value[3])
    past = x.shape(6)[2] if x.has(6) else 0
    return query[0] * query[1] * (length + past) * (query[2] + deep)


def _grouped_attention(x: _Operands) -> int:
    """Attention in which groups of heads share keys and values; without a key input, the query holds all three."""
    (batch, length, size), heads = x.shape(0), int(x.attributes["num_heads"])
    wide = size // heads if x.has(1) else size // (heads + 2 * int(x.attributes["kv_num_heads"]))
    past = x.shape(3)[2] if x.has(3) else 0
    return 2 * batch * length * (length + past) * heads * wide


def _linear(x: _Operands) -> int:
    """Product of each input row with all coefficients or support vectors."""
    shape, factors = x.shape(0), x.attributes.get("support_vectors") or x.attributes.get("coefficients") or ()
    return (shape[0] if len(shape) > 1 else 1) * len(factors)


def _unknown(_: _Operands) -> int:
    raise _UnknownError


_PRODUCTS: Mapping[tuple[str, str], Callable[[_Operands], int]] = MappingProxyType(
    {
        **{("", name): _convolution(1) for name in ("Conv", "ConvInteger", "DeformConv")},
        **{("", name): _product for name in ("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")},
        **{("", name): _recurrent for name in _GATES},
        ("", "QLinearConv"): _convolution(3),
        ("", "ConvTranspose"): _transposed_convolution,
        ("", "Einsum"): _einsum,
        ("", "Attention"): _attention,
        **{("", name): _unknown for name in ("CausalConvWithState", "LinearAttention")},
        **{(CONTRIB_DOMAIN, name): _convolution(1) for name in ("FusedConv", "NhwcConv", "NhwcFusedConv")},
        (CONTRIB_DOMAIN, "QLinearConv"): _convolution(3),
        (CONTRIB_DOMAIN, "ConvTransposeWithDynamicPads"): _transposed_convolution,
        **{
            (CONTRIB_DOMAIN, name): _product
            for name in (
                *("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul", "GemmFastGelu", "MatMulInteger16"),
                *("MatMulIntegerToFloat", "QGemm", "TransposeMatMul"),
            )
        },
        (CONTRIB_DOMAIN, "CDist"): lambda x: math.prod(x.shape(0)) * x.shape(1)[0],
        **{(CONTRIB_DOMAIN, name): _packed_product for name in ("MatMulBnb4", "MatMulNBits")},
        (CONTRIB_DOMAIN, "DynamicQuantizeLSTM"): _quantised_recurrent,
        (CONTRIB_DOMAIN, "Attention"): _projected_attention(4),
        (CONTRIB_DOMAIN, "QAttention"): _projected_attention(8),
        (CONTRIB_DOMAIN, "MultiHeadAttention"): _many_headed_attention,
        (CONTRIB_DOMAIN, "GroupQueryAttention"): _grouped_attention,
        **{
            (_LEARNING, name): _linear
            for name in ("LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor")
        },
    }
)
"""(domain, operator) -> function that counts. Other standard operators, and decision trees, have no products."""


_WITHOUT_PRODUCTS = frozenset(
    (
        *("BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "BifurcationDetector"),
        *("BitmaskBiasDropout", "BitmaskDropout", "ComplexMul", "ComplexMulConj", "CropAndResize", "DequantizeLinear"),
        *("EmbedLayerNormalization", "ExpandDims", "FastGelu", "GatedAdd", "GatherBlockQuantized", "GatherND", "Gelu"),
        *("GemmaRotaryEmbedding", "GridSample", "GroupNorm", "IsAllFinite", "MaxpoolWithMask", "MulInteger"),
        *("MurmurHash3", "NGramRepeatBlock", "NhwcMaxPool", "Pad", "QEmbedLayerNormalization", "QLinearAdd"),
        *("QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul"),
        *("QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuantizeLinear", "QuickGelu"),
        *("Range", "ReduceSumInteger", "RelativePositionBias", "RemovePadding", "RestorePadding", "RotaryEmbedding"),
        *("SampleOp", "ScaledSiLU", "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
        *("SwiGLU", "Tokenizer", "TorchEmbedding", "Trilu", "UnfoldTensor", "Unique", "Irfft", "Rfft"),
    )
)
"""onnxruntime operators without products. The count of an operator in neither table is unknown."""
