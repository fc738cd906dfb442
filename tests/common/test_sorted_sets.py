"""Sets of numbers as sorted arrays: the same as numpy's own."""

import numpy as np
import pytest

from raptor.common.sorted_sets import distinct_rows, sorted_isin, sorted_unique


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (1, 1), (50, 20), (20, 500)])
def test_they_are_those_of_numpy(sizes: tuple[int, int]):
    rng = np.random.default_rng(sum(sizes))
    values, others = (rng.integers(-20, 20, size) for size in sizes)
    assert sorted_unique(values).tolist() == np.unique(values).tolist()
    assert sorted_isin(values, others).tolist() == np.isin(values, others).tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_distinct_rows_are_those_of_numpy(columns: int, count: int):
    table = np.random.default_rng(count).integers(-2, 2, (count, columns))
    _, first, number = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = distinct_rows(*table.T)
    assert [part.tolist() for part in found] == [first.tolist(), number.reshape(-1).tolist()]
