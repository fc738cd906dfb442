"""Compile a model, execute its instructions, and compare every tensor with onnxruntime.

python examples/01_compile_and_validate.py
"""

import tempfile
from pathlib import Path

import numpy as np

import models
import raptor

model = models.build("lenet5")  # or the path of your ONNX file
program = raptor.compile(model, cores=20)
report = program.report
print(f"{report.xbars_used} crossbars on {report.cores_used} cores, {report.instruction_count} instructions")

# The directory that the validator, the simulator and pimsim-nn read.
with tempfile.TemporaryDirectory() as folder:
    out = program.save(Path(folder) / "out")
    print("written:", ", ".join(sorted(p.name for p in out.iterdir())[:4]), "...")

    verdict = program.validate(layers=True)
    print(f"\n{'node':10} {'shape':14} relative error")
    for layer in verdict.layers:
        shape = "x".join(map(str, layer.comparison.shape))
        print(f"{layer.node:10} {shape:14} {layer.comparison.max_relative:.1e}")
    print(f"verdict: {verdict.verdict}")

    # Your own inputs, by name. What comes back was computed by the instructions, nothing else.
    outputs = program.run({"input": np.ones((1, 1, 28, 28), np.float32)})
    print("an image of ones is a", int(outputs["fc3_output"].argmax()))
