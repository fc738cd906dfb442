"""Compilations of the examples in the drawings, with the results of all passes."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import models
import raptor
from raptor.compiler.pass_driver import Driver
from validator.simulate.builtin import simulate


@dataclass
class PassRecorder(Driver):
    """A driver that records the result of every pass, by name of the pass."""

    results: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        self.results[step.__name__] = super().run(step, *args, **kwargs)
        return self.results[step.__name__]


@dataclass(frozen=True, slots=True)
class RecordedCompilation:
    """A compilation: results of passes by name, events of the Chrome trace of a simulation, and its latency."""

    passes: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...]
    latency_ns: float


def build_thesis_model() -> ModelProto:
    """Builds the thesis's example: a 3x3 convolution of 4 to 8 channels on a 4x4 image (listing 4.1)."""
    weights = np.random.default_rng(0).standard_normal((8, 4, 3, 3), dtype=np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 4, 4])
    graph = helper.make_graph([conv], "thesis", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@cache
def compile_thesis() -> RecordedCompilation:
    """Compiles the example of the thesis with its mapping for its machine: crossbars of 3x3, five per core."""
    return _compiled(build_thesis_model(), xbar=3, xbars_per_core=5, cores=16, mapping="raptor")


@cache
def compile_lenet5() -> RecordedCompilation:
    return _compiled(models.build("lenet5"), cores=8, mapping="rows")


def _compiled(model: ModelProto, **options: Any) -> RecordedCompilation:
    recorder = PassRecorder()
    program = raptor.compile(model, driver=recorder, **options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = program.save(Path(scratch) / "out")
        trace = Path(scratch) / "trace.json"
        report = simulate(folder, folder / "arch.json", trace_file=trace)
        events = tuple(json.loads(trace.read_text())["traceEvents"])
    return RecordedCompilation(recorder.results, events, report.latency_ns or 0.0)
