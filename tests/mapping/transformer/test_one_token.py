"""A transformer that computes one token: row tiles of a layer multiply at the same time, on different cores."""

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.compiler.pipeline import prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.strategies import ROWS
from raptor.mapping.transformer.cache_cores import spread_one_token
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from tests.decoder_models import GraphBuilder

BLOCKS, WIDTH, WIDE, XBAR_ROWS = 2, 256, 512, 128


def transformer(tokens: int = 1) -> ModelProto:
    """Blocks of an attention with four heads, and of two layers."""
    b, x, heads = GraphBuilder(0), "x", 4
    shape = b.constant("by.head", np.array([1, tokens, heads, WIDTH // heads]))
    flat = b.constant("flat", np.array([1, tokens, WIDTH]))
    for n in range(BLOCKS):
        by: dict[str, str] = {}
        for kind in ("query", "key", "value"):
            whole = b.add("MatMul", [x, b.weights(f"w.{kind}.{n}", WIDTH, WIDTH)], f"{kind}.{n}.whole")
            split = b.add("Reshape", [whole, shape], f"{kind}.{n}.split")
            by[kind] = b.add("Transpose", [split], f"{kind}.{n}", perm=[0, 2, 1, 3])
        turned = b.add("Transpose", [by["key"]], f"turned.{n}", perm=[0, 1, 3, 2])
        shares = b.add("Softmax", [b.add("MatMul", [by["query"], turned], f"scores.{n}")], f"shares.{n}")
        b.add("MatMul", [shares, by["value"]], f"mixed.{n}")
        joined = b.add("Reshape", [b.add("Transpose", [f"mixed.{n}"], f"by.{n}", perm=[0, 2, 1, 3]), flat], f"one.{n}")
        out = b.add("MatMul", [joined, b.weights(f"w.out.{n}", WIDTH, WIDTH)], f"out.{n}")
        x = b.add("Add", [x, out], f"sum.{n}")
        wide = b.add("Tanh", [b.add("MatMul", [x, b.weights(f"w.up.{n}", WIDTH, WIDE)], f"up.{n}")], f"wide.{n}")
        narrow = b.add("MatMul", [wide, b.weights(f"w.down.{n}", WIDE, WIDTH)], f"down.{n}")
        x = b.add("Add", [x, narrow], "y" if n == BLOCKS - 1 else f"next.{n}")
    return b.model({"x": [1, tokens, WIDTH]}, {"y": [1, tokens, WIDTH]})


def test_row_tiles_have_cores_of_their_own() -> None:
    """A product of 512 rows waits for one crossbar of 128 rows, not for four, one after another.

    The one token has the whole attention, so nothing depends on queries and keys.
    """
    made = raptor.compile(transformer(), arch="bench")
    cores = {layer.node: set(layer.cores) for layer in made.report.layers if layer.xbars}
    assert len(cores) == 4 * BLOCKS
    assert all(len(cores[f"down.{n}"]) >= WIDE // XBAR_ROWS for n in range(BLOCKS))
    latency = made.simulate().latency_ns
    assert latency is not None
    assert latency < BLOCKS * 16_000
    assert made.validate(samples=2).passed


def test_spread_layers_are_evaluated_as_faster() -> None:
    """The candidates alone, as idle cores take layers in a later step of the search, too."""
    arch = load_chip(ChipOptions(arch="bench"))
    first = rewrite_and_map(prepare_graph(load(transformer()).graph, arch), arch, ROWS.without_search())
    found = spread_one_token(first.graph, first.decision, arch)
    before, *after = (evaluate(first.graph, each, arch).latency_ns for each in (first.decision, *found))
    assert min(after) < 0.9 * before


@pytest.mark.parametrize("cores", [2, 7])
def test_a_small_chip_keeps_layers_together(cores: int) -> None:
    made = raptor.compile(transformer(), arch="bench", cores=cores)
    assert made.report.cores_used <= cores
    assert made.validate(samples=1).passed
