"""One canonical form for the many ways to say the same in ONNX: what onnxruntime's BASIC optimiser leaves.

It folds constants, shapes and batch normalisation, drops what does nothing in inference, and keeps to standard
operators and to the names of the tensors that remain. Measured against five other tools in docs/onnx.md.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import ModelProto

from raptor.errors import UserError
from raptor.frontend.check import first_line, raise_if_unsupported
from raptor.frontend.reading import Source

KEPT_APART = ["MatMulAddFusion"]
"""The products and their sum keep the names the user knows; what is added need not be a constant."""
INLINE_BYTES = 1024
"""Smaller constants stay in the proto, where shape inference can see them."""


@contextmanager
def canonicalise(source: Source) -> Iterator[tuple[ModelProto, Path]]:
    """The canonical model with every shape inferred, and the folder of its larger weights, which goes on exit.

    `source.proto` is emptied on the way: a model of 500 MB exists in memory once per step, not once per variable.
    """
    with tempfile.TemporaryDirectory(prefix="raptor-") as name:
        folder = Path(name)
        _write_loadable(source.proto, folder / "original.onnx")
        _optimise(source, folder)
        (folder / "original.onnx").unlink()
        proto = onnx.load(str(folder / "canonical.onnx"), load_external_data=False)
        yield onnx.shape_inference.infer_shapes(proto, data_prop=True), folder


def _write_loadable(proto: ModelProto, path: Path) -> None:
    """Writes the model in an IR version that onnxruntime optimises and reads back, then empties `proto`."""
    # Up to IR 3 weights are inputs as well; the optimiser then writes models that do not reload.
    weights = {t.name for t in proto.graph.initializer}
    inputs = [v for v in proto.graph.input if v.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = min(max(proto.ir_version, 8), 10)
    path.write_bytes(proto.SerializeToString())


def _optimise(source: Source, folder: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "canonical.onnx")
    # Weights in a file of their own: read one by one when imported, and no second proto of 500 MB.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", str(INLINE_BYTES)
    )
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        ort.InferenceSession(str(folder / "original.onnx"), options, ["CPUExecutionProvider"], disabled_optimizers=KEPT_APART)
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        raise_if_unsupported(source.proto)
        raise UserError(f"onnxruntime refuses the model: {_reason(error)}") from None
    finally:
        source.proto.Clear()


def _reason(error: Exception) -> str:
    """The first line of the message without the temporary path."""
    return re.sub(r"Load model from \S+ failed:", "", re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error)))
