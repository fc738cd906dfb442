"""Typed functions around the untyped parts of onnx and onnxruntime."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto

from raptor.frontend.contributed import has_contributed, stand_in

NO_FILES: Mapping[str, bytes] = MappingProxyType({})
InvalidModel = onnx.checker.ValidationError
InvalidTypes = onnx.shape_inference.InferenceError


_WIDTHS = (8, 16, 32, 64)
_NUMPY: Mapping[str, type[np.generic]] = MappingProxyType(
    {f"tensor({name})": np.dtype(name).type for name in ("bool", *(f"{s}int{b}" for s in ("", "u") for b in _WIDTHS))}
)
"""onnxruntime's name of an element type -> numpy's, for all but float32."""


def check_standard(onnx_bytes: bytes) -> None:
    """Raises `InvalidModel` if the model breaks the rules of ONNX."""
    onnx.checker.check_model(onnx_bytes)


def read_without_weights(path: Path) -> ModelProto:
    """Reads the model; data that it keeps in other files stays there."""
    return onnx.load(str(path), load_external_data=False)


def infer_shapes(proto: ModelProto) -> ModelProto:
    """Returns a copy with the shape of every tensor that follows from those of the inputs."""
    if not has_contributed(proto):
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    inferred = onnx.shape_inference.infer_shapes(stand_in(proto), data_prop=True)
    del inferred.graph.node[:]
    inferred.graph.node.extend(proto.graph.node)
    return inferred


def check_operand_types(proto: ModelProto) -> None:
    """Raises `InvalidTypes` if an operator does not accept the types of its operands together."""
    onnx.shape_inference.infer_shapes(proto, check_type=True)


def refer_to_file(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Replaces the tensor's data by a reference to a file beside the model."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def try_out(path: Path) -> None:
    """Runs the model once, on ones. Raises one of a dozen exceptions if onnxruntime cannot."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    session.run(None, {i.name: np.ones(i.shape, _NUMPY.get(i.type, np.float32)) for i in session.get_inputs()})


def evaluate(proto: ModelProto) -> Any:
    """Returns the first output of a small model without inputs.

    Raises one of a dozen exceptions if onnxruntime cannot run it.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, {})[0]


def optimise(
    source: Path,
    target: Path,
    *,
    weights: str,
    inline_bytes: int,
    disabled: Sequence[str],
    in_memory: Mapping[str, bytes | bytearray] = NO_FILES,
) -> None:
    """Writes the model as onnxruntime's BASIC optimiser leaves it, constants of `inline_bytes` or more to `weights`.

    `in_memory` holds files that the model refers to, by name; then none of them is looked for on disk.
    Raises one of a dozen exceptions if onnxruntime does not accept the model.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", weights)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(inline_bytes))
    options.add_session_config_entry("session.disable_prepacking", "1")
    contents = list(in_memory.values())
    options.add_external_initializers_from_files_in_memory(list(in_memory), contents, list(map(len, contents)))
    ort.InferenceSession(str(source), options, ["CPUExecutionProvider"], disabled_optimizers=list(disabled))
