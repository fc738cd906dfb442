"""`benchmarks/programs/interval_limits.py` on a small model, and a line by hand."""

from benchmarks.programs import interval_limits
from raptor.compiler.analysis.explain import TimeBounds


def test_a_bound_is_never_above_the_interval():
    row = interval_limits.measure("lenet5", "bench", 40)
    assert 0 < row.bounds.tightest_ns <= row.interval_ns <= row.latency_ns
    assert 0 < row.local_bytes < 2**20
    searched = interval_limits.measure("lenet5", "bench", 40, "throughput")
    assert searched.interval_ns <= row.interval_ns


def test_the_largest_bound_is_named():
    bounds = TimeBounds(average=1e6, busiest=2e6, port=3e6, products=5e5, core=7, node="conv", node_share=0.5, cores=9)
    row = interval_limits.BoundRow("m", 8e6, 4e6, bounds, 65_536)
    assert row.format_cells() == ("m", "8", "4", "1", "2", "3", "port, 75%", "66")
    assert interval_limits.format_line(row.format_cells()) == "| m | 8 | 4 | 1 | 2 | 3 | port, 75% | 66 |"
