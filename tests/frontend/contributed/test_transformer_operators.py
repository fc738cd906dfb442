"""Attention, embeddings and norms as onnxruntime's optimisers fuse them, each compared with onnxruntime's kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from tests.frontend.contributed.test_contributed_operators import Operand, numbers, single
from tests.tiny_models import Array

D, HEADS = 32, 4
Q, K, V = numbers(1, 3, D), numbers(1, 5, D, seed=1), numbers(1, 5, D, seed=2)
NEW_K, NEW_V = numbers(1, 3, D, seed=1), numbers(1, 3, D, seed=2)
PAST = [numbers(1, HEADS, 6, 8, seed=3), numbers(1, HEADS, 6, 8, seed=4)]
PRESENT = ["y", "present.k", "present.v"]
BIAS = numbers(3 * D)


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


def multi_head(*operands: Operand, outputs: Sequence[str] = ("y",), inputs: int = 3, **more: Any) -> ModelProto:
    return single("MultiHeadAttention", operands, outputs, inputs=inputs, num_heads=HEADS, **more)


X, W = numbers(1, 3, D), numbers(D, 3 * D) * np.float32(0.2)
BOTH = numbers(2, 1, HEADS, 6, 8)


def attention(*operands: Operand, outputs: Sequence[str] = ("y",), weights: Array = W, **more: Any) -> ModelProto:
    """Returns a model of com.microsoft.Attention, with the bias and further operands."""
    return single("Attention", [X, weights, *operands], outputs, num_heads=HEADS, **more)


IDS = integers(1, 2, 3).reshape(1, 3)
WORDS, PLACES, KINDS = numbers(7, D), numbers(10, D), numbers(2, D)
GAIN, SHIFT = numbers(D), numbers(D, seed=1)


def embedding(segments: Operand, kinds: Operand, *more: Operand, outputs: Sequence[str]) -> ModelProto:
    return single("EmbedLayerNormalization", [IDS, segments, WORDS, PLACES, kinds, GAIN, SHIFT, *more], outputs)


RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 16, (20, 64)).astype(np.uint8)
BYTES = RNG.integers(0, 256, (20, 64)).astype(np.uint8)
ZEROS = RNG.integers(0, 16, (20, 2)).astype(np.uint8)
SCALES = (abs(numbers(20, 2)) + 0.1).astype(np.float32)


def packed(codes: Array) -> Array:
    """Returns two codes of 4 bits in each byte, the first one in the low bits."""
    return codes[:, ::2] | codes[:, 1::2] << 4


def of_type(name: str, kind: TensorProto.DataType, codes: Array) -> TensorProto:
    return helper.make_tensor(name, kind, codes.shape, codes.flatten().tolist())


def quantised_table(data: Array | TensorProto, zeros: Array | TensorProto | None = None, **more: Any) -> ModelProto:
    """Returns a model of GatherBlockQuantized, blocks of 32 along the rows of a table."""
    table = data if isinstance(data, TensorProto) else numpy_helper.from_array(data, "data")
    constants = [table, numpy_helper.from_array(SCALES, "scales")]
    if zeros is not None:
        constants.append(zeros if isinstance(zeros, TensorProto) else numpy_helper.from_array(zeros, "zeros"))
    names = ["data", "ids", *(t.name for t in constants[1:])]
    ids = np.array([[3, 19, 0]])
    model = single("GatherBlockQuantized", [ids], ["y"], block_size=32, gather_axis=0, quantize_axis=1, **more)
    model.graph.node[0].input[:] = names
    model.graph.input[0].name = "ids"
    model.graph.initializer.extend(constants)
    return model


def computed_table() -> ModelProto:
    """A table of 4 bits that a Reshape makes of the blocks of a MatMulNBits, as the builder of genai shares weights."""
    model = quantised_table(packed(CODES).reshape(20, 2, 16), bits=4)
    shape = helper.make_node("Constant", [], ["shape"], value_ints=[20, 32])
    made = helper.make_node("Reshape", ["data", "shape"], ["table"])
    model.graph.node[0].input[0] = "table"
    nodes = [shape, made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


SEGMENTS = integers(0, 1, 0).reshape(1, 3)
CASES: Mapping[str, ModelProto] = {
    "multi head": multi_head(Q, K, V),
    "multi head, bias": multi_head(Q, K, V, BIAS),
    "multi head, past": multi_head(Q, NEW_K, NEW_V, BIAS, None, None, *PAST, outputs=PRESENT),
    "multi head, first present": multi_head(Q, NEW_K, NEW_V, outputs=PRESENT),
    "multi head, causal": multi_head(Q, NEW_K, NEW_V, unidirectional=1),
    "multi head, causal after a past": multi_head(
        Q, NEW_K, NEW_V, None, None, None, *PAST, outputs=PRESENT, unidirectional=1
    ),
    "multi head, scale and term": multi_head(
        Q, NEW_K, NEW_V, None, None, numbers(1, HEADS, 3, 9), *PAST, outputs=PRESENT, scale=0.2
    ),
    "multi head, padding": multi_head(Q, K, V, None, integers(1, 1, 1, 0, 0).reshape(1, 5)),
    "multi head, padding as an input": multi_head(Q, K, V, None, integers(1, 1, 1, 0, 0).reshape(1, 5), inputs=4),
    "multi head, length": multi_head(Q, K, V, None, integers(3)),
    "multi head, filter value": multi_head(Q, K, V, None, integers(3), mask_filter_value=-2.0),
    "multi head, keys by heads": multi_head(Q, numbers(1, HEADS, 5, 8), numbers(1, HEADS, 5, 8, seed=1)),
    "attention": attention(BIAS),
    "attention without bias": attention(None),
    "attention, causal": attention(BIAS, unidirectional=1),
    "attention, past": attention(BIAS, None, BOTH, outputs=["y", "present"], unidirectional=1),
    "attention, mask": attention(BIAS, integers(1, 1, 0).reshape(1, 3)),
    "attention, end": attention(BIAS, integers(2)),
    "attention, end and start": attention(BIAS, integers(3, 1)),
    "attention, mask of rows": attention(BIAS, integers(1, 0, 1, 1, 1, 0, 1, 1, 1).reshape(1, 3, 3)),
    "attention, term": attention(BIAS, None, None, numbers(1, HEADS, 3, 3)),
    "attention, narrow values": attention(
        numbers(D + D + 24), weights=numbers(D, D + D + 24) * np.float32(0.2), qkv_hidden_sizes=[D, D, 24]
    ),
    "attention, scale": attention(BIAS, scale=0.3),
    "embedding": embedding(SEGMENTS, KINDS, outputs=["y", "count"]),
    "embedding and its sum": embedding(None, None, outputs=["y", "count", "sum"]),
    "embedding, mask": embedding(None, None, integers(1, 1, 0).reshape(1, 3), outputs=["y", "count"]),
    "embedding, positions": embedding(None, None, None, integers(5, 6, 7).reshape(1, 3), outputs=["y", ""]),
    "table of packed 4 bits": quantised_table(packed(CODES), bits=4),
    "table of packed 4 bits, zero points": quantised_table(packed(CODES), packed(ZEROS), bits=4),
    "computed table of packed 4 bits": computed_table(),
    "table of bytes": quantised_table(BYTES, bits=8),
    "table of uint4": quantised_table(of_type("data", TensorProto.UINT4, CODES)),
    "table of int4": quantised_table(of_type("data", TensorProto.INT4, CODES.astype(np.int8) - 8)),
    "table of uint4, zero points": quantised_table(
        of_type("data", TensorProto.UINT4, CODES), of_type("zeros", TensorProto.UINT4, ZEROS)
    ),
    "skip norm of rows": single("SkipLayerNormalization", [X, numbers(3, D), GAIN], ["y"], inputs=2),
    "skip rms, one skip for a batch": single(
        "SkipSimplifiedLayerNormalization", [numbers(2, 4, D), numbers(1, 4, D), GAIN], ["y"], inputs=2
    ),
    "rms of two axes": single(
        "SimplifiedLayerNormalization", [X, numbers(3, D)], ["y", "inverse"], domain="", axis=-2, epsilon=1e-3
    ),
    "rms from axis 1": single("SimplifiedLayerNormalization", [X, numbers(3, D)], ["y"], domain="", axis=1),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_computes_what_onnxruntime_computes(case: str) -> None:
    verdict = raptor.compile(CASES[case], cores=32).validate(samples=2)
    assert verdict.passed, verdict.outputs


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (multi_head(numbers(1, 3, HEADS, 3, 8), inputs=1), "only the form with query, key and value is supported"),
        (multi_head(Q, K, V, None, None, None, *PAST), "onnxruntime reads memory that nothing wrote"),
        (
            multi_head(Q, NEW_K, NEW_V, None, None, None, *PAST, integers(4), outputs=PRESENT),
            r"past_sequence_length \(onnxruntime versions disagree\) is not supported",
        ),
        (attention(BIAS, do_rotary=1), "do_rotary and past_present_share_buffer: onnxruntime cannot judge them"),
        (attention(BIAS, integers(1, 1, 0, 0, 0)), r"a mask \[5\] for 1 sequences is not supported"),
        (attention(BIAS, np.ones((1, 1, 3, 3), np.int32)), "a mask of 4 dimensions is not supported"),
        (quantised_table(packed(CODES), bits=2), "bits=2, block_size=32"),
        (quantised_table(packed(CODES)[:, :8], bits=4), r"data \[20, 16\] and scales \[20, 2\] do not fit blocks of"),
    ],
)
def test_another_form_is_refused(proto: ModelProto, message: str) -> None:
    with pytest.raises(raptor.UnsupportedError, match=message):
        raptor.compile(proto, cores=32)
