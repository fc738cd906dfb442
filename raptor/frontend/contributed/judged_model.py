"""The model that judges a program: onnxruntime's own arithmetic and storage are left out, where RAPTOR has others."""

from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from raptor.frontend.proto.read_model import walk_graphs

_LEVEL = "accuracy_level"
_LARGEST_FLOAT_LEVEL = 1
"""Level 0 leaves the choice to onnxruntime, which takes floats; 1 asks for float32. Level 4 rounds to 8 bits."""
_RING = "sliding_window_cache"


def make_judged_model(onnx_bytes: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Returns the model with which onnxruntime judges a program, and notes for the user.

    With `accuracy_level` 4, MatMulNBits round activations to 8 bits; here they stay floats, as with level 0. With
    `sliding_window_cache`, the cache of a window is a ring that the host allocates; without it, the cache grows, and
    the window hides the same rows.
    """
    if not any(name.encode() in onnx_bytes for name in (_LEVEL, _RING)):
        return onnx_bytes, ()
    proto = ModelProto.FromString(onnx_bytes)
    notes = (*_use_float_activations(proto), *_let_windows_grow(proto))
    return (proto.SerializeToString(deterministic=True), notes) if notes else (onnx_bytes, ())


def _nodes_of_type(proto: ModelProto, op_type: str) -> Iterator[NodeProto]:
    return (node for graph in walk_graphs(proto.graph) for node in graph.node if node.op_type == op_type)


def _use_float_activations(proto: ModelProto) -> tuple[str, ...]:
    found = [a for node in _nodes_of_type(proto, "MatMulNBits") for a in node.attribute if a.name == _LEVEL]
    rounded = [a for a in found if a.i > _LARGEST_FLOAT_LEVEL]
    levels = sorted({a.i for a in rounded})
    for attribute in rounded:
        attribute.i = 0
    return tuple(
        f"MatMulNBits: {_LEVEL} {level} is computed and judged as level 0: activations are not rounded"
        for level in levels
    )


def _let_windows_grow(proto: ModelProto) -> tuple[str, ...]:
    windows = 0
    for node in _nodes_of_type(proto, "GroupQueryAttention"):
        kept = [a for a in node.attribute if a.name != _RING]
        windows += any(a.i for a in node.attribute if a.name == _RING)
        del node.attribute[:]
        node.attribute.extend(kept)
    told = f"the caches of {windows} windows keep all rows; the windows hide the same ones"
    return (f"GroupQueryAttention: {_RING}: {told}",) if windows else ()
