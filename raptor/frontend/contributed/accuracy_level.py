"""The accuracy level of MatMulNBits: from which type onnxruntime computes its products."""

from onnx import ModelProto

_LEVEL = "accuracy_level"
_LARGEST_FLOAT_LEVEL = 1
"""Level 0 leaves the choice to onnxruntime, which takes floats; 1 asks for float32. Level 4 rounds to 8 bits."""


def use_float_activations(onnx_bytes: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Returns a model whose MatMulNBits keep their activations as floats, and a note if one did not."""
    proto = ModelProto.FromString(onnx_bytes)
    found = [a for n in proto.graph.node if n.op_type == "MatMulNBits" for a in n.attribute if a.name == _LEVEL]
    rounded = [a for a in found if a.i > _LARGEST_FLOAT_LEVEL]
    if not rounded:
        return onnx_bytes, ()
    level = rounded[0].i
    for attribute in rounded:
        attribute.i = 0
    note = f"MatMulNBits: accuracy_level {level} is computed and judged as level 0: activations are not rounded"
    return proto.SerializeToString(deterministic=True), (note,)
