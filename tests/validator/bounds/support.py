"""A model and its certificate, for the tests of the checker."""

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import onnx

import models
from raptor.compiler.analysis.bound_program import find_certificate
from raptor.target import arch as architectures
from raptor.target.arch import arch_json
from tests.tiny_models import make_model, node, random
from validator.bounds.certificate import VERSION
from validator.bounds.chip_times import ChipTimes
from validator.bounds.model_work import ModelWork


@dataclass(frozen=True)
class Proved:
    """A model, an architecture file, and a certificate for them."""

    model: onnx.ModelProto
    arch: dict[str, Any]
    certificate: dict[str, Any]

    @property
    def work(self) -> ModelWork:
        bits = (self.certificate[key] for key in ("weight_bits", "input_bits", "sum_bits"))
        return ModelWork(self.model, ChipTimes(self.arch, *bits), self.certificate["inputs"])


def arch_file(preset: str = "bench", **core: Any) -> dict[str, Any]:
    """Returns the complete architecture file of a preset."""
    arch = json.loads(arch_json(architectures.load(preset)), parse_float=Fraction)
    arch["chip_config"]["core_config"] |= core
    return arch


def prove(model: onnx.ModelProto, arch: dict[str, Any]) -> Proved:
    """Returns the certificate that is found for a model."""
    certificate = find_certificate(ModelWork(model, ChipTimes(arch, 8, 8, 8), {}))
    widths = {"weight_bits": 8, "input_bits": 8, "sum_bits": 8}
    return Proved(model, arch, {"version": VERSION, **widths, "inputs": {}, **certificate})


@cache
def network() -> Proved:
    """Returns the proof for a network with convolutions, depthwise layers, pools and a residual."""
    return prove(models.build("mobilenet_v2", width=0.35, image_size=32), arch_file())


def layer(*weights: int, shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    """Returns a model of one convolution. `weights`: its shape. `shape`: of the input."""
    return make_model([node("Conv", "x w", **attributes)], {"x": shape}, {"y": len(shape)}, {"w": random(*weights)})
