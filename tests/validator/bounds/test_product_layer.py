"""Coverage by products, against windows that are followed pixel by pixel."""

from collections import Counter
from random import Random

import pytest

from validator.bounds.product_layer import Axis, Cover, cover_axis


def _readers(axis: Axis) -> list[list[int]]:
    """Returns the outputs that read each input of one image, by the definition of a convolution."""
    found: list[list[int]] = [[] for _ in range(axis.given)]
    for a in range(axis.given if axis.turned else axis.made):
        for t in range(axis.kernel):
            b = a * axis.stride - axis.pad + t * axis.dilation
            if 0 <= b < (axis.made if axis.turned else axis.given):
                found[a if axis.turned else b].append(b if axis.turned else a)
    return found


def _covered(readers: list[list[int]], first: int, size: int) -> Cover:
    block = readers[first : first + size]
    counts = sorted(Counter(o for outs in block for o in outs).values(), reverse=True)
    return Cover(sum(map(bool, block)), tuple(sum(counts[: i + 1]) for i in range(len(counts))))


def _draw(rng: Random) -> Axis:
    kernel, stride, dilation = rng.randint(1, 5), rng.randint(1, 4), rng.randint(1, 3)
    given, pad, turned = rng.randint(1, 24), rng.randint(0, 3), rng.random() < 0.3
    reach = (kernel - 1) * dilation + 1
    made = (given - 1) * stride + reach - 2 * pad if turned else (given + 2 * pad - reach) // stride + 1
    return Axis(given, max(1, made), kernel, stride, pad, dilation, turned)


@pytest.mark.parametrize("seed", range(300))
def test_no_block_covers_more(seed: int):
    axis = _draw(Random(seed))
    readers = _readers(axis)
    assert axis.pairs == sum(map(len, readers))
    assert axis.ins == sum(map(bool, readers))
    for size in range(1, axis.given + 1):
        most = cover_axis(axis, size)
        for first in range(axis.given - size + 1):
            found = _covered(readers, first, size)
            assert found.ins <= most.ins
            for i, pairs in enumerate(found.pairs):
                assert pairs <= most.pairs[min(i, len(most.pairs) - 1)], (size, first, i)


def test_inside_a_large_image_it_is_exact():
    axis = Axis(60, 60, 3, pad=1)
    assert cover_axis(axis, 2) == _covered(_readers(axis), 20, 2) == Cover(2, (2, 4, 5, 6))


def test_a_large_kernel_covers_no_less():
    """Kernels too large to follow have a simpler bound."""
    axis = Axis(4000, 61, 400, 60)
    readers = _readers(axis)
    for size in (1, 7, 128):
        found, most = _covered(readers, 1000, size), cover_axis(axis, size)
        assert found.ins <= most.ins
        assert all(a <= b for a, b in zip(found.pairs, most.pairs, strict=False))
        assert len(found.pairs) <= len(most.pairs)


def test_images_of_a_batch_follow_one_another():
    axis, batch = Axis(8, 8, 3, pad=1), Axis(8, 8, 3, pad=1, copies=5)
    assert (batch.pairs, batch.ins) == (5 * axis.pairs, 5 * axis.ins)
