"""The layers of an ONNX model that can be pruned, as products of matrices: rows of inputs times weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, numpy_helper

from raptor.frontend.proto.nodes import read_attributes

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PrunedLayer:
    """A layer with constant weights. `weights` [taps, inputs, outputs]; `kernel`: sizes. `bias` [outputs], or None.

    `places` [kernel positions, channels]: the row of each in the inputs, as the compiler sees them: pixels that are
    flattened before a fully connected layer are kernel positions. `pixels`: output pixels.
    """

    node: NodeProto
    weights: Doubles
    kernel: tuple[int, ...]
    bias: Doubles | None
    places: npt.NDArray[np.int64]
    pixels: int

    def make_rows(self, values: Array) -> Doubles:
        """Returns the inputs of each output pixel, [output pixels, taps x inputs], from the input tensor."""
        if self.node.op_type != "Conv":
            return values.reshape(-1, values.shape[-1]).astype(np.float64)
        attributes = read_attributes(self.node)
        dims = values.ndim - 2
        kernel = self.kernel
        pads, strides, dilations = (
            list(attributes.get(name) or [default] * count)
            for name, default, count in (("pads", 0, 2 * dims), ("strides", 1, dims), ("dilations", 1, dims))
        )
        around = [(0, 0), (0, 0), *zip(pads[:dims], pads[dims:], strict=True)]
        extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, around), extents, tuple(range(2, 2 + dims)))
        steps = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
        windows = windows[(*steps, *(slice(None, None, d) for d in dilations))]
        order = (0, *range(2, 2 + 2 * dims), 1)
        return windows.transpose(order).reshape(-1, int(np.prod(kernel)) * values.shape[1]).astype(np.float64)

    def to_initializer(self, weights: Doubles) -> Array:
        """Returns weights [taps, inputs, outputs] in the shape that the node reads."""
        attributes = read_attributes(self.node)
        if self.node.op_type == "Conv":
            shape = *weights.shape[:0:-1], *self.kernel
            return np.ascontiguousarray(weights.transpose(2, 1, 0).reshape(shape), np.float32)
        matrix = weights[0].T if attributes.get("transB") else weights[0]
        return np.ascontiguousarray(matrix, np.float32)


def find_layers(model: ModelProto) -> Iterator[PrunedLayer]:
    """Yields the convolutions without groups, and the products with a constant matrix, in the order of the model.

    Layers that share weights are left out, and so are convolutions whose padding is not given as numbers.
    """
    constants = {t.name: t for t in model.graph.initializer}
    reads = [name for node in model.graph.node for name in node.input]
    makers = {node.output[0]: node for node in model.graph.node}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    shapes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.output}
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2:
            continue
        if node.input[1] not in constants or reads.count(node.input[1]) > 1:
            continue
        attributes = read_attributes(node)
        values = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
        if node.op_type == "Conv":
            if attributes.get("group", 1) != 1 or attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
                continue
            weights = values.reshape(*values.shape[:2], -1).transpose(2, 1, 0)
        elif values.ndim != 2 or attributes.get("transA") or attributes.get("alpha", 1) != 1:
            continue
        else:
            weights = (values.T if attributes.get("transB") else values)[None]
        bias = constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if bias is not None and reads.count(bias.name) > 1:
            continue
        image = shapes.get(_find_image(makers.get(node.input[0])), [])
        elements = math.prod(shapes.get(node.output[0], [1, 1]))
        yield PrunedLayer(
            node=node,
            weights=weights,
            kernel=values.shape[2:] if node.op_type == "Conv" else (),
            bias=None if bias is None else np.broadcast_to(numpy_helper.to_array(bias), weights.shape[2]).astype(float),
            places=_number_rows(weights.shape, () if node.op_type == "Conv" else tuple(image)),
            pixels=max(1, elements // weights.shape[2]),
        )


def _number_rows(shape: tuple[int, ...], image: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Returns the row of each kernel position and channel. `image`: shape of the tensor that is flattened before."""
    rows = np.arange(shape[0] * shape[1], dtype=np.int64)
    if len(image) > 2 and math.prod(image[1:]) == rows.size:
        return np.ascontiguousarray(rows.reshape(image[1], -1).T)
    return rows.reshape(shape[0], shape[1])


def _find_image(node: NodeProto | None) -> str:
    """Returns the tensor that a node flattens; empty if it does something else."""
    return node.input[0] if node is not None and node.op_type in ("Flatten", "Reshape") else ""
