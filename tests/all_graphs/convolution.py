"""Convolutions, and what their windows share with pools."""

import math
from typing import Any

from tests.all_graphs.builder import Builder, Shape, step


def image(b: Builder) -> str:
    """A tensor of rank 3 to 5 with at most 12 channels and dimensions that leave something to slide over."""
    name = b.tensor(3, 4, 4, 5)
    b.need(b.shape(name)[1] <= 12)
    return name


def sliding(b: Builder, dims: Shape, *, dilated: bool = True, far: bool = False) -> dict[str, Any]:
    """Attributes of a window. far: padding may be as wide as the dilated kernel, which pools do not allow."""
    kernels = [b.number(1, min(3 if len(dims) < 3 else 2, n + 1)) for n in dims]
    attributes: dict[str, Any] = {"kernel_shape": kernels}
    if b.chance():
        attributes["strides"] = [b.number(1, 3) for _ in dims]
    if dilated and b.chance(3):
        attributes["dilations"] = [b.pick([1, 1, 2, 2, 5]) for _ in dims]
    mode = b.pick(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if mode != "NOTSET":
        attributes["auto_pad"] = mode
    elif b.chance():
        dilations = attributes.get("dilations", [1] * len(dims)) if far else [1] * len(dims)
        spans = [(k - 1) * d for k, d in zip(kernels, dilations, strict=True)]
        attributes["pads"] = [b.number(0, span) for span in spans * 2]
    return attributes


@step("convolution", 4)
def conv(b: Builder) -> None:
    x = image(b)
    _, channels, *dims = b.shape(x)
    attributes = sliding(b, tuple(dims), far=True)
    group = b.pick([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    filters = group * b.number(1, max(1, 8 // group))
    kernel = attributes["kernel_shape"]
    ins = channels // group
    inputs = [x, b.constant(filters, ins, *kernel, fan_in=ins * math.prod(kernel))]
    if b.chance():
        inputs.append(b.constant(filters))
    if b.chance(4):
        del attributes["kernel_shape"]
    if group > 1:
        attributes["group"] = group
    b.emit("Conv", inputs, **attributes)


@step("convolution", 2)
def parallel_layers(b: Builder) -> None:
    """Adds layers of one image, copies of it with factors, or the image itself, as networks are trained."""
    x = image(b)
    _, channels, *dims = b.shape(x)
    group, dilation = b.pick([1, channels]), b.number(1, 2)
    total = ""
    for kind in [b.pick([1, 3, 3]), *(b.pick([0, 1, 2, 3]) for _ in range(b.number(1, 3)))]:
        term = x
        if kind % 2:
            weights = b.constant(channels, channels // group, *[kind] * len(dims), fan_in=channels * kind)
            around = {"pads": [kind // 2 * dilation] * 2 * len(dims), "dilations": [dilation] * len(dims)}
            term = b.emit("Conv", [x, weights, *([b.constant(channels)] if b.chance() else [])], group=group, **around)
        if kind == 2 or b.chance(4):
            term = b.emit("Mul", [term, b.constant(channels, *[1] * len(dims))])
        total = b.emit(b.pick(["Add", "Add", "Sub"]), [total, term]) if total else term


@step("convolution", 3)
def conv_transpose(b: Builder) -> None:
    x = image(b)
    _, channels, *dims = b.shape(x)
    group = b.pick([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    outs = b.number(1, max(1, 6 // group))
    kernel = [b.number(1, 3 if len(dims) < 3 else 2) for _ in dims]
    strides = [b.number(1, 3) for _ in dims]
    dilations = [b.number(1, 2) if b.chance(4) else 1 for _ in dims]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": group}
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(dims, strides, kernel, dilations, strict=True)]
    form = b.number(0, 3)
    if form == 1:
        # onnx and onnxruntime disagree about outputs smaller than the input's share.
        b.need(all(f >= n * s for f, n, s in zip(full, dims, strides, strict=True)))
        attributes["auto_pad"] = b.pick(["SAME_UPPER", "SAME_LOWER"])
    elif form == 2:
        attributes["output_shape"] = [b.number(max(1, f - 2), f) for f in full]
        # onnx infers no shape below the input's.
        b.need(all(o >= n for o, n in zip(attributes["output_shape"], dims, strict=True)))
    elif form == 3:
        attributes["pads"] = [b.number(0, k - 1) for k in kernel * 2]
    if form in (0, 3) and b.chance(3):
        attributes["output_padding"] = [b.number(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)]
    ins = channels // group
    inputs = [x, b.constant(channels, outs, *kernel, fan_in=max(1, ins))]
    if b.chance():
        inputs.append(b.constant(outs * group))
    b.emit("ConvTranspose", inputs, **attributes)
