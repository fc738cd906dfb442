"""Models of older and newer standards than onnxruntime and the importers read."""

import onnx
from onnx import ModelProto

from raptor.frontend.libraries import infer_shapes
from raptor.frontend.registry import STANDARD_DOMAINS

OLDEST, NEWEST = 9, 26
"""Below opset 7 broadcasting is another, below 9 constants are; 26 is the newest that onnxruntime 1.31 loads."""
OLDEST_IR, NEWEST_IR = 4, 10
"""Up to IR 3 weights had to be inputs as well."""


def convert_version(model: ModelProto) -> ModelProto:
    """A copy of the model that says the same in an operator set from `OLDEST` to `NEWEST`."""
    copy = ModelProto.FromString(model.SerializeToString())
    version = next((o.version for o in copy.opset_import if o.domain in STANDARD_DOMAINS), OLDEST)
    if version < 7:
        _align_slopes(copy)
    wanted = min(max(version, OLDEST), NEWEST)
    converted = copy if wanted == version else onnx.version_converter.convert_version(copy, wanted)
    converted.ir_version = min(max(converted.ir_version, OLDEST_IR), NEWEST_IR)
    return converted


def _align_slopes(model: ModelProto) -> None:
    """Gives the slopes of PRelu the shape [channels, 1, ...]: before opset 7 they met the channels, now the last axis.

    The version converter of onnx forgets this.
    """
    graph = model.graph
    inferred = infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.input, *inferred.value_info)}
    for node in graph.node:
        data, slope = node.input[:2] if node.op_type == "PRelu" else ("", "")
        for tensor in (t for t in graph.initializer if t.name == slope and len(t.dims) == 1):
            tensor.dims.extend([1] * (ranks[data] - 2))
        for value in (v for v in graph.input if v.name == slope and ranks[slope] == 1):
            for _ in range(ranks[data] - 2):
                value.type.tensor_type.shape.dim.add().dim_value = 1
