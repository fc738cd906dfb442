"""Use crossbars directly: one program, in this process and on a driver in another one.

python examples/08_crossbars_as_a_device.py
"""

import numpy as np

import raptor.device
from raptor.device import Device
from raptor.device.server import started


def two_layers(device: Device, images: list[np.ndarray]) -> list[int]:
    """Returns the class of each image. The second layer takes futures of the first: nothing waits in between."""
    rng = np.random.default_rng(0)
    with device.acquire() as first, device.acquire() as second:
        first.write(rng.standard_normal((64, 32)))
        second.write(rng.standard_normal((32, 10)))
        scores = [second.matvec(first.matvec(image)) for image in images]
        return [int(score.result().argmax()) for score in scores]


images = list(np.random.default_rng(1).standard_normal((8, 64)))
with raptor.device.open("numpy", xbar=128, crossbars=64) as device:
    print("this process:", two_layers(device, images))
    here = device.account

with started() as address, raptor.device.open(f"socket:{address}") as device:
    print("a driver:    ", two_layers(device, images))
    there = device.account

print("equal accounts:", here == there)
print(f"{here.writes} writes, {here.products} products, {here.time_ns / 1e3:.1f} us modelled")
