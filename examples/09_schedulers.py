"""Compare schedulers on kernels that the compiler OCC was measured with: writes, time, life of the cells.

python examples/09_schedulers.py
"""

from collections.abc import Callable

import numpy as np

import raptor.device
from raptor.device.graph import GraphValue, ProductGraph
from raptor.device.kernels import contraction, convolution, matmul, matvec

SIZE = 64


def values(*shape: int) -> np.ndarray:
    """Returns small whole numbers, whose products float32 holds exactly."""
    return np.random.default_rng(len(shape)).integers(-2, 3, shape).astype(np.float32)


square, cube = values(SIZE, SIZE), values(16, 8, 8)
KERNELS: dict[str, Callable[[ProductGraph], GraphValue]] = {
    "mm": lambda graph: matmul(graph, square, square),
    "mv": lambda graph: matvec(graph, square, square[0]),
    "3mm": lambda graph: matmul(graph, matmul(graph, square, square), matmul(graph, square, square)),
    "ab-acd-dbc": lambda graph: contraction(graph, "ab-acd-dbc", cube, values(8, 16, 8)),
    "conv2d": lambda graph: convolution(graph, values(1, 3, 12, 12), values(3, 3, 3, 3)),
}

print(f"{'kernel':12}{'scheduler':12}{'writes':>7}{'products':>10}{'time, ms':>10}{'on crossbars':>14}")
for name, kernel in KERNELS.items():
    for schedule in ("asap", "min_writes"):
        with raptor.device.open("numpy", xbar=16, crossbars=4, device="pcm-occ") as device:
            with device.graph(schedule) as graph:
                result = kernel(graph)
            result.result()
            account = device.account
        figures = f"{account.writes:7}{account.products:10}{account.time_ns / 1e6:10.3f}{graph.share:14.1%}"
        print(f"{name:12}{schedule:12}{figures}")
