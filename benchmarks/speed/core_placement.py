"""Time to place cores on the mesh, by their number: `make bench-placement`.

Each core sends to some cores with similar numbers, as in a streamed model. The baseline `numpy` is measured in the same
run: one product of two matrices [cores, cores], flits times distances, which gives the cost of every core at every
place.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raptor.spatial.mesh_placement import find_placement
from raptor.target import arch as architectures

CORES = (144, 512, 1024, 2048, 4096)
PEERS, NEAR = 12, 60
REPEAT = 5


def random_messages(cores: int) -> npt.NDArray[np.int64]:
    """Returns messages [n, 3]: sender, receiver, flits. Each core sends to `PEERS` of the next `NEAR` cores."""
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(cores), PEERS)
    to = (source + rng.integers(1, NEAR, len(source))) % cores
    return np.stack([source, to, rng.integers(1, 500, len(source))], axis=1)


def median_s(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(REPEAT))


def format_row(cores: int) -> tuple[str, ...]:
    """Returns cells: cores, messages, seconds of placement and of the baseline, and their ratio."""
    sent, arch = random_messages(cores), architectures.load(cores=cores)
    square = np.random.default_rng(0).random((cores, cores))
    place_s, numpy_s = median_s(lambda: find_placement(sent, arch)), median_s(lambda: square @ square)
    return f"{cores}", f"{len(sent):,}", f"{place_s:.3f}", f"{numpy_s:.3f}", f"{place_s / numpy_s:.2f}"


def main() -> None:
    find_placement(random_messages(NEAR), architectures.load(cores=NEAR))  # loads the compiled code
    print("| cores | messages | place s | numpy s | place / numpy |\n|---:|---:|---:|---:|---:|")
    for cores in CORES:
        print(f"| {' | '.join(format_row(cores))} |", flush=True)


if __name__ == "__main__":
    main()
