"""Small models for the machine C, and their programs for both machines."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import models
import raptor
from tests.quantised_models import quantise
from tests.tiny_models import Array, random

ZOO: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"width": 0.25}),
    "lenet5": ("lenet5", {}),
    "mlp3": ("mlp3", {}),
    "wavenet": ("wavenet_cell", {"samples": 64}),
    "lstm": ("lstm", {"steps": 6}),
    "bert": ("bert_tiny", {"tokens": 16, "dim": 32, "depth": 1}),
    "resnet18": ("resnet18", {"image_size": 32, "width": 0.25}),
    "mobilenet": ("mobilenet_v2", {"image_size": 32, "width": 0.25}),
    "squeezenet": ("squeezenet", {"image_size": 32, "width": 0.25}),
    "unet": ("unet", {"image_size": 32, "width": 0.125}),
    "shufflenet": ("shufflenet_v2", {"image_size": 32, "width": 0.25}),
    "googlenet": ("googlenet", {"image_size": 32, "width": 0.25}),
}
FLOATS = ("mlp", "lenet5", "mlp3", "wavenet", "lstm", "bert", "resnet18", "mobilenet", "squeezenet", "unet")
INTEGERS = (
    *("mlp", "lenet5", "mlp3", "wavenet", "resnet18"),
    *("mobilenet", "squeezenet", "unet", "shufflenet", "googlenet"),
)
RISCV = "riscv64-linux-gnu-gcc", "qemu-riscv64-static"
MISSING = [tool for tool in RISCV if shutil.which(tool) is None]
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None, reason="needs a C compiler and make"
)
needs_riscv = pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)} for RISC-V")


@cache
def build(name: str) -> ModelProto:
    model, options = ZOO[name]
    return models.build(model, seed=0, **options)


def build_int8(name: str, folder: Path) -> ModelProto:
    return quantise(build(name), folder)


def inputs(model: ModelProto) -> dict[str, Array]:
    """Standard normal inputs, or small numbers for inputs of integers."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name not in constants:
            shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
            found[value.name] = random(*shape, seed=3)
    return found


def outputs(model: ModelProto, given: Mapping[str, Array], **options: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns the outputs of the validator's engine, and of the C program."""
    streams = raptor.compile(model, **options)
    return streams.run(given), raptor.compile(model, backend="c", **options).run(given)


def assert_equal(model: ModelProto, given: Mapping[str, Array] | None = None, **options: Any) -> None:
    """Both machines compute the same outputs, bit for bit."""
    wanted, found = outputs(model, inputs(model) if given is None else given, **options)
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        assert array.dtype == found[name].dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@contextmanager
def on_riscv() -> Iterator[None]:
    """Programs are built for RISC-V, and run in QEMU."""
    given = {"RAPTOR_CC": f"{RISCV[0]} -O1 -static", "RAPTOR_CC_RUN": RISCV[1]}
    old = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
