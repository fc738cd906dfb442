"""Expands operators outside the current standard into standard ones: parts of `ai.onnx.ml`, early experiments.

The former scale, select or sum numbers of a table. The latter left the standard with version 10 and are missing in some
builds of onnxruntime. Each expansion follows the operator's definition.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, replace_nodes
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, infer_shapes

_LEARNING = "ai.onnx.ml"
_BROADCASTING, _WHERE, _EQUAL, _INPUTS = 7, 9, 11, 13
"""First versions in which operands broadcast, Where exists, Equal takes floats, ReduceSum has its axes as input."""
_END = 2**31 - 1
_SMALLEST = np.finfo(np.float32).tiny


class _NodeWriter:
    """Builds the nodes that replace a node.

    `version`: operator set; `rank`: rank of the node's first input, None if unknown.
    """

    def __init__(self, node: NodeProto, version: int, rank: int | None, names: UniqueNames) -> None:
        self.view = NodeView.from_proto(node, node.name or node.output[0], version)
        self.version, self.rank, self.x = version, rank, node.input[0]
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._names = names

    def numbers(self, name: str) -> npt.NDArray[np.float32]:
        """Returns a float attribute as an array; empty if absent."""
        return np.asarray(self.view.attributes.get(name, ()), np.float32)

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        stem = f"{self.view.output}.{op_type.lower()}"
        name, own = self._names.unique_tensor(stem), self._names.unique_node(f"{self.view.name}.{op_type.lower()}")
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=own, **attributes))
        return name

    def constant(self, values: npt.ArrayLike) -> str:
        name = self._names.unique_tensor(f"{self.view.output}.constant")
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add_with_constant(self, op_type: str, x: str, values: Array | float, axis: int | None = None) -> str:
        """Adds arithmetic with a constant: one number, or one for each index of `axis` (None: the last)."""
        array = np.asarray(values, np.float32)
        array = array.reshape(()) if array.size == 1 else array
        if axis is not None and array.ndim and self.rank is not None:
            array = array.reshape(-1, *(1,) * (self.rank - axis - 1))
        return self.add(op_type, [x, self.constant(array)])

    def floats(self) -> str:
        return self.add("Cast", [self.x], to=TensorProto.FLOAT)


def _affine(w: _NodeWriter) -> bool:
    product = w.add_with_constant("Mul", w.x, w.view.number("alpha", 1))
    w.add_with_constant("Add", product, w.view.number("beta", 0))
    return True


def _scale(w: _NodeWriter) -> bool:
    w.add_with_constant("Mul", w.x, w.view.number("scale", 1))
    return True


def _image_scaler(w: _NodeWriter) -> bool:
    bias = w.numbers("bias")
    if w.rank != 4 and bias.size > 1:
        return False
    product = w.add_with_constant("Mul", w.x, w.view.number("scale", 1))
    if bias.size:
        w.add_with_constant("Add", product, bias, axis=1)
    return True


def _crop(w: _NodeWriter) -> bool:
    border, size = w.view.ints("border"), w.view.ints("scale")
    if len(border) != 4 or len(size) not in (0, 2):
        return False
    left, top, right, bottom = border
    ends = [top + size[0], left + size[1]] if size else [-bottom or _END, -right or _END]
    if w.version < 10:
        w.add("Slice", [w.x], starts=[top, left], ends=ends, axes=[2, 3])
    else:
        w.add("Slice", [w.x, *(w.constant(np.array(v, np.int64)) for v in ([top, left], ends, [2, 3]))])
    return True


def _softplus(w: _NodeWriter) -> bool:
    w.add_with_constant(
        "Mul", w.add("Softplus", [w.add_with_constant("Mul", w.x, w.view.number("beta", 1))]), w.view.number("alpha", 1)
    )
    return True


def _tanh(w: _NodeWriter) -> bool:
    w.add_with_constant(
        "Mul", w.add("Tanh", [w.add_with_constant("Mul", w.x, w.view.number("beta", 1))]), w.view.number("alpha", 1)
    )
    return True


def _thresholded(w: _NodeWriter) -> bool:
    if not _WHERE <= w.version < 10:
        return False
    above = w.add_with_constant("Greater", w.x, w.view.number("alpha", 1))
    w.add("Where", [above, w.x, w.constant(np.float32(0))])
    return True


def _scaler(w: _NodeWriter) -> bool:
    offset, scale = w.numbers("offset"), w.numbers("scale")
    if not offset.size or offset.size != scale.size or not _is_table(w, scale):
        return False
    w.add_with_constant("Mul", w.add_with_constant("Sub", w.floats(), offset), scale)
    return True


def _is_table(w: _NodeWriter, values: Array) -> bool:
    """Checks whether there is one number, or one per column of a table; onnxruntime treats images differently."""
    return values.size == 1 or w.rank in (1, 2)


def _normalizer(w: _NodeWriter) -> bool:
    if w.rank not in (1, 2) or w.version < _EQUAL:
        return False
    x, axis = w.floats(), w.rank - 1
    match w.view.string("norm", "MAX"):
        case "L1":
            total = _reduced(w, "ReduceSum", w.add("Abs", [x]), axis)
        case "L2":
            total = w.add("Sqrt", [_reduced(w, "ReduceSum", w.add("Mul", [x, x]), axis)])
        case _:
            most = _reduced(w, "ReduceMax", x, axis)
            is_zero = w.add_with_constant("Equal", most, 0)
            w.add("Div", [x, w.add("Where", [is_zero, w.constant(np.float32(1)), most])])
            return True
    # A row of zeros stays zero.
    w.add("Div", [x, w.add("Max", [total, w.constant(_SMALLEST)])])
    return True


def _reduced(w: _NodeWriter, op_type: str, x: str, axis: int) -> str:
    if w.version < (_INPUTS if op_type == "ReduceSum" else 18):
        return w.add(op_type, [x], axes=[axis], keepdims=1)
    return w.add(op_type, [x, w.constant(np.array([axis]))], keepdims=1)


def _binarizer(w: _NodeWriter) -> bool:
    if w.version < _WHERE:
        return False
    w.add("Cast", [w.add_with_constant("Greater", w.floats(), w.view.number("threshold", 0))], to=TensorProto.FLOAT)
    return True


def _imputer(w: _NodeWriter) -> bool:
    values = w.numbers("imputed_value_floats")
    if not values.size or not _is_table(w, values) or w.version < _EQUAL:
        return False
    replaced = w.view.number("replaced_value_float", 0)
    missing = w.add("IsNaN", [w.x]) if np.isnan(replaced) else w.add_with_constant("Equal", w.x, replaced)
    w.add("Where", [missing, w.constant(values if values.size > 1 else values.reshape(())), w.x])
    return True


def _linear_regressor(w: _NodeWriter) -> bool:
    targets, weights = w.view.integer("targets", 1), w.numbers("coefficients")
    if w.rank != 2 or w.view.string("post_transform", "NONE") != "NONE" or weights.size % targets:
        return False
    product = w.add("MatMul", [w.floats(), w.constant(np.ascontiguousarray(weights.reshape(targets, -1).T))])
    if w.numbers("intercepts").size == targets:
        w.add_with_constant("Add", product, w.numbers("intercepts"))
    return True


def _extractor(w: _NodeWriter) -> bool:
    if w.rank is None or w.rank < 2 or len(w.view.inputs) < 2:
        return False
    places = w.add("Reshape", [w.view.inputs[1], w.constant(np.array([-1]))])
    w.add("Gather", [w.x, places], axis=w.rank - 1)
    return True


_WRITERS: Mapping[tuple[str, str], Callable[[_NodeWriter], bool]] = MappingProxyType(
    {
        ("", "Affine"): _affine,
        ("", "Crop"): _crop,
        ("", "ImageScaler"): _image_scaler,
        ("", "ParametricSoftplus"): _softplus,
        ("", "Scale"): _scale,
        ("", "ScaledTanh"): _tanh,
        ("", "ThresholdedRelu"): _thresholded,
        (_LEARNING, "ArrayFeatureExtractor"): _extractor,
        (_LEARNING, "Binarizer"): _binarizer,
        (_LEARNING, "Imputer"): _imputer,
        (_LEARNING, "LinearRegressor"): _linear_regressor,
        (_LEARNING, "Normalizer"): _normalizer,
        (_LEARNING, "Scaler"): _scaler,
    }
)


def expand_legacy_operators(proto: ModelProto) -> bool:
    """Replaces these operators by standard ones, in place; names of results and nodes are kept.

    Returns False if nothing was replaced. Operator sets before 7 are left: onnxruntime lacks their arithmetic.
    """
    if not any((n.domain, n.op_type) in _WRITERS and n.input for n in proto.graph.node):
        return False
    version = next((o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS), 0)
    if 0 < version < _BROADCASTING:
        return False
    ranks, names = _ranks(proto), UniqueNames(proto.graph)
    nodes: list[NodeProto] = []
    changed = False
    for node in proto.graph.node:
        writer = _written(node, version or _INPUTS, ranks, names)
        if writer is None:
            nodes.append(node)
            continue
        changed = True
        nodes += writer.nodes
        proto.graph.initializer.extend(writer.constants)
    replace_nodes(proto.graph, nodes)
    if changed and not version:
        proto.opset_import.append(helper.make_opsetid("", _INPUTS))
    return changed


def _written(node: NodeProto, version: int, ranks: dict[str, int], names: UniqueNames) -> _NodeWriter | None:
    write = _WRITERS.get((node.domain, node.op_type))
    if write is None or not node.input:
        return None
    writer = _NodeWriter(node, version, ranks.get(node.input[0]), names)
    if not write(writer):
        return None
    last = writer.nodes[-1]
    last.output[0], last.name = node.output[0], node.name
    if writer.rank is not None:
        ranks[node.output[0]] = writer.rank
    return writer


def _ranks(proto: ModelProto) -> dict[str, int]:
    try:
        graph = infer_shapes(proto).graph
    except (InvalidTypes, ValueError):  # the canonicaliser reports the error
        graph = proto.graph
    kinds = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}
    return {name: len(kind.shape.dim) for name, kind in kinds.items() if kind.HasField("shape")}
