"""Resize as ONNX's own suite computes it, where onnxruntime computes something else.

The validator compares with onnxruntime, which deviates from the suite's reference implementation (`onnx.reference`)

1. with `align_corners` and scales that give a fractional length: it rounds the length down, the suite uses the product;
2. with `tf_crop_and_resize` and channels last, linear with antialias or cubic: it extrapolates other elements than
   the ones outside of the input.

Resize is linear along each axis. So such a node becomes one matrix product per axis, whose matrix the reference
implementation computes from the unit matrix. onnxruntime computes the rest of the model, and also nodes that cannot be
rewritten because their sizes are not constant, or very large.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UserError
from validator.model.node import Array, attributes_of
from validator.model.node_models import by_reference
from validator.model.operator_scan import contains_name
from validator.model.ort_session import infer_types

_ROUNDING = 1e-4
_MARKS = (b"align_corners", b"tf_crop_and_resize")


_MOST_ELEMENTS = 2**24
"""Most elements of a matrix; onnxruntime computes nodes with larger ones."""


def may_need_rewrite(path: Path) -> bool:
    """Checks whether the bytes of a file name a mode in which onnxruntime deviates."""
    return contains_name(path, _MARKS)


def rewrite_resizes(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], leave: Collection[str] = ()
) -> tuple[str, ...]:
    """Rewrites the nodes in which onnxruntime deviates from the suite; returns their names.

    `shapes`: shapes of the inputs. `leave`: names of nodes that are not rewritten.
    """
    known = _Known.from_model(model, shapes)
    rewritten: list[str] = []
    nodes: list[NodeProto] = []
    numbers = count()
    for node in model.graph.node:
        resize = _Resize.from_node(node, known) if node.op_type == "Resize" else None
        if resize is None or not resize.departs or _label(node) in leave:
            nodes.append(node)
            continue
        rewritten.append(node.name or node.output[0])
        nodes += _Products(model, resize, f"{node.output[0]}.as_suite.{next(numbers)}").make_nodes()
    if rewritten:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return tuple(rewritten)


def followed(
    model: ModelProto, path: Path, shapes: Mapping[str, Sequence[int]], leave: Collection[str] = ()
) -> tuple[str, ...]:
    """Calls `rewrite_resizes`. Raises `UserError` that names `path` if it fails."""
    try:
        return rewrite_resizes(model, shapes, leave)
    except Exception as e:  # exceptions of protobuf and onnx have no common base
        raise UserError(f"{path}: not an ONNX model: {e}") from e


def _label(node: NodeProto) -> str:
    """Returns the name by which the user knows a node."""
    return node.name or f"{node.op_type} -> {node.output[0]}"


@dataclass(frozen=True, slots=True)
class _Known:
    """Shapes, element types and constants of a model's tensors, as far as they are known."""

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    constants: Mapping[str, Array]

    @staticmethod
    def from_model(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> "_Known":
        bound = ModelProto.FromString(model.SerializeToString())
        for value in bound.graph.input:
            if value.name in shapes:
                info = helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shapes[value.name])
                value.CopyFrom(info)
        inferred = onnx.shape_inference.infer_shapes(bound, data_prop=True).graph
        values = {
            v.name: v.type.tensor_type
            for v in (*inferred.input, *inferred.value_info, *inferred.output)
            if v.type.tensor_type.elem_type and all(d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)
        }
        found = {name: tuple(d.dim_value for d in value.shape.dim) for name, value in values.items()}
        types = {name: helper.tensor_dtype_to_np_dtype(value.elem_type) for name, value in values.items()}
        resized = [n for n in model.graph.node if n.op_type == "Resize" and _coordinates(n) in _MARKS]
        computed = {name for node in model.graph.node for name in node.output}
        asked = sorted({name for n in resized for name in (n.input[0], n.output[0])} & computed)
        if asked:
            # Inferred by onnxruntime, whose results are compared: after an STFT, onnx infers other shapes, or none.
            # Scalars are never resized, so an empty shape from onnxruntime means that the shape is unknown.
            more = infer_types(bound, asked)
            found |= {name: shape for name, (shape, _) in more.items() if shape}
            types |= {name: dtype for name, (_, dtype) in more.items()}
        constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if np.prod(t.dims) <= 64}
        for node in model.graph.node:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                constants[node.output[0]] = numpy_helper.to_array(value)
        return _Known(found, types, constants)


def _coordinates(node: NodeProto) -> bytes:
    found = (a.s for a in node.attribute if a.name == "coordinate_transformation_mode")
    return next(found, b"half_pixel")


@dataclass(frozen=True, slots=True)
class _Resize:
    """A Resize with known input shape and scales, or sizes. `factors`: scale of each axis, None if sizes are given."""

    node: NodeProto
    attributes: Mapping[str, Any]
    old: tuple[int, ...]
    new: tuple[int, ...]
    factors: tuple[float | None, ...]
    roi: tuple[tuple[float, float], ...]
    dtype: npt.DTypeLike

    @staticmethod
    def from_node(node: NodeProto, known: _Known) -> "_Resize | None":
        attributes = attributes_of(node)
        if _coordinates(node) not in _MARKS:
            return None
        old, new = known.shapes.get(node.input[0]), known.shapes.get(node.output[0])
        names = [*node.input, "", "", ""][1:4]
        if old is None or new is None or any(name and name not in known.constants for name in names):
            return None
        roi, scales, _ = (known.constants.get(name, np.zeros(0)).tolist() for name in names)
        axes = [axis % len(old) for axis in attributes.get("axes", range(len(old)))]
        factors: list[float | None] = [1.0 if a == b else None for a, b in zip(old, new, strict=True)]
        spans = [(0.0, 1.0)] * len(old)
        for i, axis in enumerate(axes):
            factors[axis] = scales[i] if scales else factors[axis]
            spans[axis] = (roi[i], roi[i + len(axes)]) if roi else spans[axis]
        return _Resize(node, attributes, old, new, tuple(factors), tuple(spans), known.types[node.input[0]])

    def attribute(self, name: str, default: str) -> str:
        return cast(bytes, self.attributes.get(name, default.encode())).decode()

    @property
    def departs(self) -> bool:
        if self.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            return False
        if any(a * max(a, b) > _MOST_ELEMENTS for a, b in zip(self.old, self.new, strict=True)):
            return False
        coordinates = self.attribute("coordinate_transformation_mode", "half_pixel")
        if coordinates == "align_corners":
            return any(self.scaled(axis) for axis in range(len(self.old)))
        by_axis = self.attribute("mode", "nearest") == "cubic" or self.attributes.get("antialias", 0)
        channels_last = len(self.old) == 4 and self.old[1] != self.new[1]
        return coordinates == "tf_crop_and_resize" and bool(by_axis) and channels_last

    def scaled(self, axis: int) -> bool:
        """Checks whether corners are aligned to a fractional length.

        A length that differs from an integer only by rounding to float32 counts as an integer.
        """
        aligned = self.attribute("coordinate_transformation_mode", "") == "align_corners"
        factor = self.factors[axis]
        return aligned and factor is not None and abs(factor * self.old[axis] - self.new[axis]) > _ROUNDING

    @property
    def changed(self) -> Iterator[int]:
        """Axes that the Resize changes."""
        return (a for a in range(len(self.old)) if self.old[a] != self.new[a] or self.scaled(a))

    def along(self, axis: int, rows: Array, outside: float) -> Array:
        """Resizes [rows, old] -> [rows, new] by the reference implementation; elements outside become `outside`."""
        scaled, (low, high) = self.scaled(axis), self.roi[axis]
        given: dict[str, Array] = {"roi": np.array([0, low, 1, high], np.float32)}
        if scaled:
            given["scales"] = np.array([1, self.factors[axis]], np.float32)
        else:
            given["sizes"] = np.array([len(rows), self.new[axis]], np.int64)
        names = ["x", "roi", "scales"] if scaled else ["x", "roi", "", "sizes"]
        node = helper.make_node("Resize", names, ["y"], extrapolation_value=outside)
        node.attribute.extend(a for a in self.node.attribute if a.name not in ("axes", "extrapolation_value"))
        return by_reference(node)({"x": rows, **given})[0].astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Products:
    """Builder of the nodes that compute a Resize by products. `stem`: prefix of the names of new tensors."""

    model: ModelProto
    resize: _Resize
    stem: str

    def make_nodes(self) -> Iterator[NodeProto]:
        resize = self.resize
        name, rank = resize.node.input[0], len(resize.old)
        outside = np.zeros(resize.new, np.bool_)
        for axis in resize.changed:
            matrix = resize.along(axis, np.eye(resize.old[axis], dtype=np.float32), 0.0)
            beyond = resize.along(axis, np.zeros((1, resize.old[axis]), np.float32), 1.0)[0] == 1
            outside |= beyond.reshape(-1, *(1,) * (rank - axis - 1))
            order = [*(a for a in range(rank) if a != axis), axis]
            last, product, result = (f"{self.stem}.{axis}.{what}" for what in ("last", "product", "result"))
            yield helper.make_node("Transpose", [name], [last], perm=order)
            yield helper.make_node("MatMul", [last, self.constant(f"{axis}.matrix", matrix)], [product])
            yield helper.make_node("Transpose", [product], [result], perm=np.argsort(order).tolist())
            name = result
        yield from self.extrapolate(name, outside)

    def extrapolate(self, name: str, outside: Array) -> Iterator[NodeProto]:
        value = np.float32(self.resize.attributes.get("extrapolation_value", 0.0))
        kept = self.constant("kept", np.where(outside, np.float32(0), np.float32(1)))
        filled = self.constant("filled", np.where(outside, value, np.float32(0)))
        yield helper.make_node("Mul", [name, kept], [f"{self.stem}.inside"])
        yield helper.make_node("Add", [f"{self.stem}.inside", filled], [self.resize.node.output[0]])

    def constant(self, name: str, values: Array) -> str:
        tensor = numpy_helper.from_array(values.astype(self.resize.dtype), f"{self.stem}.{name}")
        self.model.graph.initializer.append(tensor)
        return tensor.name
