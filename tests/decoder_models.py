"""Decoders whose caches grow, as exporters write them, and onnxruntime stepping through them."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.tiny_models import Array
from validator.model.ort_session import create_session
from validator.model.types import number_type

MICROSOFT = "com.microsoft"
_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64
OPEN_SIZES = MappingProxyType({"past": 0, "kv_cache_dim": 16})
"""Sizes of open axes of caches before the first step: rows, and channels of a head."""


class GraphBuilder:
    """Collects nodes and constants; weights are random, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}

    def add(self, op_type: str, inputs: Sequence[str], output: str | Sequence[str], **more: Any) -> str:
        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name=outputs[0], **more))
        return outputs[0]

    def constant(self, name: str, values: Any) -> str:
        self.constants[name] = np.asarray(values)
        return name

    def weights(self, name: str, *size: int) -> str:
        return self.constant(name, (self.rng.standard_normal(size) / np.sqrt(size[0])).astype(np.float32))

    def model(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *, version: int = 18) -> ModelProto:
        """Returns the model of all nodes. `version`: operator set of ONNX."""

        def value(name: str, shape: Sequence[int | str]) -> Any:
            whole = name in ("input_ids", "attention_mask", "position_ids", "cache_position", "encoder_attention_mask")
            return helper.make_tensor_value_info(name, _INT64 if whole else _FLOAT, shape)

        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [value(*each) for each in inputs.items()],
            [value(*each) for each in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", version), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9 if version < 22 else 11)


def _cache(layers: int, heads: int, size: int, form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    before = {
        f"past_key_values.{n}.{kind}": ["batch", heads, "past", size]
        for n in range(layers)
        for kind in ("key", "value")
    }
    after = {name.replace("past_key_values", "present"): [*dims[:2], form, size] for name, dims in before.items()}
    return before, after


def plain_decoder(
    *,
    layers: int = 2,
    heads: int = 2,
    size: int = 8,
    vocabulary: int = 12,
    positions: int = 32,
    seed: int = 0,
    groups: int | None = None,
    rotated: bool = False,
) -> ModelProto:
    """A decoder in standard operators, as optimum exports GPT-2: position_ids, and a mask that is added to scores.

    With fewer `groups` than heads, keys and values are repeated for the heads of a group, as optimum exports Llama; and
    so are queries and keys `rotated`.
    """
    groups = heads if groups is None else groups
    b, width = GraphBuilder(seed), heads * size
    b.add("Gather", [b.weights("wte", vocabulary, width), "input_ids"], "tokens")
    x = b.add("Add", ["tokens", b.add("Gather", [b.weights("wpe", positions, width), "position_ids"], "places")], "x")
    b.add("Cast", ["attention_mask"], "seen", to=_FLOAT)
    b.add("Unsqueeze", [b.add("Sub", ["seen", b.constant("one", np.float32(1))], "unseen"), "axes"], "unseen.4d")
    b.constant("axes", np.array([1, 2]))
    b.add("Mul", ["unseen.4d", b.constant("huge", np.float32(1e9))], "mask")
    if rotated:
        _add_angles(b, size)
    for n in range(layers):
        name = f"layer.{n}"
        counts = {"query": heads, "key": groups, "value": groups}
        heads_of = {kind: _split_heads(b, x, f"{name}.{kind}", n, size, width) for kind, n in counts.items()}
        if rotated:
            heads_of |= {kind: _rotate(b, heads_of[kind], size) for kind in ("query", "key")}
        for kind in ("key", "value"):
            b.add("Concat", [f"past_key_values.{n}.{kind}", heads_of[kind]], f"present.{n}.{kind}", axis=2)
        keys, values = (_repeat(b, f"present.{n}.{kind}", groups, heads, size) for kind in ("key", "value"))
        b.add("Transpose", [keys], f"{name}.keys", perm=[0, 1, 3, 2])
        b.add("MatMul", [heads_of["query"], f"{name}.keys"], f"{name}.scores")
        b.add("Add", [f"{name}.scores", "mask"], f"{name}.masked")
        b.add("Softmax", [f"{name}.masked"], f"{name}.shares", axis=-1)
        b.add("MatMul", [f"{name}.shares", values], f"{name}.mixed")
        b.add("Transpose", [f"{name}.mixed"], f"{name}.by_token", perm=[0, 2, 1, 3])
        b.add("Reshape", [f"{name}.by_token", b.constant("flat", np.array([0, 0, width]))], f"{name}.joined")
        b.add("MatMul", [f"{name}.joined", b.weights(f"{name}.out", width, width)], f"{name}.added")
        x = b.add("Add", [x, f"{name}.added"], f"{name}.sum")
        x = b.add("Tanh", [x], f"{name}.y")
    b.add("MatMul", [x, b.weights("head", width, vocabulary)], "logits")
    before, after = _cache(layers, groups, size, "past + sequence")
    inputs = {"input_ids": ["batch", "sequence"], **before, "attention_mask": ["batch", "past + sequence"]}
    return b.model(
        {**inputs, "position_ids": ["batch", "sequence"]}, {"logits": ["batch", "sequence", vocabulary], **after}
    )


def _add_angles(b: GraphBuilder, size: int) -> None:
    """Adds the cosines and sines of a token's position, for all heads and layers."""
    waves = b.constant("waves", (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32))
    b.add(
        "Unsqueeze", [b.add("Cast", ["position_ids"], "numbers", to=_FLOAT), b.constant("inner", np.array([1, 3]))], "n"
    )
    angles = b.add("Mul", ["n", waves], "angles")
    b.add("Concat", [angles, angles], "both", axis=-1)
    b.add("Cos", ["both"], "cosines")
    b.add("Sin", ["both"], "sines")


def _rotate(b: GraphBuilder, x: str, size: int) -> str:
    """Rotates pairs of channels that are half a head apart."""
    b.constant("halves", np.array([size // 2, size // 2]))
    b.add("Split", [x, "halves"], [f"{x}.first", f"{x}.second"], axis=-1)
    b.add("Concat", [b.add("Neg", [f"{x}.second"], f"{x}.negated"), f"{x}.first"], f"{x}.half", axis=-1)
    parts = [b.add("Mul", [x, "cosines"], f"{x}.kept"), b.add("Mul", [f"{x}.half", "sines"], f"{x}.turned")]
    return b.add("Add", parts, f"{x}.rotated")


def _repeat(b: GraphBuilder, name: str, groups: int, heads: int, size: int) -> str:
    """Repeats each head of a cache for all heads of its group."""
    if groups == heads:
        return name
    b.constant("between", np.array([2]))
    b.constant("times", np.array([1, 1, heads // groups, 1, 1]))
    b.add("Expand", [b.add("Unsqueeze", [name, "between"], f"{name}.apart"), "times"], f"{name}.each")
    return b.add("Reshape", [f"{name}.each", b.constant("heads", np.array([1, heads, -1, size]))], f"{name}.repeated")


def _split_heads(b: GraphBuilder, x: str, name: str, heads: int, size: int, width: int) -> str:
    b.add("MatMul", [x, b.weights(f"{name}.weights", width, heads * size)], f"{name}.flat")
    b.add("Reshape", [f"{name}.flat", b.constant(f"split.{heads}", np.array([0, 0, heads, size]))], f"{name}.split")
    return b.add("Transpose", [f"{name}.split"], f"{name}.heads", perm=[0, 2, 1, 3])


def grouped_decoder(
    *,
    layers: int = 2,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    vocabulary: int = 20,
    packed: bool = True,
    seed: int = 0,
    **more: Any,
) -> ModelProto:
    """A decoder as onnxruntime-genai writes Llama: GroupQueryAttention with rotation, root-mean-square norms, gates.

    `packed`: queries, keys and values are one product. `more`: attributes of the attention.
    """
    b, width, wide = GraphBuilder(seed), heads * size, 48
    for name, axis in (("counted", 1), ("second", 1)):
        b.constant(name, np.array([axis]) if name == "counted" else np.array(axis))
    b.add("ReduceSum", ["attention_mask", "counted"], "count", keepdims=0)
    b.add(
        "Cast", [b.add("Sub", ["count", b.constant("one", np.array([1]))], "last")], "seqlens_k", to=TensorProto.INT32
    )
    b.add("Gather", [b.add("Shape", ["attention_mask"], "mask.shape"), "second"], "total.long")
    b.add("Cast", ["total.long"], "total", to=TensorProto.INT32)
    angles = np.arange(64)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
    b.constant("cos", np.cos(angles).astype(np.float32))
    b.constant("sin", np.sin(angles).astype(np.float32))
    x = b.add("Gather", [b.weights("embedding", vocabulary, width), "input_ids"], "tokens")
    gain = b.constant("gain", b.rng.uniform(0.5, 1.5, width).astype(np.float32))
    y = b.add("SimplifiedLayerNormalization", [x, gain], "norm", axis=-1, epsilon=1e-5, stash_type=1)
    for n in range(layers):
        name, past, present = f"layer.{n}", f"past_key_values.{n}", f"present.{n}"
        weights = (b.rng.standard_normal((width, (heads + 2 * groups) * size)) / np.sqrt(width)).astype(np.float32)
        if packed:
            b.add("MatMul", [y, b.constant(f"{name}.qkv", weights)], f"{name}.packed")
            mixed = [f"{name}.packed", "", ""]
        else:
            parts = zip("qkv", np.split(weights, [width, width + groups * size], axis=1), strict=True)
            mixed = [b.add("MatMul", [y, b.constant(f"{name}.{k}", w)], f"{name}.{k}.flat") for k, w in parts]
        given = [*mixed, f"{past}.key", f"{past}.value", "seqlens_k", "total", "cos", "sin"]
        made = [f"{name}.attention", f"{present}.key", f"{present}.value"]
        sizes = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1, "domain": MICROSOFT}
        b.add("GroupQueryAttention", given, made, **sizes, **more)
        b.add("MatMul", [made[0], b.weights(f"{name}.out", width, width)], f"{name}.added")
        y, x = _skip_norm(b, x, f"{name}.added", gain, f"{name}.norm2")
        b.add("MatMul", [y, b.weights(f"{name}.gate", width, wide)], f"{name}.g")
        b.add("MatMul", [y, b.weights(f"{name}.up", width, wide)], f"{name}.u")
        b.add("QuickGelu", [f"{name}.g"], f"{name}.gated", domain=MICROSOFT, alpha=1.0)
        b.add("Mul", [f"{name}.gated", f"{name}.u"], f"{name}.product")
        b.add("MatMul", [f"{name}.product", b.weights(f"{name}.down", wide, width)], f"{name}.mlp")
        y, x = _skip_norm(b, x, f"{name}.mlp", gain, f"{name}.norm3")
    b.add("MatMul", [y, b.weights("head", width, vocabulary)], "logits")
    before, after = _cache(layers, groups, size, "total")
    inputs = {"input_ids": ["batch", "sequence"], "attention_mask": ["batch", "total"], **before}
    return b.model(inputs, {"logits": ["batch", "sequence", vocabulary], **after})


def with_integer_cache(decoder: ModelProto, kind: str) -> ModelProto:
    """A decoder of GroupQueryAttention whose caches hold int8. `kind`: `PER_TENSOR` or `PER_CHANNEL` scales."""
    made, rng = ModelProto(), np.random.default_rng(1)
    made.CopyFrom(decoder)
    caches = [v for v in (*made.graph.input, *made.graph.output) if v.name.startswith(("past", "present"))]
    _, groups, _, size = (d.dim_value for d in caches[0].type.tensor_type.shape.dim)
    shape = (1,) if kind == "PER_TENSOR" else (1, groups, 1, size)
    for name in ("k_scale", "v_scale"):
        made.graph.initializer.append(numpy_helper.from_array(rng.uniform(0.02, 0.04, shape).astype(np.float32), name))
    for value in caches:
        value.type.tensor_type.elem_type = TensorProto.INT8
    for node in made.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend(["", "", "", "k_scale", "v_scale"])
            kinds = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}
            node.attribute.extend(helper.make_attribute(name, value) for name, value in kinds.items())
    return made


def with_weight_blocks(decoder: ModelProto, bits: int, block: int, level: int = 0) -> ModelProto:
    """A decoder whose products with weights are MatMulNBits, a scale for each block of inputs. `level`: of accuracy."""
    made, weights = ModelProto(), {t.name: numpy_helper.to_array(t) for t in decoder.graph.initializer}
    made.CopyFrom(decoder)
    constants: dict[str, Array] = {}
    for node in made.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            continue
        values, name = weights[node.input[1]], node.output[0]
        (columns, rows), blocks = values.shape, -(-values.shape[0] // block)
        padded = np.zeros((rows, blocks * block), np.float32)
        padded[:, :columns] = values.T
        parts, most = padded.reshape(rows, blocks, block), 2 ** (bits - 1)
        scale = np.maximum(np.abs(parts).max(axis=2) / most, np.finfo(np.float32).tiny)
        codes = (np.clip(np.rint(parts / scale[..., None]), -most, most - 1) + most).astype(np.uint8)
        packed = sum(codes[..., k :: 8 // bits] << (k * bits) for k in range(8 // bits))
        constants |= {f"{name}.packed": np.asarray(packed, np.uint8), f"{name}.scales": scale.astype(np.float32)}
        sizes: dict[str, Any] = {"K": columns, "N": rows, "bits": bits, "block_size": block, "accuracy_level": level}
        given = [node.input[0], f"{name}.packed", f"{name}.scales"]
        node.CopyFrom(helper.make_node("MatMulNBits", given, [name], name, domain=MICROSOFT, **sizes))
    read = {name for node in made.graph.node for name in node.input}
    kept = [t for t in decoder.graph.initializer if t.name in read]
    del made.graph.initializer[:]
    made.graph.initializer.extend([*kept, *(numpy_helper.from_array(a, name) for name, a in constants.items())])
    return made


def with_attention_inputs(decoder: ModelProto, *given: str, **constants: Array) -> ModelProto:
    """A decoder whose GroupQueryAttention have further inputs, from number 9 on; other constants replace its own."""
    made = ModelProto()
    made.CopyFrom(decoder)
    kept = [t for t in made.graph.initializer if t.name not in constants]
    del made.graph.initializer[:]
    made.graph.initializer.extend([*kept, *(numpy_helper.from_array(a, name) for name, a in constants.items())])
    for node in made.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend(given)
    if "position_ids" in given:
        made.graph.input.append(helper.make_tensor_value_info("position_ids", _INT64, ["batch", "sequence"]))
    return made


def _skip_norm(b: GraphBuilder, x: str, added: str, gain: str, name: str) -> tuple[str, str]:
    outputs = [name, "", "", f"{name}.sum"]
    b.add("SkipSimplifiedLayerNormalization", [x, added, gain], outputs, domain=MICROSOFT, epsilon=1e-5)
    return name, f"{name}.sum"


def steps_of_runtime(
    proto: ModelProto, tokens: Sequence[int], given: Mapping[str, Array] = MappingProxyType({})
) -> Iterator[dict[str, Array]]:
    """Yields the outputs of onnxruntime for one token after the other, with its own caches. `given`: in all steps."""
    from pathlib import Path

    session = create_session(proto.SerializeToString(), Path("decoder"))
    held: dict[str, Array] = {
        i.name: np.zeros([n if isinstance(n, int) else OPEN_SIZES.get(n, 1) for n in i.shape], number_type(i.type))
        for i in _past(session)
        if i.name not in given
    }
    names = [o.name for o in session.get_outputs()]
    known = {i.name for i in session.get_inputs()}
    for position, token in enumerate(tokens):
        derived = {"attention_mask": np.ones((1, position + 1), np.int64), "position_ids": np.array([[position]])}
        feed = {"input_ids": np.array([[token]]), **held, **given, **{k: a for k, a in derived.items() if k in known}}
        found = dict(zip(names, session.run(None, feed), strict=True))
        held = {name: found[name.replace("past_key_values", "present").replace("past_", "present_")] for name in held}
        yield found


def _past(session: Any) -> list[Any]:
    return [i for i in session.get_inputs() if i.name.startswith("past")]
