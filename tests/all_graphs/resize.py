"""Images in another size."""

import math
from typing import Any

import numpy as np

from tests.all_graphs.builder import Builder, step


@step("resize", 2)
def resize(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 4, 4)
    shape = b.shape(x)
    scales = [1.0 if len(shape) > 2 and a < 2 and not b.chance(6) else b.pick(SCALES) for a in range(len(shape))]
    sizes = [math.floor(s * n) for s, n in zip(scales, shape, strict=True)]
    # Sizes on the edge of rounding are refused.
    for kind in (np.float32, np.float64):
        b.need(sizes == [int(kind(np.float32(s)) * kind(n)) for s, n in zip(scales, shape, strict=True)])
    if b.opset < 11:
        _old_resize(b, x, scales)
        return
    attributes = _resize_attributes(b)
    roi = b.given([]) if b.opset < 13 else ""
    by_sizes = b.chance(3)
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        # With scales, onnx infers the size of the part and onnxruntime that of the whole.
        by_sizes = True
        # Fractions of 8: of others, the rounding of onnxruntime decides which element is the nearest.
        low, high = b.pick([(0.0, 1.0), (0.125, 0.75), (0.25, 1.25)])
        roi = b.given([low] * len(shape) + [high] * len(shape))
        if b.chance():
            attributes["extrapolation_value"] = 0.5
    if by_sizes:
        b.emit("Resize", [x, roi, b.given([]) if b.opset < 13 else "", b.ints(sizes)], **attributes)
    else:
        b.emit("Resize", [x, roi, b.given(scales)], **attributes)


SCALES = (1.0, 2.0, 2.0, 3.0, 1.5, 0.5, 0.75, 1.3)


def _old_resize(b: Builder, x: str, scales: list[float]) -> None:
    mode = b.pick(["nearest", "linear"])
    if b.opset == 10:
        b.emit("Resize", [x, b.given(scales)], mode=mode)
        return
    b.need(min(scales) >= 1)
    if b.opset >= 9:
        b.emit("Upsample", [x, b.given(scales)], mode=mode)
    else:
        b.emit("Upsample", [x], mode=mode, scales=scales)


def _resize_attributes(b: Builder) -> dict[str, Any]:
    mode = b.pick(["nearest", "linear", "cubic"])
    coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize"]
    if b.opset >= 19 and mode != "nearest":
        # Nearest ones on the edge of rounding are refused.
        coordinates.append("half_pixel_symmetric")
    attributes = {"mode": mode, "coordinate_transformation_mode": b.pick(coordinates)}
    if mode == "nearest":
        attributes["nearest_mode"] = b.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic" and b.chance():
        attributes |= {"cubic_coeff_a": -0.5, "exclude_outside": b.number(0, 1)}
    if mode != "nearest" and b.opset >= 18 and b.chance(3):
        attributes["antialias"] = 1
    return attributes
