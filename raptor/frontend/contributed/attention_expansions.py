"""Rotary embedding and grouped-query attention of onnxruntime, in standard ONNX operators."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from raptor.frontend.contributed.node_writer import CannotExpandError, ExpansionWriter

_END = 2**31 - 1
MASKED = -1e30
"""Added to the score of a key that is not seen: its weight becomes exactly 0, and no infinity arises."""


def rotary_embedding(w: ExpansionWriter) -> None:
    """Turns pairs of channels by the angles of their positions: x [B, S, N * d] or [B, N, S, d], ids [B, S] or [1]."""
    x, ids, cosines, sines = w.view.inputs[:4]
    heads, partial = w.view.integer("num_heads", 0), w.view.integer("rotary_embedding_dim", 0)
    if w.view.integer("is_packed_batching", 0):
        raise CannotExpandError("is_packed_batching is not supported")
    flat = w.rank(x) == 3
    if flat and not heads and partial:
        raise CannotExpandError("rotary_embedding_dim without num_heads")
    turned = _channels(w, cosines)
    if flat:
        heads_first = w.reshape(x, 0, 0, heads or -1, -1 if heads else turned)
    else:
        heads_first = w.add("Transpose", [x], perm=[0, 2, 1, 3])
    if w.rank(ids) == 1:
        ids = w.unsqueeze(w.add("Add", [ids, count_below(w, w.size(heads_first, 1))]), 0)
    found = rotate(w, heads_first, ids, cosines, sines, interleaved=bool(w.view.integer("interleaved", 0)))
    w.finish(w.reshape(found, 0, 0, -1) if flat else w.add("Transpose", [found], perm=[0, 2, 1, 3]))


def rotate(w: ExpansionWriter, x: str, ids: str, cosines: str, sines: str, *, interleaved: bool) -> str:
    """Adds nodes that turn x [B, S, heads, d] by the rows `ids` [B, S] of the tables [positions, r / 2], r <= d."""
    turned = _channels(w, cosines)
    channel = np.arange(turned)
    pair, second = (channel // 2, channel % 2) if interleaved else (channel % (turned // 2), channel // (turned // 2))
    partner = channel ^ 1 if interleaved else (channel + turned // 2) % turned
    # Each channel times the cosine, and its partner times the sine, which is negative for the first one of a pair.
    c, s = (w.add("Gather", [w.add("Gather", [t, ids], axis=0), w.constant(pair)], axis=2) for t in (cosines, sines))
    sign = w.constant(np.where(second, 1, -1).astype(np.float32))
    c, s = (w.unsqueeze(t, 2) for t in (c, w.add("Mul", [s, sign])))
    own, other = w.slice(x, 0, turned, 3), w.add("Gather", [x, w.constant(partner)], axis=3)
    found = w.add("Add", [w.add("Mul", [own, c]), w.add("Mul", [other, s])])
    return w.add("Concat", [found, w.slice(x, turned, _END, 3)], axis=3)


def _channels(w: ExpansionWriter, table: str) -> int:
    """Returns the number of channels that a table of cosines [positions, r / 2] turns."""
    dims = w.weights[table].dims if table in w.weights else w.known.dims.get(table, ())
    if len(dims) != 2 or not isinstance(dims[1], int):
        raise CannotExpandError("its table of cosines must have a known size")
    return 2 * int(dims[1])


def count_below(w: ExpansionWriter, count: str) -> str:
    """Adds the integers 0, 1, ... below a scalar."""
    return w.add("Range", [w.constant(np.int64(0)), count, w.constant(np.int64(1))])


_CACHE_BITS = 8
_REFUSED = {14: "q_norm_weight", 15: "k_norm_weight", 16: "query_seqlens"}


def group_query_attention(w: ExpansionWriter) -> None:
    """Attention in which several query heads share a head of keys and values, with a cache that grows.

    The position of the first new token is the length of the past: the sequences have no padding.
    """
    view = w.view
    w.refuse_inputs(_REFUSED)
    w.refuse_outputs(3)
    heads, groups = view.integer("num_heads", 0), view.integer("kv_num_heads", 0)
    if heads < 1 or groups < 1 or heads % groups:
        raise CannotExpandError(f"num_heads={heads}, kv_num_heads={groups}")
    window = view.integer("local_window_size", -1)
    if view.integer("qk_output", 0):
        raise CannotExpandError("qk_output: onnxruntime cannot judge it on the CPU")
    if view.integer("sliding_window_cache", 0) and window < 1:
        raise CannotExpandError("sliding_window_cache without local_window_size")
    scales = _read_cache_scales(w, heads, groups)
    q, k, v = _heads(w, heads, groups)
    past = (view.input(3), view.input(4))
    start = w.size(past[0], 2) if past[0] else w.constant(np.int64(0))
    rows = w.add("Add", [start, count_below(w, w.size(q, 1))])
    if view.integer("do_rotary", 0):
        ids = view.input(9) or w.unsqueeze(rows, 0)
        tables, pairs = view.inputs[7:9], bool(view.integer("rotary_interleaved", 0))
        q, k = (rotate(w, x, ids, *tables, interleaved=pairs) for x in (q, k))
    q, k, v = (w.add("Transpose", [x], perm=[0, 2, 1, 3]) for x in (q, k, v))
    if scales:
        k, v = (_quantise(w, x, scale.of_groups) for x, scale in zip((k, v), scales, strict=True))
    if past[0] and past[1]:
        k, v = w.add("Concat", [past[0], k], axis=2), w.add("Concat", [past[1], v], axis=2)
    kept = k, v
    bias = None
    if view.integer("causal", 1):
        bias = hide_later_keys(w, rows, w.size(k, 2), window)
    if scales:
        # One factor for each channel: queries and means are scaled, so that no step scales a whole cache.
        q = w.add("Mul", [q, w.constant(scales[0].of_heads)])
        k, v = (w.add("Cast", [x], to=TensorProto.FLOAT) for x in (k, v))
    factor = w.constant(scales[1].of_heads) if scales else None
    w.finish(attend(w, (q, k, v), (view.input(10), bias), heads, groups, factor))
    w.finish(kept[0], 1)
    w.finish(kept[1], 2)


@dataclass(frozen=True, slots=True, eq=False)
class _CacheScale:
    """Scales of the integers of a cache: [] or [1, groups, 1, d], and [1, heads, 1, d] for the heads of queries."""

    of_groups: npt.NDArray[np.float32]
    of_heads: npt.NDArray[np.float32]


def _read_cache_scales(w: ExpansionWriter, heads: int, groups: int) -> tuple[_CacheScale, ...]:
    """Returns the scales of keys and values if the cache holds integers of 8 bits; nothing for a cache of floats."""
    kinds = {w.view.string(name, "NONE") for name in ("k_quant_type", "v_quant_type")}
    if kinds == {"NONE"}:
        return ()
    width = w.view.integer("kv_cache_bit_width", 8)
    if len(kinds) != 1 or kinds - {"PER_TENSOR", "PER_CHANNEL"} or width != _CACHE_BITS:
        raise CannotExpandError(f"a cache of {width} bits, with scales {' and '.join(sorted(kinds))}")
    found: list[_CacheScale] = []
    for position, name in ((12, "k_scale"), (13, "v_scale")):
        scale = w.weight(position, name).astype(np.float32)
        if kinds == {"PER_TENSOR"}:
            scale = scale.reshape(())
            each = np.full((1, heads, 1, 1), scale, np.float32)
        else:
            scale = scale.reshape(1, groups, 1, -1)
            each = scale.repeat(heads // groups, axis=1)
        found.append(_CacheScale(scale, each))
    return tuple(found)


def _quantise(w: ExpansionWriter, x: str, scale: npt.NDArray[np.float32]) -> str:
    """Adds the integers of x [B, groups, S, d], as onnxruntime rounds them: it multiplies by the inverse of a scale."""
    scaled = w.add("Mul", [x, w.constant(np.float32(1) / scale)])
    bounded = w.add("Clip", [scaled, w.number(-128), w.number(127)])
    return w.add("Cast", [w.add("Round", [bounded])], to=TensorProto.INT8)


def _heads(w: ExpansionWriter, heads: int, groups: int) -> list[str]:
    """Returns queries, keys and values, [B, S, heads, d]; the query may hold all three."""
    query, key, value = (w.view.input(k) for k in range(3))
    assert query is not None, "an operator has its first input"
    if key and value:
        return [w.reshape(x, 0, 0, n, -1) for x, n in ((query, heads), (key, groups), (value, groups))]
    return w.split(w.reshape(query, 0, 0, heads + 2 * groups, -1), 2, [heads, groups, groups])


def hide_later_keys(w: ExpansionWriter, rows: str, keys: str, window: int = 0) -> str:
    """Adds the mask [S, keys]: 0 where row i sees key j, else `MASKED`. `rows`: the key of each row's own token."""
    own, key = w.unsqueeze(rows, 1), w.unsqueeze(count_below(w, keys), 0)
    hidden = w.add("Greater", [key, own])
    if window > 0:
        early = w.add("Less", [key, w.add("Sub", [own, w.constant(np.int64(window - 1))])])
        hidden = w.add("Or", [hidden, early])
    return w.add("Mul", [w.add("Cast", [hidden], to=TensorProto.FLOAT), w.number(MASKED)])


def attend(
    w: ExpansionWriter,
    operands: tuple[str, str, str],
    terms: Sequence[str | None],
    heads: int,
    groups: int,
    factor: str | None = None,
) -> str:
    """Adds softmax(scale q k^T, capped, + terms) v, [B, S, heads * d], for q [B, heads, S, d].

    The heads of a group are rows of one product. `factor`: of the means of values, [1, heads, 1, d or 1].
    """
    q, k, v = operands
    grouped = _in_groups(w, scale_queries(w, q), heads, groups)
    scores = w.add("MatMul", [grouped, w.add("Transpose", [k], perm=[0, 1, 3, 2])])
    scores = _per_head(w, scores, q, heads, groups)
    if cap := w.view.number("softcap", 0):
        scores = w.add("Mul", [w.add("Tanh", [w.add("Div", [scores, w.number(cap)])]), w.number(cap)])
    for term in terms:
        scores = w.add("Add", [scores, term]) if term else scores
    share = _softmax(w, scores, heads)
    mixed = _per_head(w, w.add("MatMul", [_in_groups(w, share, heads, groups), v]), q, heads, groups)
    mixed = w.add("Mul", [mixed, factor]) if factor else mixed
    return w.reshape(w.add("Transpose", [mixed], perm=[0, 2, 1, 3]), 0, 0, -1)


def scale_queries(w: ExpansionWriter, q: str) -> str:
    """Multiplies queries [B, heads, S, d] by the attribute `scale`, which is 1 / sqrt(d) by default or if it is 0."""
    if scale := w.view.number("scale", 0):
        return w.add("Mul", [q, w.number(scale)])
    root = w.add("Sqrt", [w.add("Cast", [w.size(q, 3)], to=TensorProto.FLOAT)])
    return w.add("Mul", [q, w.add("Reciprocal", [root])])


def _in_groups(w: ExpansionWriter, x: str, heads: int, groups: int) -> str:
    """Adds a Reshape of x [B, heads, S, n] to [B, groups, heads / groups * S, n], if heads form groups."""
    if heads == groups:
        return x
    last = w.unsqueeze(w.size(x, 3), 0)
    return w.add("Reshape", [x, w.add("Concat", [w.integers(0, groups, -1), last], axis=0)])


def _per_head(w: ExpansionWriter, x: str, q: str, heads: int, groups: int) -> str:
    """Adds a Reshape of x [B, groups, heads / groups * S, n] to [B, heads, S, n]. q: [B, heads, S, d]."""
    if heads == groups:
        return x
    size, last = (w.unsqueeze(w.size(t, a), 0) for t, a in ((q, 2), (x, 3)))
    return w.add("Reshape", [x, w.add("Concat", [w.integers(0, heads), size, last], axis=0)])


def _softmax(w: ExpansionWriter, scores: str, heads: int) -> str:
    """Adds a softmax over the keys; a sink is one more key for each head, before all others, without a value."""
    sink = w.view.input(11)
    if sink:
        extra = w.reshape(sink, 1, heads, 1, 1)
    elif w.view.integer("smooth_softmax", 0) == 1:
        extra = w.constant(np.zeros((1, heads, 1, 1), np.float32))
    else:
        return w.add("Softmax", [scores], axis=-1)
    shape = w.add("Concat", [w.integers(1, heads), w.unsqueeze(w.size(scores, 2), 0), w.integers(1)], axis=0)
    whole = w.add("Concat", [w.add("Expand", [extra, shape]), scores], axis=3)
    return w.slice(w.add("Softmax", [whole], axis=-1), 1, _END, 3)
