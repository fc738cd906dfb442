"""Why a spoilt directory that passes may pass: it says the same as the good one, or differs by less than the tolerance.

Programs are compared as functions, not by one run: weights, constants and inputs are replaced by random numbers, the
same for both, and all outputs and probes must come out the same, bit for bit, several times. Numbers in which the two
differ are drawn for each apart, so that only those that nothing depends on may differ.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from validator.load import load
from validator.program import Program
from validator.run import run

NEAR = 1e-3
"""Of the largest: a number that moves by less moves the outputs in proportion, and those the validator has judged."""
ROUNDS = 3

Floats = npt.NDArray[np.float32]


def reason(good: Path, spoilt: Path) -> str | None:
    """Why `spoilt`, which validates, may do so; None if there is no reason."""
    one, two = load(good), load(spoilt, check_hashes=False)
    what = _same_values(one, two)
    model = _same_model(good / "model.onnx", spoilt / "model.onnx")
    if what is None or model is None or not _same_function(one, two):
        return None
    reasons = dict.fromkeys(r for r in (what, model) if r)
    if not reasons:
        same = all(np.array_equal(a, b) for a, b in zip(one.streams, two.streams, strict=True))
        reasons = {"nothing executed changed" if same and one.memory == two.memory else "the same function": None}
    return " and ".join(reasons)


def _same_values(one: Program, two: Program) -> str | None:
    """Empty if weights and constants are equal."""
    pairs = ((one.weights.values, two.weights.values), (one.constants, two.constants))
    if any(a.shape != b.shape for a, b in pairs):
        return None
    if all(np.array_equal(a, b) for a, b in pairs):
        return ""
    if all(_near(a, b) for a, b in pairs):
        return "numbers within the tolerance"
    return "numbers that nothing depends on"  # if that is so, `_same_function` finds out


def _near(a: Floats, b: Floats) -> bool:
    return a.size == 0 or float(np.abs(a - b).max()) <= NEAR * float(np.abs(a).max())


def _same_function(one: Program, two: Program) -> bool:
    return all(_same_outputs(one, two, np.random.default_rng(k)) for k in range(ROUNDS))


def _same_outputs(one: Program, two: Program, rng: np.random.Generator) -> bool:
    weights, constants = _drawn(one.weights.values, two.weights.values, rng), _drawn(one.constants, two.constants, rng)
    inputs = {p.name: rng.standard_normal(p.shape, dtype=np.float32) for p in one.memory.inputs}
    results = [
        run(replace(program, weights=replace(program.weights, values=w), constants=c), inputs, probes=True)
        for program, w, c in zip((one, two), weights, constants, strict=True)
    ]
    outputs, probes = ((results[0].outputs, results[1].outputs), (results[0].probes, results[1].probes))
    if outputs[0].keys() != outputs[1].keys():
        return False
    return all(  # of an inner tensor that is not listed nothing is said
        name in first and np.array_equal(first[name], second[name], equal_nan=True)
        for first, second in (outputs, probes)
        for name in second
    )


def _drawn(one: Floats, two: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Random numbers for both: the same where they are equal or nearly so."""
    first, second = (rng.uniform(0.5, 2, one.shape).astype(np.float32) for _ in range(2))
    signs = np.where(rng.random(one.shape) < 0.5, np.float32(-1), np.float32(1))
    same = (one == two) if not _near(one, two) else np.ones(one.shape, np.bool_)
    return first * signs, np.where(same, first, second) * signs


def _same_model(good: Path, spoilt: Path) -> str | None:
    """Empty if both are the same but for names and remarks; None if they compute something else."""
    if good.read_bytes() == spoilt.read_bytes():
        return ""
    one, two = (onnx.load(str(path)) for path in (good, spoilt))
    if _bare(one) == _bare(two):
        return "" if _equal_weights(one, two, 0.0) else _within(one, two)
    return "another model of the same outputs" if _equal_outputs(good, spoilt) else None


def _within(one: ModelProto, two: ModelProto) -> str | None:
    return "numbers within the tolerance" if _equal_weights(one, two, NEAR) else None


def _bare(model: ModelProto) -> bytes:
    """The graph without weights, names of nodes and remarks."""
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
    """Bit for bit, for several random inputs."""
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
