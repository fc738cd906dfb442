"""Products a second of the back ends of `raptor.device`, by wall time and by processor time of this process.

python benchmarks/device.py
"""

import time

import numpy as np

import raptor.device
from raptor.device import Device
from raptor.device.server import started

SIZE, COUNT = 128, 5000


def measure(name: str, device: Device) -> None:
    rng = np.random.default_rng(0)
    vector = rng.integers(-9, 9, SIZE)
    with device.acquire() as crossbar:
        crossbar.write(rng.integers(-9, 9, (SIZE, SIZE)))
        crossbar.matvec(vector).result()
        wall, processor = time.perf_counter(), time.process_time()
        results = [crossbar.matvec(vector) for _ in range(COUNT)]
        results[-1].result()
        per_wall = COUNT / (time.perf_counter() - wall)
        per_processor = COUNT / (time.process_time() - processor)
    print(f"{name:8} {per_wall:8.0f} products/s by the clock, {per_processor:8.0f} by processor time")


def main() -> None:
    for name in ("numpy", "integer"):
        with raptor.device.open(name, xbar=SIZE) as device:
            measure(name, device)
    with started() as address, raptor.device.open(f"socket:{address}") as device:
        measure("socket", device)


if __name__ == "__main__":
    main()
