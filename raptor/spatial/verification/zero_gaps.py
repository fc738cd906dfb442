"""Gaps among the products of a layer that only weights of 0 would fill."""

from collections.abc import Sequence

from raptor.graph.ir import Filter


def misses_only_zeros(
    operator: Filter, tap: int, spans: Sequence[tuple[int, int]], inputs: tuple[int, int], outputs: tuple[int, int]
) -> bool:
    """True if ascending spans cover the range `inputs` once, but for gaps whose weights to `outputs` are all 0."""
    end = inputs[0]
    for start, stop in (*spans, (inputs[1], inputs[1])):
        if start < end or (start > end and not _are_zero(operator, tap, (end, start), outputs)):
            return False
        end = stop
    return end == inputs[1]


def _are_zero(operator: Filter, tap: int, inputs: tuple[int, int], outputs: tuple[int, int]) -> bool:
    return operator.groups == 1 and not operator.weights[tap, slice(*inputs), slice(*outputs)].any()
