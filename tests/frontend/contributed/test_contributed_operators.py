"""Operators of onnxruntime in language models, each compiled alone and compared with onnxruntime's kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

import raptor
from tests.decoder_models import MICROSOFT
from tests.tiny_models import Array

Operand = Array | None


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def single(
    op_type: str,
    operands: Sequence[Operand],
    outputs: Sequence[str],
    *,
    inputs: int = 1,
    domain: str = MICROSOFT,
    **more: Any,
) -> ModelProto:
    """Returns a model of one node. The first `inputs` operands that are given are inputs, the others constants."""
    names = ["" if a is None else f"x{k}" for k, a in enumerate(operands)]
    given = [(n, a) for n, a in zip(names, operands, strict=True) if a is not None]
    node = helper.make_node(op_type, names, list(outputs), name="tested", domain=domain, **more)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given[:inputs]
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in given[inputs:]]
    graph = helper.make_graph([node], "one", values, [ValueInfoProto(name=o) for o in outputs if o], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)], ir_version=10
    )


def quantised(bits: int, block: int, columns: int, zero: str, rows: int = 24) -> ModelProto:
    """Returns a model of one MatMulNBits with random codes. `zero`: absent, packed or float zero points."""
    rng, blocks = np.random.default_rng(bits), -(-columns // block)
    codes = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    packed = rng.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)
    zeros = {"absent": None, "packed": packed, "float": numbers(rows, blocks)}[zero]
    scales = np.abs(numbers(rows, blocks)) * np.float32(0.1)
    operands = [numbers(1, 4, columns), codes, scales, zeros, None, numbers(rows)]
    return single("MatMulNBits", operands, ["y"], K=columns, N=rows, bits=bits, block_size=block)


ANGLES = np.arange(32)[:, None] * 0.3 ** np.arange(8)[None]
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
LENGTHS = (np.array([5], np.int32), np.array(6, np.int32))
QKV = (numbers(1, 6, 64), numbers(1, 6, 32), numbers(1, 6, 32))


def attention(*more: Operand, **attributes: Any) -> ModelProto:
    """Returns a model of one GroupQueryAttention of a prompt of six tokens."""
    operands = [*QKV, None, None, *LENGTHS, *more]
    return single("GroupQueryAttention", operands, ["y", "k", "v"], inputs=3, num_heads=4, kv_num_heads=2, **attributes)


X = numbers(1, 4, 32)
KNOWS_CAUSAL = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32)
"""Older versions do not have the attribute `causal`."""
CASES: Mapping[str, ModelProto] = {
    "rms": single("SimplifiedLayerNormalization", [X, numbers(32)], ["y"], domain="", epsilon=1e-3),
    "skip rms": single(
        "SkipSimplifiedLayerNormalization",
        [X, numbers(1, 4, 32, seed=1), numbers(32), numbers(32, seed=1)],
        ["y", "", "", "s"],
        inputs=2,
        epsilon=1e-3,
    ),
    "skip norm": single(
        "SkipLayerNormalization",
        [X, numbers(1, 4, 32, seed=1), numbers(32), numbers(32, seed=1), numbers(32, seed=2)],
        ["y", "", "", "s"],
        inputs=2,
        epsilon=1e-3,
    ),
    "skip norm without biases": single(
        "SkipLayerNormalization", [X, numbers(1, 4, 32, seed=1), numbers(32)], ["y"], inputs=2
    ),
    "quick gelu": single("QuickGelu", [X], ["y"]),
    "silu": single("QuickGelu", [X], ["y"], alpha=1.0),
    "gelu": single("Gelu", [X], ["y"]),
    "bias gelu": single("BiasGelu", [X, numbers(32)], ["y"]),
    "fast gelu": single("FastGelu", [X, numbers(32)], ["y"]),
    "fast gelu without bias": single("FastGelu", [X], ["y"]),
    "4 bits": quantised(4, 32, 64, "absent"),
    "4 bits, last block padded": quantised(4, 32, 80, "packed"),
    "4 bits, zero points of floats": quantised(4, 32, 64, "float"),
    "8 bits": quantised(8, 16, 64, "packed"),
    "2 bits": quantised(2, 32, 64, "absent"),
    "rotation": single("RotaryEmbedding", [numbers(1, 4, 64), np.array([[3, 9, 0, 6]]), COS, SIN], ["y"], inputs=2),
    "rotation from an offset": single("RotaryEmbedding", [numbers(1, 4, 64), np.array([3]), COS, SIN], ["y"]),
    "rotation of pairs": single(
        "RotaryEmbedding", [numbers(1, 4, 64), np.array([[3, 9, 0, 6]]), COS, SIN], ["y"], interleaved=1
    ),
    "rotation of some channels": single(
        "RotaryEmbedding", [numbers(1, 2, 4, 32), np.array([3]), COS, SIN], ["y"], num_heads=2, rotary_embedding_dim=16
    ),
    "attention": attention(),
    "attention with rotation": attention(COS, SIN, do_rotary=1),
    "attention with rotated pairs": attention(COS, SIN, do_rotary=1, rotary_interleaved=1),
    "attention in a window": attention(local_window_size=2),
    "attention with a cap": attention(softcap=0.5),
    "attention with a smooth softmax": attention(smooth_softmax=1),
    "attention with sinks": attention(None, None, None, None, numbers(4)),
    "attention with a bias": attention(None, None, None, numbers(1, 4, 6, 6)),
    "attention with a scale": attention(scale=0.7),
    **({"attention that sees all": attention(causal=0)} if KNOWS_CAUSAL else {}),
    "packed attention": single(
        "GroupQueryAttention",
        [numbers(1, 6, 128), None, None, None, None, *LENGTHS, COS, SIN],
        ["y", "k", "v"],
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_computes_what_onnxruntime_computes(case: str) -> None:
    verdict = raptor.compile(CASES[case], cores=32).validate(samples=2)
    assert verdict.passed, verdict.outputs


REFUSED: Mapping[str, tuple[ModelProto, str]] = {
    "g_idx": (
        single(
            "MatMulNBits",
            [X, np.zeros((4, 1, 16), np.uint8), numbers(4), None, np.zeros(32, np.int32)],
            ["y"],
            K=32,
            N=4,
            block_size=32,
        ),
        r"g_idx \(deprecated\) is not supported",
    ),
    "size": (
        single("MatMulNBits", [X, np.zeros((4, 1, 9), np.uint8), numbers(4)], ["y"], K=32, N=4, block_size=32),
        r"do not fit N=4, K=32, block_size=32",
    ),
    "mean": (
        single("SkipLayerNormalization", [X, X, numbers(32)], ["y", "mean"], inputs=2),
        "its output mean is not supported",
    ),
    "heads": (
        single("GroupQueryAttention", [*QKV, None, None, *LENGTHS], ["y"], inputs=3, num_heads=3, kv_num_heads=2),
        "num_heads=3, kv_num_heads=2",
    ),
    "integers": (attention(k_quant_type="PER_TENSOR"), "a cache of 8 bits, with scales NONE and PER_TENSOR"),
    "norms inside": (
        attention(None, None, None, None, None, None, None, numbers(16), numbers(16)),
        "its input q_norm_weight is not supported",
    ),
    "window cache": (attention(sliding_window_cache=1), "sliding_window_cache without local_window_size"),
    "small integers": (
        attention(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=4),
        "a cache of 4 bits, with scales PER_TENSOR",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_form_is_refused(case: str) -> None:
    proto, message = REFUSED[case]
    with pytest.raises(raptor.UnsupportedError, match=message):
        raptor.compile(proto, cores=32)


def test_rounded_activations_are_judged_as_floats_and_the_user_learns_it() -> None:
    proto = quantised(4, 32, 64, "absent")
    proto.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    made = raptor.compile(proto, cores=32)
    told = "MatMulNBits: accuracy_level 4 is computed and judged as level 0: activations are not rounded"
    assert told in made.report.warnings
    verdict = made.validate(samples=2)
    assert verdict.passed, verdict.outputs


def test_a_cache_that_grows_needs_a_capacity() -> None:
    proto = single(
        "GroupQueryAttention",
        [*QKV, numbers(1, 2, 3, 16), numbers(1, 2, 3, 16), *LENGTHS],
        ["y", "k", "v"],
        inputs=5,
        num_heads=4,
        kv_num_heads=2,
    )
    with pytest.raises(raptor.UserError, match=r"x3 grows with every step: compile with its capacity \(capacity=256\)"):
        raptor.compile(proto, cores=32)
