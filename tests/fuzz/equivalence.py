"""Finds the reason why a spoilt directory may pass: it means the same as the good one, or differs within the tolerance.

Programs are compared as functions, not by one run: weights, constants and inputs are replaced by random numbers, the
same for both programs. All outputs and probes must be equal, bit for bit, several times. Numbers that differ between
the two get different random numbers, so only numbers on which no result depends may differ.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from validator.execution.run import run_program
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram

NEAR = 1e-3
"""Largest difference of two numbers that count as equal, relative to the largest number.

Such a difference changes the outputs in proportion, and the validator has judged the outputs.
"""
ROUNDS = 3

Floats = npt.NDArray[np.float32]


def reason(good: Path, spoilt: Path) -> str | None:
    """Returns the reason why `spoilt` may pass the validator; None if there is no reason."""
    one, two = load_output(good), load_output(spoilt, check_hashes=False)
    what = _same_values(one, two)
    model = _same_model(good / "model.onnx", spoilt / "model.onnx")
    if what is None or model is None or not _same_function(one, two):
        return None
    reasons = dict.fromkeys(r for r in (what, model) if r)
    if not reasons:
        same = all(np.array_equal(a, b) for a, b in zip(one.streams, two.streams, strict=True))
        reasons = {"nothing executed changed" if same and one.memory == two.memory else "the same function": None}
    return " and ".join(reasons)


def _same_values(one: LoadedProgram, two: LoadedProgram) -> str | None:
    """Compares weights and constants. Returns '' if they are equal, None if shapes differ, else a reason."""
    pairs = ((one.weights.values, two.weights.values), (one.constants, two.constants))
    if any(a.shape != b.shape for a, b in pairs):
        return None
    if all(np.array_equal(a, b) for a, b in pairs):
        return ""
    if all(_near(a, b) for a, b in pairs):
        return "numbers within the tolerance"
    return "numbers that nothing depends on"  # an assumption that `_same_function` checks


def _near(a: Floats, b: Floats) -> bool:
    return a.size == 0 or float(np.abs(a - b).max()) <= NEAR * float(np.abs(a).max())


def _same_function(one: LoadedProgram, two: LoadedProgram) -> bool:
    return all(_same_outputs(one, two, np.random.default_rng(k)) for k in range(ROUNDS))


def _same_outputs(one: LoadedProgram, two: LoadedProgram, rng: np.random.Generator) -> bool:
    weights, constants = _drawn(one.weights.values, two.weights.values, rng), _drawn(one.constants, two.constants, rng)
    inputs = {p.name: rng.standard_normal(p.shape, dtype=np.float32) for p in one.memory.inputs}
    results = [
        run_program(replace(program, weights=replace(program.weights, values=w), constants=c), inputs, probes=True)
        for program, w, c in zip((one, two), weights, constants, strict=True)
    ]
    outputs, probes = ((results[0].outputs, results[1].outputs), (results[0].probes, results[1].probes))
    if outputs[0].keys() != outputs[1].keys():
        return False
    return all(  # inner tensors that the spoilt program does not list are not compared
        name in first and np.array_equal(first[name], second[name], equal_nan=True)
        for first, second in (outputs, probes)
        for name in second
    )


def _drawn(one: Floats, two: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draws random numbers for both: the same for entries that are equal, or for all if all are nearly equal."""
    first, second = (rng.uniform(0.5, 2, one.shape).astype(np.float32) for _ in range(2))
    signs = np.where(rng.random(one.shape) < 0.5, np.float32(-1), np.float32(1))
    same = (one == two) if not _near(one, two) else np.ones(one.shape, np.bool_)
    return first * signs, np.where(same, first, second) * signs


def _same_model(good: Path, spoilt: Path) -> str | None:
    """Compares two models. Returns '' if only names and remarks differ, None if the results differ, else a reason."""
    if good.read_bytes() == spoilt.read_bytes():
        return ""
    one, two = (onnx.load(str(path)) for path in (good, spoilt))
    if _bare(one) == _bare(two):
        return "" if _equal_weights(one, two, 0.0) else _within(one, two)
    return "another model of the same outputs" if _equal_outputs(good, spoilt) else None


def _within(one: ModelProto, two: ModelProto) -> str | None:
    return "numbers within the tolerance" if _equal_weights(one, two, NEAR) else None


def _bare(model: ModelProto) -> bytes:
    """Returns the graph as bytes, without weights, names of nodes and remarks."""
    copy = ModelProto.FromString(model.SerializeToString())
    for tensor in copy.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
    for node in copy.graph.node:
        node.name = node.doc_string = ""
    return copy.graph.SerializeToString()


def _equal_weights(one: ModelProto, two: ModelProto, tolerance: float) -> bool:
    for a, b in zip(one.graph.initializer, two.graph.initializer, strict=True):
        first, second = numpy_helper.to_array(a), numpy_helper.to_array(b)
        if float(np.abs(first - second).max(initial=0)) > tolerance * float(np.abs(first).max(initial=0)):
            return False
    return True


def _equal_outputs(good: Path, spoilt: Path) -> bool:
    """Tells whether two models compute the same outputs for several random inputs, bit for bit."""
    rng = np.random.default_rng(0)
    sessions = [_session(path) for path in (good, spoilt)]
    names = [o.name for o in sessions[0].get_outputs()]
    for _ in range(ROUNDS):
        inputs = {i.name: rng.standard_normal(i.shape, dtype=np.float32) for i in sessions[0].get_inputs()}
        one, two = (session.run(names, inputs) for session in sessions)
        if not all(np.array_equal(a, b) for a, b in zip(one, two, strict=True)):
            return False
    return True


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
