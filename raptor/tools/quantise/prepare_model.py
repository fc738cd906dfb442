"""Prepares a float model for quantisation: shapes fixed, constants folded, layers in forms that the quantiser takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.canonical import standardise
from raptor.frontend.loading import prepare_model as bind
from raptor.frontend.operator_sets import DYNAMIC_QUANT_OPS, STANDARD_DOMAINS
from raptor.frontend.proto import read_model
from raptor.frontend.proto.model_checks import describe_node, extract_fault
from raptor.frontend.proto.nodes import read_attributes
from raptor.options import ModelInputs
from raptor.tools.quantise.ort_quantizer import run_preprocessing

Array = npt.NDArray[Any]
QUANTISABLE_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_QUANTISED = DYNAMIC_QUANT_OPS | {
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "ConvInteger",
    "MatMulInteger",
}


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFloats:
    """A float model that is ready to be quantised. `name`: of its file. `notes`: assumptions about its inputs."""

    proto: ModelProto
    name: str
    notes: tuple[str, ...]


def prepare_floats(source: "str | Path | ModelProto", inputs: ModelInputs, opset: int, scratch: Path) -> PreparedFloats:
    """Reads a float model and brings it to the operator set `opset` at least. `scratch`: folder for temporary files.

    Raises `UserError` if the model is unreadable, quantised, or without layers to quantise.
    """
    model = standardise.read_standard_model(source)
    _refuse_quantised(model.proto)
    ready = bind(model, inputs)
    for tensor in model.proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(model.read_values(tensor), tensor.name))
    _name_nodes(model.proto)
    proto = _preprocessed(_with_opset(model.proto, opset), scratch)
    if not any(n.op_type in QUANTISABLE_OPS for n in proto.graph.node):
        raise UserError(
            f"{model.name}: nothing to quantise: no {', '.join(QUANTISABLE_OPS[:-1])} or {QUANTISABLE_OPS[-1]}"
        )
    _name_nodes(proto)
    _means_to_pools(proto)
    _normalise_gemms(proto)
    return PreparedFloats(proto, model.name, ready.notes)


def _refuse_quantised(proto: ModelProto) -> None:
    for graph in read_model.walk_graphs(proto.graph):
        found = [n for n in graph.node if n.op_type in _QUANTISED or n.op_type.startswith(("QLinear", "QGemm"))]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise UserError(
                f"already quantised: {describe_node(found[0])} ({found[0].op_type}){more}; "
                "give the float model that it was made from"
            )


def _with_opset(proto: ModelProto, opset: int) -> ModelProto:
    """Returns the model in operator set `opset`, or in its own newer one, with an IR version that has its types."""
    (version,) = [o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS] or [opset]
    if version < opset:
        try:
            proto = onnx.version_converter.convert_version(proto, opset)
        except Exception as error:  # exceptions of onnx's C++ code have no common base
            raise UserError(
                f"onnx cannot convert the model from operator set {version} to {opset}, which has the integer types: "
                f"{extract_fault(error)}; export the model with opset {opset}"
            ) from None
    proto.ir_version = max(proto.ir_version, helper.find_min_ir_version_for(proto.opset_import, True))
    return proto


def _preprocessed(proto: ModelProto, scratch: Path) -> ModelProto:
    """Folds constants and batch normalisation and infers shapes with the preprocessing that onnxruntime recommends."""
    (scratch / "model.onnx").write_bytes(proto.SerializeToString())
    try:
        return run_preprocessing(scratch / "model.onnx", scratch / "prepared.onnx")
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        raise UserError(f"onnxruntime cannot prepare the model: {extract_fault(error)}") from None


def _name_nodes(proto: ModelProto) -> None:
    """Gives unique names to nodes without a name or with a shared one: the quantiser identifies nodes by name."""
    seen: set[str] = set()
    for node in proto.graph.node:
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}:{node.output[0]}"
        seen.add(node.name)


def _means_to_pools(proto: ModelProto) -> None:
    """Turns each ReduceMean over height and width into a GlobalAveragePool, which the quantiser supports."""
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*proto.graph.input, *proto.graph.value_info)}
    constants = {t.name: t for t in proto.graph.initializer}
    for node in [n for n in proto.graph.node if n.op_type == "ReduceMean" and ranks.get(n.input[0]) == 4]:
        found = read_attributes(node)
        axes = found.get("axes")
        if len(node.input) == 2 and node.input[1] in constants:
            axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
        if sorted(axis % 4 for axis in axes or ()) != [2, 3]:
            continue
        mean, pooled = node.output[0], f"{node.output[0]}.pooled"
        if not found.get("keepdims", 1):
            node.output[0] = pooled
            flatten = helper.make_node("Flatten", [pooled], [mean], f"{node.name}.flatten", axis=1)
            proto.graph.node.insert(list(proto.graph.node).index(node) + 1, flatten)
        node.op_type = "GlobalAveragePool"
        del node.input[1:], node.attribute[:]


def _normalise_gemms(proto: ModelProto) -> None:
    """Normalises each Gemm for integers: alpha and beta become 1, and C a bias vector or a separate Add.

    A bias has the scale of the product, so other factors would have to be part of that scale; and onnxruntime's
    quantiser drops beta.
    """
    graph = proto.graph
    gemms = [n for n in graph.node if n.op_type == "Gemm"]
    read = {name for node in gemms for name in node.input}
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.name in read}
    for node in gemms:
        found = {k: constants.get(name) for k, name in enumerate(node.input)}
        changed = _fold_factors(node, found)
        if found.get(2) is not None and found.get(1) is not None:
            changed |= _bias_vector(node, found)
        for k in changed:
            node.input[k] = f"{node.name}.{'ABC'[k]}"
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(found[k]), node.input[k]))
        if len(node.input) == 3 and not _is_bias(node, found):
            _separate_add(graph, node)
    _drop_unread(graph)


def _fold_factors(node: NodeProto, found: dict[int, Array | None]) -> set[int]:
    """Multiplies constant operands by alpha and beta, which become 1. Returns the positions of the changed inputs."""
    changed: set[int] = set()
    for k, name in ((1, "alpha"), (2, "beta")):
        attribute = next((a for a in node.attribute if a.name == name), None)
        values = found.get(k)
        if attribute is None or values is None:
            continue
        node.attribute.remove(attribute)
        if attribute.f != 1:
            found[k] = values * np.float32(attribute.f)
            changed.add(k)
    return changed


def _bias_vector(node: NodeProto, found: dict[int, Array | None]) -> set[int]:
    """Makes a constant C of one row a vector with a number per column. Returns the positions of the changed inputs."""
    values, columns = found[2], _columns(node, found)
    if values is None or values.shape == (columns,) or values.size not in (1, columns):
        return set()
    if values.ndim == 2 and values.shape[0] != 1:
        return set()
    found[2] = np.broadcast_to(values.reshape(-1), (columns,))
    return {2}


def _columns(node: NodeProto, found: Mapping[int, Array | None]) -> int:
    weight = found[1]
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if weight is None else weight.shape[0 if transposed else 1]


def _is_bias(node: NodeProto, found: Mapping[int, Array | None]) -> bool:
    values = found.get(2)
    return values is not None and values.shape == (_columns(node, found),)


def _separate_add(graph: GraphProto, node: NodeProto) -> None:
    """Replaces C of a Gemm by an Add after it, unless beta remains because C is not constant."""
    if any(a.name == "beta" and a.f != 1 for a in node.attribute):
        return
    result, product = node.output[0], f"{node.output[0]}.product"
    node.output[0] = product
    add = helper.make_node("Add", [product, node.input.pop()], [result], f"{node.name}.add")
    graph.node.insert(list(graph.node).index(node) + 1, add)


def _drop_unread(graph: GraphProto) -> None:
    read = {name for node in graph.node for name in read_model.find_reads(node)} | {
        value.name for value in graph.output
    }
    for tensor in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(tensor)
