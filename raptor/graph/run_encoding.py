"""Run-length encoding of element moves: consecutive result elements that lie a fixed stride apart in one source."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def find_runs(where: Ints, offset: Ints) -> Ints:
    """Groups an element-wise gather into runs.

    where, offset: for each element of the result, its source (-1: zero) and the element of the source. Returns [runs,
    5], rows (first element of the result, source, first element of the source, stride, number of elements). Strides are
    never negative; 0 repeats an element.
    """
    from raptor.graph.run_kernel import collect_runs

    runs = np.empty((len(where), 5), np.int64)
    count = collect_runs(where.astype(np.int64), offset.astype(np.int64), runs)
    return runs[:count].copy()
