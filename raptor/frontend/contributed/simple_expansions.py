"""Norms, activations and quantised matrix products of onnxruntime, in standard ONNX operators."""

import numpy as np

from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter
from raptor.frontend.proto.nodes import Array

_SQUARE_ROOT_OF_HALF = 0.7071067811865476
_TANH_SCALE, _TANH_CUBE = 0.7978845608028654, 0.044715
_BITS = (2, 4, 8)


def simplified_layer_norm(w: ExpansionWriter) -> None:
    """x / r * scale, and 1 / r: r = sqrt(mean of x * x from `axis` on + epsilon). epsilon: 1e-5 by default."""
    w.refuse_outputs(2)
    x, gain = w.view.inputs[:2]
    axis = w.view.integer("axis", -1)
    axes = -axis if axis < 0 else w.rank(x) - axis
    normal, root = _rms_norm(w, x, gain, w.view.number("epsilon", 1e-5), axes)
    w.finish(normal)
    if len(w.view.outputs) > 1 and w.view.outputs[1]:
        w.finish(w.add("Reciprocal", [root]), 1)


def skip_simplified_layer_norm(w: ExpansionWriter) -> None:
    """Input + skip + bias (output 3), and its root-mean-square norm. epsilon: 1e-12 by default."""
    w.refuse_outputs(1, without=3)
    total = _residual_sum(w, bias=3)
    w.finish(_rms_norm(w, total, w.view.inputs[2], w.view.number("epsilon", 1e-12))[0])
    w.finish(total, 3)


def skip_layer_norm(w: ExpansionWriter) -> None:
    """Input + skip + bias (output 3), and its layer norm. epsilon: 1e-12 by default."""
    w.refuse_outputs(1, without=3)
    total = _residual_sum(w, bias=4)
    w.finish(layer_norm(w, total, w.view.inputs[2], w.view.input(3), w.view.number("epsilon", 1e-12)))
    w.finish(total, 3)


def layer_norm(w: ExpansionWriter, x: str, gain: str, beta: str | None, epsilon: float) -> str:
    """Adds the layer norm over the last axis: (x - mean) / sqrt(variance + epsilon) * gain + beta."""
    normal, _ = _rms_norm(w, w.add("Sub", [x, w.mean(x)]), gain, epsilon)
    return w.add("Add", [normal, beta]) if beta else normal


def _residual_sum(w: ExpansionWriter, bias: int) -> str:
    total = w.add("Add", list(w.view.inputs[:2]))
    added = w.view.input(bias)
    return w.add("Add", [total, added]) if added else total


def _rms_norm(w: ExpansionWriter, x: str, gain: str, epsilon: float, axes: int = 1) -> tuple[str, str]:
    """Adds the norm by the root of the mean square of the last `axes` axes. Returns it, and the root."""
    root = w.add("Sqrt", [w.add("Add", [w.mean(w.add("Mul", [x, x]), axes), w.number(epsilon)])])
    return w.add("Mul", [w.add("Div", [x, root]), gain]), root


def quick_gelu(w: ExpansionWriter) -> None:
    """x * sigmoid(alpha x); alpha is 1.702 by default."""
    (x,) = w.view.inputs
    w.finish(w.add("Mul", [x, w.add("Sigmoid", [w.add("Mul", [x, w.number(w.view.number("alpha", 1.702))])])]))


def gelu(w: ExpansionWriter) -> None:
    """x / 2 * (1 + erf(x / sqrt(2)))."""
    w.finish(_gelu(w, w.view.inputs[0]))


def bias_gelu(w: ExpansionWriter) -> None:
    """Gelu of x + bias, by the error function."""
    w.finish(_gelu(w, w.add("Add", list(w.view.inputs[:2]))))


def _gelu(w: ExpansionWriter, x: str) -> str:
    share = w.add("Add", [w.add("Erf", [w.add("Mul", [x, w.number(_SQUARE_ROOT_OF_HALF)])]), w.number(1)])
    return w.add("Mul", [w.add("Mul", [x, w.number(0.5)]), share])


def fast_gelu(w: ExpansionWriter) -> None:
    """Gelu of x + bias, by its approximation with tanh; the bias may be absent."""
    bias = w.view.input(1)
    x = w.add("Add", [w.view.inputs[0], bias]) if bias else w.view.inputs[0]
    cube = w.add("Mul", [w.add("Mul", [w.add("Mul", [x, x]), x]), w.number(_TANH_CUBE)])
    bend = w.add("Tanh", [w.add("Mul", [w.add("Add", [x, cube]), w.number(_TANH_SCALE)])])
    w.finish(w.add("Mul", [w.add("Mul", [x, w.number(0.5)]), w.add("Add", [bend, w.number(1)])]))


def matmul_nbits(w: ExpansionWriter) -> None:
    """x W^T + bias, where W [N, K] has 2, 4 or 8 bits: (q - zero point) * scale, one of each for a block along K.

    `accuracy_level` does not matter: activations stay floats, as with level 0.
    """
    w.refuse_inputs({4: "g_idx (deprecated)"})
    if w.view.integer("weight_prepacked", 0):
        raise CannotExpandError("weight_prepacked is not supported")
    product = w.add("MatMul", [w.view.inputs[0], w.constant(dequantise_blocks(w).T.copy())])
    bias = w.view.input(5)
    w.finish(w.add("Add", [product, bias]) if bias else product)


def dequantise_blocks(w: ExpansionWriter) -> Array:
    """Returns the float32 weights [N, K] of a MatMulNBits. Raises `CannotExpandError` for other sizes or bits."""
    rows, columns = w.view.integer("N", 0), w.view.integer("K", 0)
    bits, block = w.view.integer("bits", 4), w.view.integer("block_size", 0)
    if bits not in _BITS or block < 1 or rows < 1 or columns < 1:
        raise CannotExpandError(f"bits={bits}, block_size={block}, N={rows}, K={columns}")
    blocks = -(-columns // block)
    codes = unpack_codes(w.weight(1, "weights"), bits, rows * blocks, block)
    scale = w.weight(2, "scales").astype(np.float32)
    if codes is None or scale.size != rows * blocks:
        raise CannotExpandError(f"weights or scales do not fit N={rows}, K={columns}, block_size={block}")
    zero = np.full((rows, blocks), 2 ** (bits - 1), np.float32)
    if w.view.input(3):
        given = w.weight(3, "zero points")
        found = unpack_codes(given, bits, rows, blocks) if given.dtype == np.uint8 else given.reshape(rows, -1)
        if found is None or found.shape != zero.shape:
            raise CannotExpandError(f"zero points do not fit N={rows}, K={columns}, block_size={block}")
        zero = found.astype(np.float32)
    values = (codes.reshape(rows, blocks, block) - zero[..., None]) * scale.reshape(rows, blocks, 1)
    return values.reshape(rows, -1)[:, :columns].astype(np.float32)


def unpack_codes(packed: Array, bits: int, rows: int, columns: int) -> Array | None:
    """Returns numbers [rows, columns] as float32; each row is padded to bytes, low bits first. None: another size."""
    in_row = -(-columns * bits // 8)
    if packed.size != rows * in_row:
        return None
    parts = packed.reshape(rows, in_row, 1) >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    return parts.reshape(rows, -1)[:, :columns].astype(np.float32)
