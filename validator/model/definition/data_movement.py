"""Operators that move or select elements: computed by onnx's reference implementation, for any type of element."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx
from onnx import NodeProto, helper

from validator.model.definition.exact_values import Array, Doubles
from validator.model.node import Opsets, attributes_of
from validator.model.node_models import by_reference, model_of

MOVE_OPERATORS = frozenset([
    "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape",
    "ReverseSequence", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze",
])  # fmt: skip
"""Operators that move the elements of their first operand; the other operands are parameters."""
_DENOMINATOR = 2**10
"""Interpolation weights that are multiples of 1 / `_DENOMINATOR` are exact."""


def make_evaluator(node: NodeProto, opsets: Opsets) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Returns a function that computes a node by onnx's reference implementation."""
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    return by_reference(model_of([node], inputs, filter(None, node.output), opsets))


def make_mover(node: NodeProto, opsets: Opsets, parameters: Mapping[str, Array]) -> Callable[[Array], Array]:
    """Returns the function that a node of `MOVES` applies to its first operand."""
    run = make_evaluator(node, opsets)

    def move(x: Array) -> Array:
        # The reference implementation knows no types of 4 bits.
        wide = x.astype(np.int8) if x.dtype.name in ("int4", "int2") else x
        wide = x.astype(np.uint8) if x.dtype.name in ("uint4", "uint2") else wide
        return run({**parameters, node.input[0]: wide})[0].astype(x.dtype)

    return move


def split_array(node: NodeProto, parameters: Mapping[str, Array], x: Array) -> list[Array]:
    """Returns the parts of a Split."""
    given = attributes_of(node)
    axis, named = given.get("axis", 0), len(node.input) > 1 and node.input[1]
    sizes: list[int] = parameters[node.input[1]].tolist() if named else list(given.get("split", ()))
    count = len(node.output)
    if not sizes:
        each = -(-x.shape[axis] // count)
        sizes = [min(each, x.shape[axis] - k * each) for k in range(count)]
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def make_resize_matrices(
    node: NodeProto, opsets: Opsets, parameters: Mapping[str, Array], shape: Sequence[int]
) -> dict[int, Doubles] | None:
    """Returns the matrix [new, old] of each axis that a Resize changes; None if it is not linear along single axes.

    Each matrix is the reference implementation's Resize of the unit matrix along its second axis.
    """
    given = attributes_of(node)
    names = [*node.input, "", "", "", ""]
    old_form = node.op_type == "Upsample" or (len(node.input) == 2)
    scales_name, sizes_name = (names[1], "") if old_form else (names[2], names[3])
    roi = parameters.get(names[1]) if not old_form else None
    if (roi is not None and roi.size) or given.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return None
    axes = [axis % len(shape) for axis in cast(Sequence[int], given.get("axes", range(len(shape))))]
    found: dict[int, Doubles] = {}
    for place, axis in enumerate(axes):
        feed: dict[str, Array] = {"x": np.eye(shape[axis], dtype=np.float32)}
        if scales_name and parameters[scales_name].size:
            feed["scales"] = np.array([1, parameters[scales_name][place]], np.float32)
        else:
            feed["sizes"] = np.array([shape[axis], parameters[sizes_name][place]], np.int64)
        inputs = ["x", "", "scales"] if "scales" in feed else ["x", "", "", "sizes"]
        one = helper.make_node("Resize", inputs if not old_form else ["x", "scales"], ["y"])
        one.op_type = node.op_type
        one.attribute.extend(a for a in node.attribute if a.name != "axes")
        matrix = make_evaluator(one, opsets)(feed)[0].T.astype(np.float64)
        if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, np.eye(len(matrix))):
            found[axis] = matrix
    return found


def find_denominator(matrices: Sequence[Doubles]) -> int | None:
    """Returns the smallest power of two that makes all weights integers; None if it is too large."""
    for bits in range(_DENOMINATOR.bit_length()):
        if all(np.array_equal(m * 2**bits, np.rint(m * 2**bits)) for m in matrices):
            return 1 << bits
    return None


def multiply_axis(matrix: Array, axis: int, x: Array) -> Array:
    """Multiplies one axis of x with a matrix [new, old]."""
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def select_along_axis(matrix: Doubles, axis: int, x: Array) -> Array:
    """Selects elements along an axis by a matrix that has one 1 in each row."""
    return np.take(x, matrix.argmax(axis=1), axis)
