"""Windows of pooling and of transposed convolution, as ONNX defines them by attributes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raptor.common.errors import UserError


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """For each axis: kernel, strides, dilations, length of the input, padding before it, and number of windows."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    image: tuple[int, ...]
    before: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """Lengths of the padded image, which contains every window."""
        return tuple(
            max((o - 1) * s + (k - 1) * d + 1, b + n)
            for o, s, k, d, b, n in zip(
                self.out, self.strides, self.kernel, self.dilations, self.before, self.image, strict=True
            )
        )

    @property
    def image_slices(self) -> tuple[slice, ...]:
        """Place of the image in the padded image."""
        return tuple(slice(b, b + n) for b, n in zip(self.before, self.image, strict=True))

    def tap_slices(self, at: Sequence[int]) -> tuple[slice, ...]:
        """Selects the pixel of each window at one kernel position."""
        return tuple(
            slice(k * d, k * d + (o - 1) * s + 1, s)
            for k, d, o, s in zip(at, self.dilations, self.out, self.strides, strict=True)
        )


def make_pool_window(given: Mapping[str, Any], image: Sequence[int]) -> tuple[PoolWindow, tuple[int, ...]]:
    """Returns the windows of a pool, and the padding after the image along each axis."""
    kernel = tuple(given["kernel_shape"])
    rank = len(kernel)
    strides, dilations = (tuple(given.get(name) or [1] * rank) for name in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    how = given.get("auto_pad", b"NOTSET").decode()
    if how in ("SAME_UPPER", "SAME_LOWER"):
        out = [-(-n // s) for n, s in zip(image, strides, strict=True)]
        totals = [max((o - 1) * s + r - n, 0) for o, s, r, n in zip(out, strides, reach, image, strict=True)]
        small = [t // 2 for t in totals]
        large = [t - t // 2 for t in totals]
        before, behind = (small, large) if how == "SAME_UPPER" else (large, small)
        return PoolWindow(kernel, strides, dilations, tuple(image), tuple(before), tuple(out)), tuple(behind)
    pads = list(given.get("pads") or [0] * 2 * rank) if how == "NOTSET" else [0] * 2 * rank
    before, behind = pads[:rank], pads[rank:]
    out = [
        _count(n + b + e, r, s, n + b, ceil=bool(given.get("ceil_mode", 0)))
        for n, b, e, r, s in zip(image, before, behind, reach, strides, strict=True)
    ]
    return PoolWindow(kernel, strides, dilations, tuple(image), tuple(before), tuple(out)), tuple(behind)


def _count(length: int, reach: int, stride: int, ends: int, *, ceil: bool) -> int:
    """Returns the number of windows; with `ceil`, the last one may end outside but must start before `ends`."""
    if not ceil:
        return (length - reach) // stride + 1
    count = math.ceil((length - reach) / stride) + 1
    return count - 1 if (count - 1) * stride >= ends else count


def make_transposed_window(given: Mapping[str, Any], image: Sequence[int], kernel: Sequence[int]) -> PoolWindow:
    """Returns the windows of a ConvTranspose with an input of lengths `image`. Its output is `Window.image`."""
    rank = len(kernel)
    strides, dilations = (tuple(given.get(name) or [1] * rank) for name in ("strides", "dilations"))
    extra = given.get("output_padding") or [0] * rank
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(image, strides, kernel, dilations, extra, strict=True)
    ]
    how = given.get("auto_pad", b"NOTSET").decode()
    shape = given.get("output_shape") or ([n * s for n, s in zip(image, strides, strict=True)] if "SAME" in how else ())
    if shape:
        totals = [max(w - n, 0) for w, n in zip(whole, shape[-rank:], strict=True)]
        before = [t // 2 if how == "SAME_UPPER" else t - t // 2 for t in totals]
        out = list(shape[-rank:])
    else:
        pads = list(given.get("pads") or [0] * 2 * rank)
        before = pads[:rank]
        out = [w - b - e for w, b, e in zip(whole, before, pads[rank:], strict=True)]
    if min(out) < 1:
        raise UserError(f"a transposed convolution of {list(image)} with these pads has no output")
    return PoolWindow(tuple(kernel), strides, dilations, tuple(out), tuple(before), tuple(image))
