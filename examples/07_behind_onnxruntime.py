"""Run a script that was written for onnxruntime on the chip, by one changed line.

python examples/07_behind_onnxruntime.py
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import models
from raptor.integrations.onnxruntime_session import InferenceSession


def classify(session: Any, images: list[Any]) -> list[int]:
    """Returns the class of each image. It knows nothing of the chip."""
    (given,) = session.get_inputs()
    scores = [session.run(["fc3_output"], {given.name: image})[0] for image in images]
    return [int(score.argmax()) for score in scores]


rng = np.random.default_rng(0)
images = [rng.standard_normal((1, 1, 28, 28)).astype(np.float32) for _ in range(10)]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "lenet5.onnx"
    path.write_bytes(models.build("lenet5").SerializeToString())

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    print("onnxruntime:", classify(session, images))

    chip = InferenceSession(path, providers=["CPUExecutionProvider"], cores=20)
    print("chip:       ", classify(chip, images))

    time_us = (chip.program.simulate().latency_ns or 0) / 1e3
    print(f"an image takes {time_us:.0f} us on the chip")
