"""Small models with nodes for the host, and their programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

import raptor
from raptor.frontend.segments import SegmentedModel, cut_model
from raptor.options import HostOptions, ModelInputs
from tests.tiny_models import Array, golden, make_model, node, random

CHIP = {"xbar": 32, "cores": 8}


def conv(name: str, x: str, y: str, channels: tuple[int, int]) -> tuple[Any, dict[str, Array]]:
    """A convolution 3x3 and its weights."""
    weights = random(channels[1], channels[0], 3, 3, seed=len(name)) / 6
    return node("Conv", f"{x} {name}.w", y, name=name, pads=[1] * 4), {f"{name}.w": weights}


def sandwich(middle: Sequence[Any], constants: Mapping[str, Array] | None = None) -> ModelProto:
    """x -> first -> a -> (middle) -> b -> last -> y: two convolutions of 4 channels, and nodes between them."""
    first, w1 = conv("first", "x", "a", (3, 4))
    last, w2 = conv("last", "b", "y", (4, 2))
    return make_model([first, *middle, last], {"x": [1, 3, 6, 6]}, ["y"], {**w1, **w2, **(constants or {})})


def cut_of(model: ModelProto, *nodes: str, needed: bool = True, **fixed: Any) -> SegmentedModel:
    return cut_model(model, ModelInputs(**fixed), HostOptions(needed, host_nodes=nodes), lambda _: None)


def kinds(found: SegmentedModel) -> list[tuple[str, set[str]]]:
    return [(s.kind, set(s.nodes)) for s in found.segments]


def compiled(model: ModelProto, folder: Path, **options: Any) -> raptor.Program:
    """Compiles with the host, and saves."""
    program = raptor.compile(model, **{**CHIP, "host": True, **options})
    program.save(folder, stream_format="pim", weight_format="npz")
    return program


def checked(model: ModelProto, folder: Path, **options: Any) -> raptor.Program:
    """Compiles, and compares the run of all segments with onnxruntime, and by `validate`."""
    program = compiled(model, folder, **options)
    inputs = {v.name: feed(v, seed) for seed, v in enumerate(model.graph.input)}
    found = raptor.load(folder).run(inputs)
    for name, wanted in golden(model, inputs).items():
        assert found[name].dtype == wanted.dtype
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)
    verdict = program.validate(samples=2)
    assert verdict.passed, verdict
    assert all(s.passed for s in verdict.segments)
    return program


def feed(value: Any, seed: int) -> Array:
    shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    if value.type.tensor_type.elem_type == TensorProto.FLOAT:
        return random(*shape, seed=seed)
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
