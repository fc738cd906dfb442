"""Sliding windows: which input pixel each kernel position reads for each output pixel."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution or pooling window over `batch` images of any number of spatial dimensions.

    Output position o reads input position `o * stride - pad + tap * dilation` in each dimension; positions outside
    the image are padding. Pixels are numbered in C order over (batch, *dims), as in `raptor.layout`.
    """

    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    batch: int = 1

    @classmethod
    def point(cls, dims: tuple[int, ...], batch: int = 1) -> "Window":
        """The window of one pixel: every output reads the input at its own position."""
        ones = (1,) * len(dims)
        return cls(dims, dims, ones, ones, (0,) * len(dims), ones, batch)

    @property
    def tap_count(self) -> int:
        return math.prod(self.kernel)

    @property
    def is_point(self) -> bool:
        return self == Window.point(self.in_dims, self.batch)

    @property
    def out_pixels(self) -> int:
        return self.batch * math.prod(self.out_dims)

    def input_pixels(self) -> Pixels:
        """[output pixels, taps] -> input pixel, or -1 where the tap lies in the padding. Taps in C order."""
        pixel = np.zeros((1, 1), np.int64)
        inside = np.ones((1, 1), np.bool_)
        for d, size in enumerate(self.in_dims):
            # [outputs so far, taps so far] x [outputs of d, taps of d]
            at = self._positions(d)
            pixel = _outer(pixel, np.full(at.shape, size), np.multiply) + _outer(np.zeros_like(pixel), at, np.add)
            inside = _outer(inside, (at >= 0) & (at < size), np.logical_and)
        one_image = np.where(inside, pixel, -1)
        images = np.arange(self.batch)[:, None, None] * math.prod(self.in_dims)
        all_images = np.where(one_image >= 0, one_image + images, -1)
        return all_images.reshape(-1, self.tap_count).astype(np.int32)

    def _positions(self, d: int) -> npt.NDArray[np.int64]:
        outputs = np.arange(self.out_dims[d])[:, None] * self.strides[d] - self.pads[d]
        return outputs + np.arange(self.kernel[d])[None, :] * self.dilations[d]


def _outer(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], f: np.ufunc) -> npt.NDArray[np.generic]:
    """[i, j] x [k, l] -> [i * k, j * l] with f applied to each pair."""
    return f(a[:, None, :, None], b[None, :, None, :]).reshape(a.shape[0] * b.shape[0], a.shape[1] * b.shape[1])
