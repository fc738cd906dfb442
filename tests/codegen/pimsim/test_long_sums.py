"""Trial A2: sums of thousands of float32 terms are made of blocks, on every path; the judge is float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raptor.integrations.onnx_backend import RaptorBackend
from raptor.pim.pool_terms import BOTH, NEXT, ONE, TOTAL, order_terms
from raptor.spatial.operations import SUM_BLOCK_TERMS, count_block_levels
from tests.tiny_models import Array, make_model, node

PLACE = np.arange(16384)
SIGNALS: dict[str, Array] = {
    "smooth": 127.5 + 127.4 * np.sin(PLACE % 128 / 64 + PLACE / 16384),
    "all 254.9": np.full(16384, 254.9),
    "all 255": np.full(16384, 255.0),
    "all 0.1": np.full(16384, 0.1),
    "speech": np.sin(PLACE / 9) * np.exp(-(((PLACE - 8000) / 4000) ** 2)) + 0.01,
}
Wanted = Callable[[Array], Array]
NORMS: dict[str, Wanted] = {
    "ReduceMean": lambda x: x.mean(-1),
    "ReduceSum": lambda x: x.sum(-1),
    "ReduceL1": lambda x: np.abs(x).sum(-1),
    "ReduceL2": lambda x: np.sqrt((x * x).sum(-1)),
    "ReduceSumSquare": lambda x: (x * x).sum(-1),
}
CHIP: list[dict[str, Any]] = [{}, {"mapping": "raptor"}]


def error(op: Any, x: Array, wanted: Array, rank: int, *, opset: int = 12, **options: Any) -> float:
    """Returns the largest error of the node on the chip, relative to the largest result."""
    (got,) = RaptorBackend.run_model(make_model([op], {"x": x.shape}, {"y": rank}, opset=opset), [x], **options)
    return float(np.abs(got.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("op_type", NORMS)
def test_reductions_over_one_long_axis(op_type: str, signal: str):
    x = np.stack([SIGNALS[signal], SIGNALS[signal][::-1] * 0.7])[None].astype(np.float32)
    assert error(node(op_type, "x", axes=[2]), x, NORMS[op_type](x.astype(np.float64)), 3) < 1e-6


@pytest.mark.parametrize("options", CHIP, ids=["rows", "raptor"])
@pytest.mark.parametrize("shape", [(128, 128), (16384, 1), (1, 16384), (100, 163), (1, 16381)])
def test_means_of_images_of_any_form(shape: tuple[int, int], options: dict[str, Any]):
    x = SIGNALS["all 0.1"][: shape[0] * shape[1]].reshape(1, 1, *shape).astype(np.float32).repeat(2, 1)
    wanted = x.astype(np.float64).mean((2, 3), keepdims=True)
    assert error(node("GlobalAveragePool", "x"), x, wanted, 4, **options) < 1e-6


def test_pools_of_long_windows():
    x = SIGNALS["speech"].astype(np.float32).reshape(1, 1, -1)
    cut = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (700, 700))), 4099, axis=2)[:, :, ::2000]
    wanted = cut.astype(np.float64).sum(-1) / 4099
    pool = node("AveragePool", "x", kernel_shape=[4099], strides=[2000], pads=[700, 700], count_include_pad=1)
    assert error(pool, x, wanted, 3) < 1e-6


def test_an_instance_norm_of_exporters():
    """Reshape, mean over one axis, differences, squares, mean."""
    x = np.stack([SIGNALS["smooth"], SIGNALS["speech"]])[None].astype(np.float32)
    nodes = [
        node("ReduceMean", "x", "m", axes=[2]),
        node("Sub", "x m", "d"),
        node("Mul", "d d", "s"),
        node("ReduceMean", "s", "v", axes=[2], name="variance"),
        node("Sqrt", "v", "r"),
        node("Div", "d r", "y"),
    ]
    (got,) = RaptorBackend.run_model(make_model(nodes, {"x": x.shape}, {"y": 3}, opset=12), [x])
    exact = x.astype(np.float64)
    np.testing.assert_allclose(got, (exact - exact.mean(2, keepdims=True)) / exact.std(2, keepdims=True), atol=3e-6)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 64, 65, 256, 257, 273, 4097])
def test_every_term_is_added_once_and_in_short_runs(count: int):
    taps = np.stack([np.arange(count), np.where(np.arange(count) < count // 2 + 1, np.arange(count), -1)])
    counts = (taps >= 0).sum(axis=1)
    terms = order_terms(taps, counts, SUM_BLOCK_TERMS)
    for pixel in range(2):
        totals: dict[int, Terms] = {}
        for i in np.flatnonzero(terms.pixel == pixel):
            total, left, right = int(terms.total[i]), int(terms.left[i]), int(terms.right[i])
            match int(terms.reads[i]):
                case kind if kind == ONE:
                    totals[total] = [right]
                case kind if kind == BOTH:
                    totals[total] = [left, right]
                case kind if kind == NEXT:
                    totals[total].append(right)
                case kind:
                    assert kind == TOTAL
                    totals[total].append(totals.pop(int(terms.part[i])))
        assert list(totals) == [0]
        assert sorted(flat(totals[0])) == list(range(counts[pixel]))
        assert longest(totals[0]) <= SUM_BLOCK_TERMS + (SUM_BLOCK_TERMS - 1) * count_block_levels(
            count, SUM_BLOCK_TERMS
        )


Terms = list["int | Terms"]


def flat(total: Terms) -> list[int]:
    return [n for term in total for n in (flat(term) if isinstance(term, list) else [term])]


def longest(total: Terms) -> int:
    """Returns the most terms that are added one after another."""
    return max(len(total), *(longest(t) if isinstance(t, list) else 0 for t in total))
