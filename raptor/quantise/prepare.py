"""Makes a model ready to be quantised: shapes fixed, constants folded, the layers in the form that has integers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend import reading
from raptor.frontend.check import first_line, label
from raptor.frontend.fixed import Fixed
from raptor.frontend.loading import prepare as bind
from raptor.frontend.registry import STANDARD_DOMAINS
from raptor.quantise.foreign import pre_process

Array = npt.NDArray[Any]
QUANTISABLE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A float model that is ready, with the name of its file and notes for the user."""

    proto: ModelProto
    name: str
    notes: tuple[str, ...]


def prepare(source: "str | Path | ModelProto", fixed: Fixed, opset: int, scratch: Path) -> Prepared:
    """Reads a float model and brings it to the operator set `opset` at least. `scratch`: folder for temporary files.

    Raises `UserError` for a model that cannot be read, is quantised already, or has no layer to quantise.
    """
    model = reading.read(source)
    _refuse_quantised(model.proto)
    ready = bind(model, fixed)
    for tensor in model.proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(model.values(tensor), tensor.name))
    proto = _optimised(_converted(model.proto, opset), scratch)
    if not any(n.op_type in QUANTISABLE for n in proto.graph.node):
        raise UserError(f"{model.name}: nothing to quantise: no {', '.join(QUANTISABLE[:-1])} or {QUANTISABLE[-1]}")
    _name_nodes(proto)
    _pool_means(proto)
    _plain_gemms(proto)
    return Prepared(proto, model.name, ready.notes)


def _refuse_quantised(proto: ModelProto) -> None:
    for graph in reading.graphs_of(proto.graph):
        found = [n for n in graph.node if n.op_type in _QUANTISED or n.op_type.startswith(("QLinear", "QGemm"))]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise UserError(
                f"already quantised: {label(found[0])} ({found[0].op_type}){more}; "
                "give the float model that it was made from"
            )


def _converted(proto: ModelProto, opset: int) -> ModelProto:
    """Returns the model in operator set `opset`, or as it is if that is newer, in an IR version that has its types."""
    (version,) = [o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS] or [opset]
    if version < opset:
        try:
            proto = onnx.version_converter.convert_version(proto, opset)
        except Exception as error:  # those of onnx's C++ code have no common base
            raise UserError(
                f"onnx cannot convert the model from operator set {version} to {opset}, which has the integer types: "
                f"{first_line(error)}; export the model with opset {opset}"
            ) from None
    proto.ir_version = max(proto.ir_version, helper.find_min_ir_version_for(proto.opset_import, True))
    return proto


def _optimised(proto: ModelProto, scratch: Path) -> ModelProto:
    """Folds constants and batch normalisation, and infers shapes, by the preparation that onnxruntime recommends."""
    (scratch / "model.onnx").write_bytes(proto.SerializeToString())
    try:
        return pre_process(scratch / "model.onnx", scratch / "prepared.onnx")
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        raise UserError(f"onnxruntime cannot prepare the model: {first_line(error)}") from None


def _name_nodes(proto: ModelProto) -> None:
    """Names the nodes that have no name, and those that share one: the quantiser tells nodes apart by name."""
    seen: set[str] = set()
    for node in proto.graph.node:
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}:{node.output[0]}"
        seen.add(node.name)


def _pool_means(proto: ModelProto) -> None:
    """Turns a ReduceMean over height and width into a GlobalAveragePool, which the quantiser knows."""
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*proto.graph.input, *proto.graph.value_info)}
    constants = {t.name: t for t in proto.graph.initializer}
    for node in [n for n in proto.graph.node if n.op_type == "ReduceMean" and ranks.get(n.input[0]) == 4]:
        found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
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


def _plain_gemms(proto: ModelProto) -> None:
    """Moves alpha and beta into constant factors, and makes a constant sum a vector, which can be a bias.

    An integer sum has one scale, so factors other than 1 would have to be part of it; and onnxruntime's quantiser
    drops beta.
    """
    gemms = {name for node in proto.graph.node if node.op_type == "Gemm" for name in node.input}
    constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in gemms}
    for node in proto.graph.node:
        if node.op_type == "Gemm":
            proto.graph.initializer.extend(_plain_gemm(node, constants))
    read = {name for node in proto.graph.node for name in reading.reads(node)}
    read |= {value.name for value in proto.graph.output}
    unread = [t for t in proto.graph.initializer if t.name not in read]
    for tensor in unread:
        proto.graph.initializer.remove(tensor)


def _plain_gemm(node: NodeProto, constants: Mapping[str, Array]) -> Iterator[TensorProto]:
    """Changes a node; yields the constants that it reads instead."""
    for position, name in ((1, "alpha"), (2, "beta")):
        values = constants.get(node.input[position]) if position < len(node.input) else None
        if values is None:
            continue
        attribute = next((a for a in node.attribute if a.name == name), None)
        factor = np.float32(1 if attribute is None else attribute.f)
        changed = values if factor == 1 else values * factor
        if position == 2:
            changed = _bias_vector(changed, node, constants)
        if attribute is not None:
            node.attribute.remove(attribute)
        if changed is not values:
            node.input[position] = f"{node.name}.{name}"
            yield numpy_helper.from_array(np.ascontiguousarray(changed), node.input[position])


def _bias_vector(values: Array, node: NodeProto, constants: Mapping[str, Array]) -> Array:
    """Returns C of a Gemm as a vector with one number for each column of B, if all rows have the same."""
    if node.input[1] not in constants:
        return values
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    columns = constants[node.input[1]].shape[0 if transposed else 1]
    one_row = values.size in (1, columns) and (values.ndim < 2 or values.shape[0] == 1)
    if values.shape == (columns,) or not one_row:
        return values
    return np.broadcast_to(values.reshape(-1), (columns,))
