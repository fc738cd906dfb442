"""`benchmarks/programs/streaming.py` on a small model: all four programs do the same products, and ratios by hand."""

import pytest

import models
from benchmarks.programs import streaming
from raptor.target.arch import load


def test_the_same_products_in_another_order():
    found = streaming.measure_model("lenet5", models.build("lenet5"), load("bench", cores=144), "bench")
    for by_layer, streamed in (found[:2], found[2:]):
        assert (by_layer.order, streamed.order) == ("layer by layer", "streamed")
        assert by_layer.cores == streamed.cores <= 144
        assert 0 < by_layer.utilisation < streamed.utilisation < 1
        multiplied_ms = [row.latency_ms * row.utilisation for row in (by_layer, streamed)]
        assert multiplied_ms[0] == pytest.approx(multiplied_ms[1])
    assert found[0].cores < found[2].cores


def test_ratios_are_to_the_first_row():
    first = streaming.StreamingRow("m", "fewest", "layer by layer", 5, 80, 0.02)
    row = streaming.StreamingRow("m", "all", "streamed", 9, 8, 0.12)
    assert streaming.format_cells(first, row) == ("m", "all", "streamed", "9", "8", "10", "12", "6")
