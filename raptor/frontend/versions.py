"""Models of older and newer standards than onnxruntime and the importers read."""

import onnx
from onnx import ModelProto

from raptor.frontend.registry import STANDARD_DOMAINS

OLDEST, NEWEST = 9, 26
"""Below opset 7 broadcasting is another, below 9 constants are; 26 is the newest that onnxruntime 1.31 loads."""
NEWEST_IR = 10


def convert_version(model: ModelProto) -> ModelProto:
    """A copy of the model that says the same in an operator set from `OLDEST` to `NEWEST`."""
    copy = ModelProto.FromString(model.SerializeToString())
    copy.ir_version = min(copy.ir_version, NEWEST_IR)
    version = next((o.version for o in copy.opset_import if o.domain in STANDARD_DOMAINS), OLDEST)
    wanted = min(max(version, OLDEST), NEWEST)
    return copy if wanted == version else onnx.version_converter.convert_version(copy, wanted)
