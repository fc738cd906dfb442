"""Embeddings of onnxruntime, with norms or of blocks of integers, in standard ONNX operators."""

import numpy as np
from onnx import TensorProto

from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter
from raptor.frontend.contributed.simple_expansions import layer_norm, unpack_codes
from raptor.frontend.proto.nodes import Array

_BITS = (4, 8)


def embed_layer_norm(w: ExpansionWriter) -> None:
    """Layer norm of word + position + segment embeddings of ids [B, S]; then mask counts [B], and the sum.

    Positions are 0, 1, ... without `position_ids`. epsilon: 1e-12 by default.
    """
    ids, segments, words, places, kinds, gain, beta = (w.view.input(k) for k in range(7))
    if not ids or not words or not places or not gain or not beta:
        raise CannotExpandError("an input is missing")
    total = w.add("Gather", [words, ids], axis=0)
    positions = w.view.input(8)
    if positions:
        total = w.add("Add", [total, w.add("Gather", [places, positions], axis=0)])
    else:
        length = w.unsqueeze(w.size(ids, 1), 0)
        total = w.add("Add", [total, w.add("Slice", [places, w.integers(0), length, w.integers(0)])])
    if segments and kinds:
        total = w.add("Add", [total, w.add("Gather", [kinds, segments], axis=0)])
    mask = w.view.input(7)
    if mask:
        count = w.add("ReduceSum", [mask, w.integers(1)], keepdims=0)
        w.finish(w.add("Cast", [count], to=TensorProto.INT32), 1)
    else:
        batch = w.unsqueeze(w.size(ids, 0), 0)
        w.finish(w.add("Expand", [w.constant(np.zeros(1, np.int32)), batch]), 1)
    w.finish(layer_norm(w, total, gain, beta, w.view.number("epsilon", 1e-12)))
    w.finish(total, 2)


def gather_block_quantized(w: ExpansionWriter) -> None:
    """Gather along `gather_axis` of (q - zero point) * scale, one of each for a block along `quantize_axis`."""
    data = w.weight(0, "data")
    indices = w.view.inputs[1]
    axis = w.view.integer("gather_axis", 0)
    w.finish(w.add("Gather", [w.constant(_dequantise(w, data)), indices], axis=axis))


def _dequantise(w: ExpansionWriter, data: Array) -> Array:
    """Unpacks an embedding table of bytes to floats; a byte holds 1 or 2 codes along the last axis, low bits first."""
    bits, block = w.view.integer("bits", 4), w.view.integer("block_size", 128)
    along = w.view.integer("quantize_axis", 1) % data.ndim
    scale, default = w.weight(2, "scales"), 0
    given = w.weight(3, "zero points") if w.view.input(3) else None
    packed = data.dtype == np.uint8
    if bits not in _BITS or block < 1 or (packed and bits == 4 and along != data.ndim - 1):
        raise CannotExpandError(f"bits={bits}, block_size={block}, quantize_axis={along}")
    codes = data.astype(np.float32)
    if packed:
        default = 2 ** (bits - 1)
        codes = _unpack(data, bits, data.shape[-1] * 8 // bits)
        given = None if given is None else _unpack(given, bits, scale.shape[-1])
    zero = np.full(scale.shape, default, np.float32) if given is None else given.astype(np.float32)
    blocks = -(-codes.shape[along] // block)
    if scale.shape != zero.shape or scale.shape != (*codes.shape[:along], blocks, *codes.shape[along + 1 :]):
        raise CannotExpandError(f"data {list(codes.shape)} and scales {list(scale.shape)} do not fit blocks of {block}")
    each = (np.repeat(a, block, along).take(range(codes.shape[along]), along) for a in (scale, zero))
    factor, offset = each
    return ((codes - offset) * factor.astype(np.float32)).astype(scale.dtype)


def _unpack(packed: Array, bits: int, columns: int) -> Array:
    rows = int(np.prod(packed.shape[:-1]))
    found = unpack_codes(packed, bits, rows, columns)
    if found is None:
        raise CannotExpandError(f"{list(packed.shape)} bytes are no {columns} columns of {bits} bits")
    return found.reshape(*packed.shape[:-1], columns)
