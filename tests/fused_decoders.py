"""Decoders whose attention is one operator, as onnxruntime's optimisers, torch and ONNX 23 and later write them."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from tests.decoder_models import MICROSOFT, GraphBuilder

Form = Literal["multi head", "packed", "masked", "standard", "causal", "nan"]


def fused_decoder(
    form: Form, *, layers: int = 2, heads: int = 2, size: int = 8, vocabulary: int = 12, positions: int = 32
) -> ModelProto:
    """A decoder of one attention a layer.

    `form`: `multi head`, MultiHeadAttention with a bias and causal; `packed`, com.microsoft.Attention with one tensor
    of keys and values; `masked`, the same with a mask; `standard`, Attention-23 with a mask; `causal`, the same without
    one; `nan`, as torch writes it: MatMul of scaled queries and keys, and Softmax, whose NaN become 0.
    """
    b, width = GraphBuilder(0), heads * size
    embedded = [
        b.add("Cast", ["input_ids"], "ids", to=TensorProto.INT32),
        "",
        b.weights("words", vocabulary, width),
        b.weights("places", positions, width),
        "",
    ]
    norm = [b.constant("gain", np.ones(width, np.float32)), b.weights("shift", width)]
    b.add(
        "EmbedLayerNormalization",
        [*embedded, *norm, "", b.add("Cast", ["position_ids"], "where", to=TensorProto.INT32)],
        ["normal", "", "x"],
        domain=MICROSOFT,
    )
    b.add("Cast", ["attention_mask"], "seen", to=TensorProto.INT32)
    x, y = "x", "normal"
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for n in range(layers):
        past, present = _states(n, form, heads, size)
        before |= past
        after |= present
        mixed = _attention(b, y, n, form, (heads, size), [*past], [*present])
        added = b.add("MatMul", [mixed, b.weights(f"out.{n}", width, width)], f"added.{n}")
        outputs = [f"norm.{n}", "", "", f"sum.{n}"]
        b.add("SkipLayerNormalization", [x, added, *norm], outputs, domain=MICROSOFT)
        wide = b.add("MatMul", [outputs[0], b.weights(f"up.{n}", width, 2 * width)], f"wide.{n}")
        bent = b.add("FastGelu", [wide, b.weights(f"up.bias.{n}", 2 * width)], f"bent.{n}", domain=MICROSOFT)
        narrow = b.add("MatMul", [bent, b.weights(f"down.{n}", 2 * width, width)], f"narrow.{n}")
        outputs = [f"next.{n}", "", "", f"state.{n}"]
        b.add("SkipLayerNormalization", [f"sum.{n}", narrow, *norm], outputs, domain=MICROSOFT)
        y, x = outputs[0], outputs[3]
    b.add("MatMul", [y, b.weights("head", width, vocabulary)], "logits")
    inputs = {"input_ids": ["batch", "sequence"], "position_ids": ["batch", "sequence"]}
    inputs = {**inputs, "attention_mask": ["batch", "total"], **before}
    return b.model(inputs, {"logits": ["batch", "sequence", vocabulary], **after}, version=23)


def merged_decoder(decoder: ModelProto) -> ModelProto:
    """A decoder in a branch, beside one that ignores its caches, as optimum merges both to one file."""
    merged = ModelProto()
    merged.CopyFrom(decoder)
    branches: list[GraphProto] = []
    for cached in (True, False):
        nodes = [helper.make_node("Identity", [v.name], [f"{v.name}.kept"]) for v in decoder.graph.output]
        inner = [NodeProto.FromString(node.SerializeToString()) for node in decoder.graph.node]
        if not cached:
            inner = [node for node in inner if node.op_type != "Concat" or "past" not in node.input[0]]
            copies = {n.output[0]: n.input[1] for n in decoder.graph.node if n.output[0] not in _results(inner)}
            inner += [helper.make_node("Identity", [new], [name]) for name, new in copies.items()]
        values = [
            helper.make_tensor_value_info(f"{v.name}.kept", TensorProto.FLOAT, None) for v in decoder.graph.output
        ]
        branches.append(helper.make_graph(_in_order(inner, nodes), f"cached.{cached}", [], values))
    outputs = [v.name for v in decoder.graph.output]
    node = helper.make_node("If", ["use_cache_branch"], outputs, name="branch")
    node.attribute.extend(
        helper.make_attribute(f"{name}_branch", graph) for name, graph in zip(("then", "else"), branches, strict=True)
    )
    del merged.graph.node[:]
    merged.graph.node.append(node)
    merged.graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    return merged


def _results(nodes: Sequence[NodeProto]) -> set[str]:
    return {name for node in nodes for name in node.output}


def _in_order(inner: Sequence[NodeProto], last: Sequence[NodeProto]) -> list[NodeProto]:
    """Returns nodes after all that they read."""
    left, found, made = list(inner), list[NodeProto](), _results(inner)
    while left:
        ready = [n for n in left if not (set(n.input) & made) - _results(found)]
        found += ready
        left = [n for n in left if not any(n is r for r in ready)]
    return [*found, *last]


def _states(n: int, form: Form, heads: int, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    if form in ("packed", "masked"):
        return (
            {f"past_{n}": [2, "batch", heads, "past", size]},
            {f"present_{n}": [2, "batch", heads, "total", size]},
        )
    kinds = ("key", "value")
    past = {f"past_key_values.{n}.{kind}": ["batch", heads, "past", size] for kind in kinds}
    return past, {f"present.{n}.{kind}": ["batch", heads, "total", size] for kind in kinds}


def _attention(
    b: GraphBuilder, y: str, n: int, form: Form, heads_of: tuple[int, int], past: list[str], present: list[str]
) -> str:
    (heads, size), made = heads_of, f"attention.{n}"
    width = heads * size
    weights, bias = b.weights(f"qkv.{n}", width, 3 * width), b.weights(f"bias.{n}", 3 * width)
    own: dict[str, Any] = {"num_heads": heads, "domain": MICROSOFT}
    if form in ("packed", "masked"):
        given = [y, weights, bias, "seen" if form == "masked" else "", *past]
        return b.add("Attention", given, [made, *present], unidirectional=1, **own)
    packed = b.add("MatMul", [y, weights], f"packed.{n}")
    sizes = b.constant("sizes", np.array([width] * 3))
    parts = [f"{kind}.{n}" for kind in ("query", "key", "value")]
    b.add("Split", [packed, sizes], parts, axis=2)
    if form == "multi head":
        given = [*parts, bias, "", "", *past]
        return b.add("MultiHeadAttention", given, [made, *present], unidirectional=1, **own)
    if form == "nan":
        return _with_nan(b, parts, n, heads_of, past, present)
    mask = ""
    if form == "standard":
        mask = b.add("Cast", ["attention_mask"], f"seen.{n}", to=TensorProto.BOOL)
        mask = b.add("Unsqueeze", [mask, b.constant("axes", np.array([1, 2]))], f"seen.4d.{n}")
    more = {"is_causal": int(form == "causal"), "q_num_heads": heads, "kv_num_heads": heads}
    return b.add("Attention", [*parts, mask, *past], [made, *present], **more)


def _with_nan(
    b: GraphBuilder, parts: list[str], n: int, heads_of: tuple[int, int], past: list[str], present: list[str]
) -> str:
    """Attention as torch exports it: a softmax in which a row that sees nothing is NaN, and becomes 0."""
    heads, size = heads_of
    shape = b.constant("by.head", np.array([0, 0, heads, size]))
    q, k, v = (
        b.add("Transpose", [b.add("Reshape", [p, shape], f"{p}.split")], f"{p}.heads", perm=[0, 2, 1, 3]) for p in parts
    )
    k, v = (b.add("Concat", [a, c], name, axis=2) for a, c, name in zip(past, (k, v), present, strict=True))
    factor = b.constant("factor", np.float32(size**-0.25))
    turned = b.add("Transpose", [k], f"turned.{n}", perm=[0, 1, 3, 2])
    both = [b.add("Mul", [x, factor], f"{x}.scaled") for x in (q, turned)]
    scores = b.add("MatMul", both, f"scores.{n}")
    b.add("Equal", ["attention_mask", b.constant("zero", np.array(0))], f"hidden.{n}")
    hidden = b.add("Unsqueeze", [f"hidden.{n}", b.constant("axes", np.array([1, 2]))], f"hidden.4d.{n}")
    low = b.constant("low", np.float32(-np.inf))
    shares = b.add("Softmax", [b.add("Where", [hidden, low, scores], f"kept.{n}")], f"shares.{n}")
    none = b.add("Constant", [], f"none.{n}", value=helper.make_tensor("none", TensorProto.FLOAT, [], [0.0]))
    whole = b.add("Where", [b.add("IsNaN", [shares], f"nan.{n}"), none, shares], f"whole.{n}")
    mixed = b.add("Transpose", [b.add("MatMul", [whole, v], f"mixed.{n}")], f"by.token.{n}", perm=[0, 2, 1, 3])
    return b.add("Reshape", [mixed, b.constant("flat", np.array([0, 0, heads * size]))], f"joined.{n}")


def encoder_decoder(
    returned: Literal["nothing", "empty", "same"] = "nothing",
    *,
    masked: bool = False,
    heads: int = 2,
    size: int = 8,
    vocabulary: int = 12,
) -> ModelProto:
    """A decoder that also attends to an encoder's keys and values, `past_key_values.0.encoder.key`, as optimum has it.

    `returned`: what it returns for these: nothing, constants of no element as a merged decoder, or themselves.
    `masked`: with an input that tells the tokens of the encoder from padding.
    """
    b, width, kinds = GraphBuilder(0), heads * size, ("key", "value")
    shape, flat = b.constant("by.head", np.array([0, 0, heads, size])), b.constant("flat", np.array([0, 0, width]))
    given = [f"past_key_values.0.encoder.{k}" for k in kinds]

    def by_head(x: str, name: str) -> str:
        whole = b.add("MatMul", [x, b.weights(f"w.{name}", width, width)], f"{name}.flat")
        return b.add("Transpose", [b.add("Reshape", [whole, shape], f"{name}.split")], name, perm=[0, 2, 1, 3])

    def attend(x: str, name: str, keys: str, values: str) -> str:
        turned = b.add("Transpose", [keys], f"{name}.turned", perm=[0, 1, 3, 2])
        scores = b.add("MatMul", [x, turned], f"{name}.scores")
        if masked and keys in given:
            numbers = b.add("Cast", ["encoder_attention_mask"], "seen", to=TensorProto.FLOAT)
            padding = b.add("Sub", [numbers, b.constant("one", np.float32(1))], "padding")
            mask = b.add("Mul", [padding, b.constant("huge", np.finfo(np.float32).max)], "mask")
            scores = b.add("Add", [scores, b.add("Unsqueeze", [mask, b.constant("axes", np.array([1, 2]))], "m")], "s")
        shares = b.add("Softmax", [scores], f"{name}.shares")
        mixed = b.add(
            "Transpose", [b.add("MatMul", [shares, values], f"{name}.mixed")], f"{name}.by", perm=[0, 2, 1, 3]
        )
        joined = b.add("Reshape", [mixed, flat], f"{name}.joined")
        return b.add("MatMul", [joined, b.weights(f"out.{name}", width, width)], f"{name}.out")

    x = b.add("Gather", [b.weights("words", vocabulary, width), "input_ids"], "x")
    query, *new = (by_head(x, name) for name in ("query", *kinds))
    pairs = zip(kinds, new, strict=True)
    own = [b.add("Concat", [f"past_key_values.0.decoder.{k}", a], f"present.0.decoder.{k}", axis=2) for k, a in pairs]
    x = b.add("Add", [x, attend(query, "own", *own)], "x.own")
    x = b.add("Add", [x, attend(by_head(x, "cross"), "of.encoder", *given)], "x.both")
    b.add("MatMul", [x, b.weights("head", width, vocabulary)], "logits")
    inputs: dict[str, Any] = {"input_ids": ["batch", "sequence"]}
    inputs |= {f"past_key_values.0.decoder.{k}": ["batch", heads, "past", size] for k in kinds}
    inputs |= {name: ["batch", heads, "encoder", size] for name in given}
    inputs |= {"encoder_attention_mask": ["batch", "encoder"]} if masked else {}
    outputs: dict[str, Any] = {"logits": ["batch", "sequence", vocabulary]}
    outputs |= {f"present.0.decoder.{k}": ["batch", heads, "total", size] for k in kinds}
    for k in kinds if returned != "nothing" else ():
        name, none = f"present.0.encoder.{k}", helper.make_tensor("none", TensorProto.FLOAT, [0, heads, 1, size], [])
        if returned == "same":
            b.add("Identity", [f"past_key_values.0.encoder.{k}"], name)
        else:
            b.add("Constant", [], name, value=none)
        outputs[name] = [0 if returned == "empty" else "batch", heads, 1 if returned == "empty" else "encoder", size]
    return b.model(inputs, outputs)


Selection = Literal["Gather", "Split", "Slice", "joined"]


def stacked_decoder(
    how: Selection, *, layers: int = 2, heads: int = 2, size: int = 8, vocabulary: int = 12
) -> ModelProto:
    """A decoder whose keys and values are one tensor in each layer, `past_0` [2, batch, heads, rows, d].

    `how`: the node that selects keys and values, to which their rows are appended, before both are stacked. `joined`:
    the rows are stacked first, and appended to both at once.
    """
    b, width = GraphBuilder(0), heads * size
    shape, first = b.constant("by.head", np.array([0, 0, heads, size])), b.constant("0", np.array([0]))
    one, two, number = b.constant("1", np.array([1])), b.constant("2", np.array([2])), b.constant("one", np.array(1))
    zero, order = b.constant("zero", np.array(0)), [0, 2, 1, 3]
    x = b.add("Gather", [b.weights("words", vocabulary, width), "input_ids"], "x")
    for n in range(layers):
        names = [f"{kind}.{n}" for kind in ("query", "key", "value")]
        flat = [b.add("MatMul", [x, b.weights(f"w.{name}", width, width)], f"{name}.flat") for name in names]
        split = [b.add("Reshape", [f, shape], f"{f}.4d") for f in flat]
        q, k, v = (b.add("Transpose", [s], name, perm=order) for s, name in zip(split, names, strict=True))
        past, present = f"past_{n}", f"present_{n}"
        if how == "joined":
            rows = [b.add("Unsqueeze", [a, first], f"{a}.5d") for a in (k, v)]
            both = b.add("Concat", [past, b.add("Concat", rows, f"rows.{n}", axis=0)], present, axis=3)
            k, v = (b.add("Gather", [both, at], f"{a}.all", axis=0) for a, at in ((k, zero), (v, number)))
        else:
            parts = [f"past.{n}.{a}" for a in ("key", "value")]
            if how == "Gather":
                for part, at in zip(parts, (zero, number), strict=True):
                    b.add("Gather", [past, at], part, axis=0)
            else:
                wide = [f"{part}.5d" for part in parts]
                if how == "Split":
                    b.add("Split", [past, b.constant("ones", np.array([1, 1]))], wide, axis=0)
                else:
                    ends = zip(wide, (first, one), (one, two), strict=True)
                    wide = [b.add("Slice", [past, start, end, first], name) for name, start, end in ends]
                parts = [b.add("Squeeze", [w, first], part) for w, part in zip(wide, parts, strict=True)]
            k, v = (b.add("Concat", [p, a], f"{a}.all", axis=2) for p, a in zip(parts, (k, v), strict=True))
            b.add("Concat", [b.add("Unsqueeze", [a, first], f"{a}.5d") for a in (k, v)], present, axis=0)
        scores = b.add("MatMul", [q, b.add("Transpose", [k], f"turned.{n}", perm=[0, 1, 3, 2])], f"scores.{n}")
        mixed = b.add("MatMul", [b.add("Softmax", [scores], f"shares.{n}"), v], f"mixed.{n}")
        by_token = b.add("Transpose", [mixed], f"by.token.{n}", perm=order)
        joined = b.add("Reshape", [by_token, b.constant("flat", np.array([0, 0, width]))], f"joined.{n}")
        x = b.add("Add", [x, b.add("MatMul", [joined, b.weights(f"out.{n}", width, width)], f"out.{n}.y")], f"sum.{n}")
    b.add("MatMul", [x, b.weights("head", width, vocabulary)], "logits")
    caches = {f"past_{n}": [2, "batch", heads, "past", size] for n in range(layers)}
    after = {f"present_{n}": [2, "batch", heads, "total", size] for n in range(layers)}
    return b.model(
        {"input_ids": ["batch", "sequence"], **caches}, {"logits": ["batch", "sequence", vocabulary], **after}
    )


def static_cache_decoder(
    form: Literal["ScatterND", "ScatterElements", "Where", "TensorScatter"],
    *,
    heads: int = 2,
    size: int = 8,
    rows: int = 6,
    vocabulary: int = 12,
) -> ModelProto:
    """A decoder with a cache of fixed size, as torch exports it: `form` writes the row `cache_position`."""
    b, width = GraphBuilder(0), heads * size
    x = b.add("Gather", [b.weights("words", vocabulary, width), "input_ids"], "x")
    shape, last = b.constant("by.head", np.array([0, 0, heads, size])), b.constant("last", np.array([-1]))
    by_head: dict[str, str] = {}
    for kind in ("query", "key", "value"):
        flat = b.add("MatMul", [x, b.weights(f"w.{kind}", width, width)], f"{kind}.flat")
        by_head[kind] = b.add("Transpose", [b.add("Reshape", [flat, shape], f"{kind}.split")], kind, perm=[0, 2, 1, 3])
    for kind in ("key", "value"):
        past, present, new = f"past_key_values.0.{kind}", f"present.0.{kind}", by_head[kind]
        if form == "TensorScatter":
            b.add("TensorScatter", [past, new, "cache_position"], present, axis=2)
        elif form == "ScatterND":
            rows_first = [b.add("Transpose", [a], f"{a}.rows", perm=[2, 0, 1, 3]) for a in (past, new)]
            at = b.add("Unsqueeze", ["cache_position", last], f"{kind}.at")
            b.add("ScatterND", [rows_first[0], at, rows_first[1]], f"{kind}.written")
            b.add("Transpose", [f"{kind}.written"], present, perm=[1, 2, 0, 3])
        elif form == "ScatterElements":
            at = b.add("Expand", ["cache_position", b.constant("new", np.array([1, heads, 1, size]))], f"{kind}.at")
            b.add("ScatterElements", [past, at, new], present, axis=2)
        else:
            here = b.add("Equal", [b.constant("rows", np.arange(rows).reshape(-1, 1)), "cache_position"], f"{kind}.at")
            b.add("Where", [here, new, past], present)
    seen = b.add("LessOrEqual", [b.constant("row", np.arange(rows).reshape(1, -1)), "cache_position"], "seen")
    query, scale = by_head["query"], b.constant("scale", np.float32(size**-0.5))
    scores = b.add("MatMul", [query, b.add("Transpose", ["present.0.key"], "turned", perm=[0, 1, 3, 2])], "scores")
    low = b.constant("low", np.float32(-1e9))
    kept = b.add("Where", [seen, b.add("Mul", [scores, scale], "scaled"), low], "kept")
    mixed = b.add("MatMul", [b.add("Softmax", [kept], "shares"), "present.0.value"], "mixed")
    by_token = b.add("Transpose", [mixed], "by.token", perm=[0, 2, 1, 3])
    joined = b.add("Reshape", [by_token, b.constant("flat", np.array([0, 0, width]))], "joined")
    b.add("MatMul", [b.add("Add", [x, joined], "sum"), b.weights("head", width, vocabulary)], "logits")
    cache = {f"past_key_values.0.{kind}": [1, heads, rows, size] for kind in ("key", "value")}
    after = {name.replace("past_key_values", "present"): dims for name, dims in cache.items()}
    inputs = {"input_ids": [1, 1], "cache_position": [1], **cache}
    return b.model(inputs, {"logits": [1, 1, vocabulary], **after}, version=24)
