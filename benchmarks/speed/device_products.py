"""Products a second of the back ends of `raptor.device`, by wall time and by processor time of this process.

python -m benchmarks.speed.device_products

Each figure is the best of several repetitions, as other programs only ever make it worse. Ends with status 1 if a back
end is slower than its goal by processor time.
"""

import sys
import time

import numpy as np

import raptor.device
from raptor.device import Device
from raptor.device.server import started

SIZE, COUNT, REPEAT = 128, 1000, 9
GOALS = {"numpy": 20_000, "integer": 0, "socket": 2000}
"""Required products per second; 0 for no requirement."""


def measure(name: str, device: Device) -> bool:
    """Prints the products per second of a device. Returns True if they reach the goal."""
    rng = np.random.default_rng(0)
    vector = rng.integers(-9, 9, SIZE)
    with device.acquire() as crossbar:
        crossbar.write(rng.integers(-9, 9, (SIZE, SIZE)))
        crossbar.matvec(vector).result()
        times = [multiply(crossbar, vector) for _ in range(REPEAT)]
    by_clock, by_processor = (COUNT / min(column) for column in zip(*times, strict=True))
    goal = GOALS[name]
    print(f"{name:8} {by_clock:8.0f} products/s by the clock, {by_processor:8.0f} by processor time, goal {goal}")
    return by_processor >= goal


def multiply(crossbar: raptor.device.Crossbar, vector: np.ndarray) -> tuple[float, float]:
    """Multiplies `COUNT` times, and returns the seconds by the clock and of this process."""
    wall, processor = time.perf_counter(), time.process_time()
    for result in [crossbar.matvec(vector) for _ in range(COUNT)]:
        result.result()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> int:
    found: list[bool] = []
    for name in ("numpy", "integer"):
        with raptor.device.open(name, xbar=SIZE) as device:
            found.append(measure(name, device))
    with started() as address, raptor.device.open(f"socket:{address}") as device:
        found.append(measure("socket", device))
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
