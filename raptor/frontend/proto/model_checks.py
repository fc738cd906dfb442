"""Checks of an ONNX model before it is imported: standard conformance, inputs, tensor sizes, weights."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from raptor.common.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.frontend.operator_sets import MOVE_OPS, QUANTISED_OPS
from raptor.frontend.proto.onnx_wrappers import InvalidModel, check_standard, function_versions
from raptor.frontend.proto.opset_conversion import opset_version
from raptor.frontend.proto.read_model import SourceModel
from raptor.frontend.registry import explain_unsupported, is_supported_op
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Filter,
    Graph,
    Map,
    Numbers,
    Operator,
    Stencil,
    Take,
)

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_OF_A_NODE = (
    re.compile(r"Node \((?P<node>[^)]*)\) Op \((?P<op_type>\w+)\) \[\w+\] (?P<fault>.*)"),
    re.compile(r"running (?P<op_type>\w+) node\. Name:'(?P<node>[^']*)' Status Message: (?P<fault>.*)"),
    re.compile(r"\(op_type:(?P<op_type>\w+), node name: (?P<node>[^)]*)\): (?P<fault>.*)"),
)
"""Messages of onnx and onnxruntime about one node."""
_WHERE = re.compile(r"^/onnxruntime_src/.* was false\. |^/onnxruntime_src/\S+ ")
"""Source location in messages of onnxruntime."""
MOST_ELEMENTS = 2**28
"""Maximum number of elements of one tensor, 1 GiB as float32: a few bytes of a model can request any size."""
FLOAT_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT})
SMALL_FLOAT_TYPES = frozenset(
    (
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ),
        *(TensorProto.FLOAT8E8M0, TensorProto.FLOAT4E2M1),
    )
)
"""Float types that inputs and outputs may have, but computed tensors may not."""
WHOLE_TYPES = frozenset(
    (
        *(TensorProto.BOOL, TensorProto.INT2, TensorProto.INT4, TensorProto.UINT2, TensorProto.UINT4),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    )
)
"""Types whose values a float program holds as integers in float32."""
NUMERIC_TYPES = FLOAT_TYPES | SMALL_FLOAT_TYPES | WHOLE_TYPES
"""Element types that inputs and outputs may have."""
INDEX_TYPES = frozenset(
    (
        TensorProto.BOOL,
        TensorProto.STRING,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    )
)
"""Input types that are sizes, indices, flags or names. (8-bit integers are images, or quantised data.)"""
QUANTISED_TYPES = frozenset(
    TensorProto.DataType.Value(f"{sign}INT{bits}") for sign in ("", "U") for bits in (2, 4, 8, 16)
) | {TensorProto.INT32}
"""Element types of data that integer operators read."""
_TAKE_INFINITY = frozenset(
    (
        *("Add", "And", "Cast", "CastLike", "Clip", "Concat", "Constant", "Equal", "Expand", "Gather", "Greater"),
        *("GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "Min", "Neg", "Pad", "Relu"),
        *("ReduceMax", "ReduceMin", "Reshape", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice"),
        *("Softmax", "Split", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Attention"),
        *("ArgMax", "ArgMin", "Flatten", "GatherElements", "GatherND", "Hardmax", "LogSoftmax", "OneHot", "TopK"),
    )
)
"""Operators that accept an infinite constant operand, such as the mask before a Softmax."""
_TAKE_NAN = frozenset(
    (
        *("Cast", "CastLike", "Constant", "Expand", "Flatten", "Identity", "IsInf", "IsNaN", "Reshape", "Shape"),
        *("Size", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
"""Operators that accept a constant operand with NaN: they select elements, look for NaN, or are folded."""
_LAYERS = frozenset(
    ("Conv", "ConvTranspose", "Gemm", "GRU", "InstanceNormalization", "LayerNormalization", "LSTM", "MatMul", "RNN")
)
_LOOKUPS = frozenset(("Gather", "GatherElements", "GatherND"))
PARAMETER_INPUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **{"If": (0,), "Loop": (0, 1), "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Slice": (1, 2, 3, 4)},
        **{"Pad": (1, 3), "Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "ConstantOfShape": (0,)},
        **{"Range": (0, 1, 2), "Resize": (2, 3), "TopK": (1,), "OneHot": (1,), "Trilu": (1,), "CumSum": (1,)},
        **{"CumProd": (1,), "Dropout": (2,), "ReverseSequence": (1,), "Upsample": (1,), "CenterCropPad": (1,)},
        **{"AffineGrid": (1,), "Col2Im": (1, 2), "MaxUnpool": (1, 2), "RNN": (4,), "GRU": (4,), "LSTM": (4,)},
        **{"NonMaxSuppression": (2,), "DFT": (1, 2), "STFT": (1, 3), "BlackmanWindow": (0,), "HannWindow": (0,)},
        **{"HammingWindow": (0,), "MelWeightMatrix": (0, 1, 2), "SplitToSequence": (1,), "SequenceAt": (1,)},
        **{f"Reduce{name}": (1,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod")},
        **{f"Reduce{name}": (1,) for name in ("Sum", "SumSquare")},
    }
)
"""Operator -> inputs that determine what is computed, such as a shape; these must be constants."""


def check_model(source: SourceModel) -> None:
    """Raises `UserError` if the model violates the ONNX standard, `UnsupportedError` for operators unknown to it."""
    try:
        check_standard(_small(source.proto).SerializeToString())
    except InvalidModel as error:
        raise_if_unsupported(source.proto)
        raise UserError(f"not a valid ONNX model: {extract_fault(error)}") from None


def _small(proto: ModelProto) -> ModelProto:
    """Returns a copy with one number in place of each external weight, because no rule looks at more.

    Inputs and outputs without a shape or a type get one: onnxruntime infers the types of outputs.
    """
    small = ModelProto()
    small.CopyFrom(proto)
    for value in (*small.graph.input, *small.graph.output):
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    for tensor in small.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            for field in ("data_location", "external_data", "dims"):
                tensor.ClearField(field)
            tensor.raw_data = bytes(4)
    return small


def raise_if_unsupported(proto: ModelProto, reasons: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises `UnsupportedError` with all nodes whose operator has no lowering.

    reasons: first output of a node -> reason, where it is known. Nodes that depend only on weights and shapes are
    accepted: the canonicaliser computes them.
    """
    fixed = {t.name for t in proto.graph.initializer}
    unsupported: list[UnsupportedNode] = []
    for node in proto.graph.node:
        if node.op_type in ("Shape", "Size") or all(i in fixed for i in node.input if i):
            fixed.update(node.output)
        elif not is_supported_op(node.domain, node.op_type):
            known = reasons.get(node.output[0]) if node.output else None
            # Names the first version with a function body, unless this version has one, too, as random operators have.
            oldest = function_versions().get(node.op_type)
            later = oldest if oldest is not None and opset_version(proto) < oldest else None
            reason = known or explain_unsupported(node.domain, node.op_type, later)
            unsupported.append(UnsupportedNode(describe_node(node), node.op_type, reason))
    if unsupported:
        raise UnsupportedError(unsupported)


def check_inputs(proto: ModelProto, constants: Collection[str], *, keep_integers: bool = False) -> None:
    """Raises `UserError` listing all inputs that the chip cannot be given.

    Accepts inputs that may still become constants (`is_settable`), and with `keep_integers` all tensors.
    """
    inputs = {n: v for n, v in collect_inputs(proto).items() if n not in constants and not is_settable(proto, v)}
    if keep_integers:
        inputs = {n: v for n, v in inputs.items() if v.type.tensor_type.elem_type == TensorProto.UNDEFINED}
    found = [f"input '{n}' is {fault}" for n, v in inputs.items() if (fault := find_input_fault(proto, v))]
    if found:
        raise UserError("\n".join(found))


def collect_inputs(proto: ModelProto) -> dict[str, ValueInfoProto]:
    """Returns the inputs by name, without weights, which are inputs as well up to IR version 3."""
    weights = {t.name for t in proto.graph.initializer}
    return {v.name: v for v in proto.graph.input if v.name not in weights}


def find_input_fault(proto: ModelProto, value: ValueInfoProto) -> str:
    """Returns the reason why the chip cannot be given an input, with a remedy; empty if it can."""
    if value.type.WhichOneof("value") is None:
        return "of no type, must be of numbers"
    kind = value.type.tensor_type.elem_type
    if is_settable(proto, value):
        return f"{type_name(kind)} and must be a constant (--set {value.name}=VALUE)"
    if kind in NUMERIC_TYPES or _is_quantised(proto, value):
        return ""
    constant = f", or a constant (--set {value.name}=VALUE)" if kind == TensorProto.STRING else ""
    return f"{type_name(kind)}, must be of numbers{constant}"


def is_settable(proto: ModelProto, value: ValueInfoProto) -> bool:
    """Checks whether an input is a flag, size or name, which must become a constant."""
    kind, rank = value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim)
    if kind not in INDEX_TYPES or rank > 1 or _is_quantised(proto, value):
        return False
    return kind == TensorProto.STRING or _decides(proto, value.name)


def _decides(proto: ModelProto, name: str) -> bool:
    """Checks whether a parameter of some operator (`PARAMETERS`) is the tensor `name`, or computed from it.

    Results of layers and rows of tables that the tensor selects are data, not parameters, and are not followed.
    """
    same = {name}
    for node in proto.graph.node:
        if _makes_data(node, same):
            continue
        if any(node.input[i] in same for i in PARAMETER_INPUTS.get(node.op_type, ()) if i < len(node.input)):
            return True
        if node.op_type not in ("Shape", "Size") and not same.isdisjoint(node.input):
            same.update(filter(None, node.output))  # '' stands for absent outputs and absent inputs alike
    return False


def _makes_data(node: NodeProto, given: Set[str]) -> bool:
    """Checks whether a node computes data from the tensors `given`: a layer, or a lookup with them as indices."""
    if node.op_type in _LAYERS:
        return not any(node.input[i] in given for i in PARAMETER_INPUTS.get(node.op_type, ()) if i < len(node.input))
    return node.op_type in _LOOKUPS and node.input[0] not in given


def is_data(proto: ModelProto, value: ValueInfoProto) -> bool:
    """Checks whether an input is data, by its type and readers; other inputs are sizes, indices or zero points."""
    if value.type.tensor_type.elem_type in FLOAT_TYPES:
        return True
    if any(node.op_type in QUANTISED_OPS for node in proto.graph.node):
        return _is_quantised(proto, value)
    return value.type.tensor_type.elem_type in NUMERIC_TYPES and not _decides(proto, value.name)


def _is_quantised(proto: ModelProto, value: ValueInfoProto) -> bool:
    """Checks whether an input holds quantised integers that an integer operator reads as data."""
    if value.type.tensor_type.elem_type not in QUANTISED_TYPES:
        return False
    same = {value.name}
    for node in proto.graph.node:
        if node.op_type in QUANTISED_OPS and any(node.input[i] in same for i in find_data_positions(node)):
            return True
        if node.op_type in MOVE_OPS and node.input and node.input[0] in same:
            same.update(node.output)
    return False


def find_data_positions(node: NodeProto) -> Iterable[int]:
    """Returns the positions of the data inputs of an integer operator; the others are scales and zero points."""
    count = len(node.input)
    match node.op_type:
        case "QLinearConcat":
            return range(2, count, 3)
        case "MatMulInteger" | "ConvInteger":
            return range(min(2, count))
        case "QLinearConv" | "QLinearMatMul" | "QGemm" | "QLinearAdd" | "QLinearMul":
            return (i for i in (0, 3) if i < count)
        case _:
            return (0,)


def check_sizes(proto: ModelProto) -> None:
    """Raises `UserError` if a tensor of the model, with inferred shapes, has more than `MOST_ELEMENTS` elements."""
    graph = proto.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        count = math.prod(d.dim_value for d in value.type.tensor_type.shape.dim if d.HasField("dim_value"))
        if count > MOST_ELEMENTS:
            limit = f"the most that can be compiled is {MOST_ELEMENTS}"
            raise UserError(f"tensor '{value.name}' has {count} elements; {limit}")


def check_weights(source: SourceModel) -> None:
    """Raises `UserError` for weights with NaN, with infinities that a product would read, or with missing data."""
    users = _users(source.proto)
    for tensor in _float_tensors(source.proto):
        try:
            values = source.read_values(tensor)
        except (ValueError, TypeError):
            raise UserError(f"weights '{tensor.name}': the data does not fill {tuple(tensor.dims)}") from None
        bad = _find_refused_values(values, users[tensor.name])
        if bad.any():
            reader = next((n for n in source.proto.graph.node if tensor.name in n.input), None)
            where = f", read by {reader.name or reader.output[0]} ({reader.op_type})" if reader else ""
            count = f"{int(bad.sum())} of {values.size}"
            raise UserError(f"weights '{tensor.name}': {count} values are not finite{where}")


def _find_refused_values(values: Numbers, users: Set[str]) -> npt.NDArray[np.bool_]:
    """Marks the values of a constant that one of the operators `users`, which read it, does not accept."""
    if users <= _TAKE_NAN:
        return np.zeros(values.shape, np.bool_)
    return np.isnan(values) if users <= _TAKE_INFINITY else ~np.isfinite(values)


def check_finite(graph: Graph, constants: Iterable[Numbers]) -> None:
    """Raises `UserError` if a constant of the graph overflowed float32, such as a product of large weights.

    constants: constants of the canonical model. If one is infinite (a mask), further constants may be, except in
    crossbars. (What a Where is to make NaN is computed; no constant of the graph is.)
    """
    all_finite: bool | None = None
    for node in graph.nodes:
        bad = [v for v in _constants(node.operator) if not np.isfinite(v).all()]
        if bad and all_finite is None:
            all_finite = _all_finite(constants)
        # A maximum with an infinite constant is deliberate: formulas select elements by it.
        chooses = isinstance(node.operator, Map) and node.operator.function == "max"
        no_place = isinstance(node.operator, Filter | Stencil) or (all_finite and not chooses)
        if bad and (no_place or np.isnan(bad[0]).any()):
            raise UserError(f"{node.name} ({node.op_type}): its weights give numbers beyond the range of float32")


def _all_finite(constants: Iterable[Numbers]) -> bool:
    return not any(values.dtype == np.float32 and np.isinf(values).any() for values in constants)


def _constants(operator: Operator) -> Iterator[Numbers]:
    match operator:
        case Filter() | Stencil():
            yield operator.weights
        case Map():
            yield from (o.pixels for o in operator.operands if isinstance(o, Constant))
        case ConstantTensor(pixels):
            yield pixels
        case Take(table):
            yield table
        case _:
            return


def describe_node(node: NodeProto) -> str:
    """Returns the name of a node, or its operator and first output if it has no name."""
    return node.name or f"{node.op_type} -> {node.output[0] if node.output else ''}"


def extract_fault(error: Exception) -> str:
    """Returns the part of an onnx or onnxruntime message that states the fault and the node."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for pattern in _OF_A_NODE:
        found = pattern.search(text)
        if found:
            node, op_type, fault = (found[group].strip() for group in ("node", "op_type", "fault"))
            return f"{node} ({op_type}): {_WHERE.sub('', fault)}"
    return text


def extract_runtime_fault(error: Exception, folder: Path) -> str:
    """Returns the fault in an onnxruntime message, without status codes and without the path of a model in `folder`."""
    reason = re.sub(r"Load model from .*? failed:", "", extract_fault(error)).replace(f"{folder}/", "")
    return _STATUS.sub("", reason)


def _float_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    yield from (t for t in proto.graph.initializer if t.data_type == TensorProto.FLOAT)
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].t.data_type == TensorProto.FLOAT:
            tensor = TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            yield tensor


def _users(proto: ModelProto) -> defaultdict[str, set[str]]:
    users: defaultdict[str, set[str]] = defaultdict(set)
    for node in proto.graph.node:
        for name in node.input:
            users[name].add(node.op_type)
    return users


def type_name(elem_type: int) -> str:
    """Returns the name of an ONNX element type in messages: `float16`."""
    if elem_type == TensorProto.UNDEFINED:
        return "not a tensor"
    known = TensorProto.DataType.values()
    return TensorProto.DataType.Name(elem_type).lower() if elem_type in known else f"of unknown type {elem_type}"
