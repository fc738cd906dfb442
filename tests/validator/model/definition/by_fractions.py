"""A second evaluation of operators on quantised tensors: loops over elements, with Python's fractions."""

from fractions import Fraction
from itertools import product

import numpy as np

F32 = np.float32


def exact(number):
    """Returns a float32 as a fraction."""
    return Fraction(float(F32(number)))


def clamped(number, zero, low, high):
    """Rounds a fraction (Python's `round` is ties to even), adds the zero point, saturates."""
    return min(max(round(number) + zero, low), high)


def element_wise(function, *arrays):
    """Applies a function of Python's integers to arrays, which are broadcast."""
    arrays = np.broadcast_arrays(*[np.asarray(a).astype(object) for a in arrays])
    out = np.empty(arrays[0].shape, object)
    for at in product(*map(range, out.shape)):
        out[at] = function(*(a[at] for a in arrays))
    return out


def sums_of_conv(x, w, *, strides, pads, dilations, group):
    """Returns the sums of a convolution of two axes; x and w without zero points."""
    batch, _, *image = x.shape
    outs, inner, *kernel = w.shape
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [(image[a] + pads[a] + pads[a + 2] - reach[a]) // strides[a] + 1 for a in range(2)]
    total = np.zeros((batch, outs, *size), object)
    for n, m, row, col, c, i, j in product(*map(range, (batch, outs, *size, inner, *kernel))):
        y = row * strides[0] - pads[0] + i * dilations[0]
        z = col * strides[1] - pads[1] + j * dilations[1]
        if 0 <= y < image[0] and 0 <= z < image[1]:
            total[n, m, row, col] += int(x[n, m // (outs // group) * inner + c, y, z]) * int(w[m, c, i, j])
    return total


def sums_of_matmul(a, b):
    """Returns the sums of a product of matrices [.., R, K] x [K, C]."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), object)
    for at in product(*map(range, total.shape)):
        total[at] = sum(int(p) * int(q) for p, q in zip(a[at[:-1]], b[:, at[-1]], strict=True))
    return total


def windows(x, kernel, strides, pads, function):
    """Applies a function to the elements of each window that lie in the image."""
    batch, channels, *image = x.shape
    size = [(image[a] + pads[a] + pads[a + 2] - kernel[a]) // strides[a] + 1 for a in range(2)]
    out = np.empty((batch, channels, *size), object)
    for n, c, row, col in product(*map(range, out.shape)):
        first = (row * strides[0] - pads[0], col * strides[1] - pads[1])
        places = product(*(range(max(f, 0), min(f + k, e)) for f, k, e in zip(first, kernel, image, strict=True)))
        out[n, c, row, col] = function([int(x[n, c, y, z]) for y, z in places])
    return out
