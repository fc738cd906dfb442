"""MultiHeadAttention and Attention of onnxruntime, in standard ONNX operators."""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from raptor.frontend.contributed.attention_expansions import MASKED, attend, count_below, hide_later_keys
from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter

_END = 2**31 - 1
_FILTERED = -10000.0
"""Default of `mask_filter_value`, which is added to the score of a key that a mask hides."""


def multi_head_attention(w: ExpansionWriter) -> None:
    """Attention of queries [B, S, D] on keys and values [B, L, D] or [B, heads, L, d], after those of a past.

    `bias` is added before keys and values are appended to the past.
    """
    w.refuse_inputs({8: "past_sequence_length (onnxruntime versions disagree)", 9: "cache_indirection"})
    w.refuse_outputs(3)
    heads, inputs = w.view.integer("num_heads", 0), [w.view.input(k) for k in range(8)]
    query, key, value, bias, mask, added, *past = inputs
    if heads < 1 or not query or not key or not value:
        raise CannotExpandError(f"num_heads={heads}; only the form with query, key and value is supported")
    split = {name: w.rank(name) == 3 for name in (key, value)}
    if w.rank(key) not in (3, 4) or split[key] != split[value]:
        raise CannotExpandError("packed keys and values are not supported")
    if bias and not split[key]:
        raise CannotExpandError("a bias beside keys by heads is not supported")
    flat = _add_biases(w, (query, key, value), bias) if bias else [query, key, value]
    q, k, v = (
        _by_heads(w, x, heads) if split.get(name or "", True) else x for x, name in zip(flat, inputs, strict=False)
    )
    if past[0] and past[1]:
        if not all([*w.view.outputs, "", ""][1:3]):
            raise CannotExpandError("onnxruntime reads memory that nothing wrote if it has a past, and no present")
        k, v = w.add("Concat", [past[0], k], axis=2), w.add("Concat", [past[1], v], axis=2)
    later = _hide_later(w, q, k, past[0], causal=bool(w.view.integer("unidirectional", 0)))
    w.finish(attend(w, (q, k, v), (_hide_masked(w, mask, query, k) if mask else None, added, later), heads, heads))
    w.finish(k, 1)
    w.finish(v, 2)


def _add_biases(w: ExpansionWriter, operands: Sequence[str], bias: str) -> list[str]:
    """Adds the parts of a bias [D + D + Dv] to queries, keys and values [B, rows, D]."""
    width = w.size(operands[0], 2)
    starts = [w.integers(0), w.unsqueeze(width, 0), w.unsqueeze(w.add("Add", [width, width]), 0)]
    ends = [*starts[1:], w.integers(_END)]
    parts = [w.add("Slice", [bias, a, b, w.integers(0)]) for a, b in zip(starts, ends, strict=True)]
    return [w.add("Add", [x, part]) for x, part in zip(operands, parts, strict=True)]


def attention(w: ExpansionWriter) -> None:
    """Attention of x [B, S, D] on itself: queries, keys and values are x W + bias; past: [2, B, heads, P, d]."""
    w.refuse_inputs({6: "past_sequence_length"})
    heads, sizes = w.view.integer("num_heads", 0), w.view.ints("qkv_hidden_sizes")
    if heads < 1 or w.view.integer("do_rotary", 0) or w.view.integer("past_present_share_buffer", 0):
        raise CannotExpandError(
            f"num_heads={heads}; do_rotary and past_present_share_buffer: onnxruntime cannot judge them on the CPU"
        )
    x, weights, bias, mask, past, added = (w.view.input(k) for k in range(6))
    assert x is not None, "an operator has its first input"
    assert weights is not None, "an operator has its second input"
    packed = w.add("MatMul", [x, weights])
    packed = w.add("Add", [packed, bias]) if bias else packed
    if sizes:
        parts = w.split(packed, 2, sizes)
    else:
        whole = w.reshape(packed, 0, 0, 3, -1)
        parts = [w.add("Squeeze", [p, w.integers(2)]) for p in w.split(whole, 2, [1, 1, 1])]
    q, k, v = (_by_heads(w, part, heads) for part in parts)
    if past or (len(w.view.outputs) > 1 and w.view.outputs[1]):
        new = w.add("Concat", [w.unsqueeze(k, 0), w.unsqueeze(v, 0)], axis=0)
        both = w.add("Concat", [past, new], axis=3) if past else new
        k, v = (w.add("Gather", [both, w.constant(np.int64(n))], axis=0) for n in range(2))
        w.finish(both, 1)
    later = _hide_later(w, q, k, past, causal=bool(w.view.integer("unidirectional", 0)))
    w.finish(attend(w, (q, k, v), (_hide_masked(w, mask, x, k) if mask else None, added, later), heads, heads))


def standard_attention(w: ExpansionWriter) -> None:
    """ONNX's own Attention, of queries [B, heads, S, d] or [B, S, heads * d] on keys and values after those of a past.

    A mask is added to the scores; a mask of booleans is True for a key that is seen.
    """
    w.refuse_inputs({6: "nonpad_kv_seqlen"})
    w.refuse_outputs(3)
    query, key, value, mask, *past = (w.view.input(k) for k in range(6))
    assert query is not None, "an operator has its first input"
    assert key is not None, "an operator has its second input"
    assert value is not None, "an operator has its third input"
    heads, groups = w.view.integer("q_num_heads", 0), w.view.integer("kv_num_heads", 0)
    if flat := w.rank(query) == 3:
        q, k, v = (_by_heads(w, x, n) for x, n in ((query, heads), (key, groups), (value, groups)))
    else:
        q, k, v = query, key, value
        heads, groups = (n if isinstance(n, int) else 0 for n in (w.shape(query)[1], w.shape(key)[1]))
    if heads < 1 or groups < 1 or heads % groups:
        raise CannotExpandError(f"{heads} heads of queries, {groups} of keys")
    if past[0] and past[1]:
        k, v = w.add("Concat", [past[0], k], axis=2), w.add("Concat", [past[1], v], axis=2)
    if mask and w.known.types.get(mask) == TensorProto.BOOL:
        unseen = w.add("Cast", [w.add("Not", [mask])], to=TensorProto.FLOAT)
        mask = w.add("Mul", [unseen, w.number(MASKED)])
    later = _hide_later(w, q, k, past[0], causal=bool(w.view.integer("is_causal", 0)))
    mixed = attend(w, (q, k, v), (mask, later), heads, groups)
    w.finish(mixed if flat else _by_heads(w, mixed, heads))
    w.finish(k, 1)
    w.finish(v, 2)


def _by_heads(w: ExpansionWriter, x: str, heads: int) -> str:
    return w.add("Transpose", [w.reshape(x, 0, 0, heads, -1)], perm=[0, 2, 1, 3])


def _hide_later(w: ExpansionWriter, q: str, k: str, past: str | None, *, causal: bool) -> str | None:
    """Adds the mask of a causal attention, whose rows are the last keys; without a past, the first ones."""
    if not causal:
        return None
    rows = count_below(w, w.size(q, 2))
    if past:
        rows = w.add("Add", [rows, w.add("Sub", [w.size(k, 2), w.size(q, 2)])])
    return hide_later_keys(w, rows, w.size(k, 2))


def _hide_masked(w: ExpansionWriter, mask: str, x: str, keys: str) -> str:
    """Adds what a mask adds to the scores [B, heads, S, T]: `mask_filter_value` for each key that is not seen.

    `mask`: [B], the ends of all sequences; [2 B], their ends, then their starts; [B, T] or [B, S, T], positive for a
    key that is seen. `x`: the queries, [B, S, D].
    """
    rank = w.rank(mask)
    if rank == 1:
        seen = _within_ends(w, mask, x, keys)
    elif rank in (2, 3):
        grown = w.unsqueeze(w.unsqueeze(mask, 1), 1) if rank == 2 else w.unsqueeze(mask, 1)
        seen = w.add("Cast", [w.add("Greater", [grown, w.constant(np.int32(0))])], to=TensorProto.FLOAT)
    else:
        raise CannotExpandError(f"a mask of {rank} dimensions is not supported")
    value = w.view.number("mask_filter_value", _FILTERED)
    return w.add("Mul", [w.add("Sub", [w.number(1), seen]), w.number(value)])


def _within_ends(w: ExpansionWriter, ends: str, x: str, keys: str) -> str:
    """Adds [B, 1, 1, T]: 1 from the start of a sequence to its end, else 0."""
    (given,), batch = w.shape(ends), w.shape(x)[0]
    both = isinstance(given, int) and isinstance(batch, int) and given == 2 * batch
    if given != batch and not both:
        raise CannotExpandError(f"a mask [{given}] for {batch} sequences is not supported")
    place = w.add("Cast", [count_below(w, w.size(keys, 2))], to=TensorProto.INT32)
    first, last = w.split(ends, 0, [given // 2] * 2)[::-1] if both and isinstance(given, int) else (None, ends)
    seen = w.add("Less", [place, w.reshape(last, -1, 1, 1, 1)])
    if first:
        seen = w.add("And", [seen, w.add("Not", [w.add("Less", [place, w.reshape(first, -1, 1, 1, 1)])])])
    return w.add("Cast", [seen], to=TensorProto.FLOAT)
