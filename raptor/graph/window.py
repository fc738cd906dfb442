"""Sliding windows: which input pixel each kernel position (tap) reads for each output pixel."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution or pooling window over `batch` images of any number of spatial dimensions.

    Output position o reads input position `o * stride - pad + tap * dilation` in each dimension; positions outside the
    image are padding. A transposed window is the reverse: o reads the position i with `i * stride - pad + tap *
    dilation = o`, if one exists. Pixels are numbered in C order over (batch, *dims), as in
    `raptor.target.tensor_layout`."""

    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    batch: int = 1
    transposed: bool = False

    @classmethod
    def pointwise(cls, dims: tuple[int, ...], batch: int = 1) -> "Window":
        """Returns the window of one tap: every output pixel reads the input pixel at its own position."""
        ones = (1,) * len(dims)
        return cls(dims, dims, ones, ones, (0,) * len(dims), ones, batch)

    @property
    def tap_count(self) -> int:
        """Number of kernel positions."""
        return math.prod(self.kernel)

    @property
    def in_lines(self) -> int:
        """Number of input lines of the whole batch; a line is a row of pixels along the last dimension."""
        return self.batch * math.prod(self.in_dims[:-1])

    @property
    def out_lines(self) -> int:
        """Number of output lines of the whole batch."""
        return self.batch * math.prod(self.out_dims[:-1])

    @property
    def in_pixels(self) -> int:
        """Number of input pixels of the whole batch."""
        return self.batch * math.prod(self.in_dims)

    @property
    def out_pixels(self) -> int:
        """Number of output pixels of the whole batch."""
        return self.batch * math.prod(self.out_dims)

    @property
    def is_global(self) -> bool:
        """True if the only output pixel reads every input pixel once, as in a global pooling."""
        return self.out_pixels == 1 and self.kernel == self.in_dims and not any(self.pads)

    def input_pixels(self) -> Pixels:
        """Returns [output pixels, taps] -> input pixel, or -1 where the tap lies in the padding; taps in C order."""
        one_image = np.zeros((1, 1), np.int64)
        for d, size in enumerate(self.in_dims):
            # [outputs so far, taps so far] x [outputs of d, taps of d]
            one_image = _combined(one_image, self._positions(d), size)
        images = np.arange(self.batch)[:, None, None] * math.prod(self.in_dims)
        all_images = np.where(one_image >= 0, one_image + images, -1)
        return all_images.reshape(-1, self.tap_count).astype(np.int32)

    def _positions(self, d: int) -> Ints:
        """Returns [outputs, taps] -> input position in dimension `d`, or -1 outside the image."""
        output, tap = np.arange(self.out_dims[d])[:, None], np.arange(self.kernel[d])[None, :]
        stride, pad, dilation = self.strides[d], self.pads[d], self.dilations[d]
        if self.transposed:
            scaled = output + pad - tap * dilation
            at = np.where(scaled % stride == 0, scaled // stride, -1)
        else:
            at = output * stride - pad + tap * dilation
        return np.where((at >= 0) & (at < self.in_dims[d]), at, -1)


@dataclass(frozen=True, slots=True, eq=False)
class WindowTable:
    """A window as an explicit table. pixels: [output pixels, taps] -> input pixel, or -1 for padding."""

    pixels: Pixels
    in_pixels: int

    @property
    def tap_count(self) -> int:
        return self.pixels.shape[1]

    @property
    def out_pixels(self) -> int:
        return self.pixels.shape[0]

    def input_pixels(self) -> Pixels:
        return self.pixels


@lru_cache(maxsize=8)
def cached_input_pixels(window: Window | WindowTable) -> Pixels:
    """Returns `window.input_pixels()` from a small cache, which serves the tiles of one layer."""
    return window.input_pixels()


def _combined(outer: Ints, inner: Ints, size: int) -> Ints:
    """Combines [outputs, taps] of the first dimensions with [outputs, taps] of the next one, of `size`; -1 stays -1."""
    a, b = outer[:, None, :, None], inner[None, :, None, :]
    both = np.where((a >= 0) & (b >= 0), a * size + b, -1)
    return both.reshape(outer.shape[0] * inner.shape[0], outer.shape[1] * inner.shape[1])
