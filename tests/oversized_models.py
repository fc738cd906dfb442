"""Small models that are too large for small chips, and their programs in rounds."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

import raptor
from raptor.api import Program
from raptor.output.writer import HostedArtifacts
from tests.tiny_models import golden, make_model, node, random

CHIP = {"xbar": 16, "cores": 2, "xbars_per_core": 6}


def chain(layers: int = 4, channels: int = 8, size: int = 6) -> ModelProto:
    """x -> conv0 -> relu0 -> conv1 -> ... Each convolution has other weights."""
    nodes, weights, x = [], {}, "x"
    for k in range(layers):
        ins = 3 if k == 0 else channels
        weights[f"w{k}"] = random(channels, ins, 3, 3, seed=k) / 6
        nodes.append(node("Conv", f"{x} w{k}", f"a{k}", name=f"conv{k}", pads=[1] * 4))
        nodes.append(node("Relu", f"a{k}", f"r{k}", name=f"relu{k}"))
        x = f"r{k}"
    return make_model(nodes, {"x": [1, 3, size, size]}, [x], weights)


def residual() -> ModelProto:
    """A block whose input is added to its output: r0 is read behind every cut."""
    model = chain(4)
    model.graph.node.append(node("Add", "r3 r0", "y", name="add"))
    model.graph.output[0].name = "y"
    return model


def dense(inputs: int, outputs: int, op: str = "Gemm", **attributes: Any) -> ModelProto:
    """One fully connected layer."""
    weights = {"w": random(inputs, outputs, seed=3) / 8, "b": random(outputs, seed=4)}
    if attributes.get("transB"):
        weights["w"] = np.ascontiguousarray(weights["w"].T)
    names = "x w b" if op == "Gemm" else "x w"
    used = weights if op == "Gemm" else {"w": weights["w"]}
    return make_model([node(op, names, "y", name="dense", **attributes)], {"x": [1, inputs]}, {"y": 2}, used)


def in_rounds(model: ModelProto, folder: Path, **options: Any) -> tuple[Program, HostedArtifacts]:
    """Compiles in rounds, saves, runs and validates."""
    program = raptor.compile(model, **{**CHIP, "rounds": True, **options})
    artifacts = program.artifacts
    assert isinstance(artifacts, HostedArtifacts)
    program.save(folder, stream_format="pim", weight_format="npz")
    inputs = {
        v.name: random(*(d.dim_value for d in v.type.tensor_type.shape.dim), seed=k)
        for k, v in enumerate(model.graph.input)
    }
    found = raptor.load(folder).run(inputs)
    for name, wanted in golden(model, inputs).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
    verdict = program.validate(samples=1)
    assert verdict.passed, verdict
    return program, artifacts
