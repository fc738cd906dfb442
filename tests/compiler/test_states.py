"""States and constants that stay on the chip: values from step to step, against onnxruntime with its own states."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.common.errors import UserError
from raptor.compiler.analysis.explain import explain
from raptor.integrations.onnxruntime_session import InferenceSession
from raptor.target import isa
from tests.stateful_models import (
    Reference,
    cached_convolution,
    counted,
    exchanged,
    packed_states,
    recurrent_image,
    recurrent_step,
    window,
)
from validator.execution.stepped_run import SteppedRun, run_sequence
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.validate import validate

STEPS = 6
LSTM = {"h0": "hn", "c0": "cn"}
MODELS: dict[str, tuple[ModelProto, dict[str, str]]] = {
    "gru": (recurrent_step("GRU"), {"h0": "hn"}),
    "lstm": (recurrent_step("LSTM"), LSTM),
    "rnn": (recurrent_step("RNN"), {"h0": "hn"}),
    "cache": (cached_convolution(), {"cache": "cache_out"}),
    "window": (window(), {"rows": "rows_out"}),
    "image": (recurrent_image(), {"state": "next_state"}),
    "counter": (counted(), {"n": "n_out"}),
    "packed": (packed_states(), {"state": "next_state"}),
    **{kind: exchanged(kind) for kind in ("kept", "delayed", "swapped", "shifted")},
}


def compiled(proto: ModelProto, folder: Path, pairs: dict[str, str], **options: Any) -> LoadedProgram:
    options = {"cores": 12, "xbar": 16, **options}
    return load_output(raptor.compile(proto, states=pairs, **options).save(folder, stream_format="pim"))


def follow(program: LoadedProgram, reference: Reference, steps: int = STEPS) -> None:
    """Steps through program and reference from the same first states, and compares all outputs of each step."""
    chip, first = SteppedRun(program), dict(reference.states)
    for number, (inputs, wanted) in enumerate(reference.steps(steps)):
        found = chip.step({**inputs, **(first if number == 0 else {})})
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=f"step {number}: {name}")


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("name", MODELS)
def test_states_stay_on_the_chip(name: str, mapping: str, tmp_path: Path):
    proto, pairs = MODELS[name]
    program = compiled(proto, tmp_path / "out", pairs, mapping=mapping)
    assert {place.name for place in program.memory.outputs}.isdisjoint(pairs.values())
    follow(program, Reference(proto, pairs))


@pytest.mark.parametrize("name", ["gru", "cache", "counter"])
def test_with_constants_that_stay(name: str, tmp_path: Path):
    proto, pairs = MODELS[name]
    program = compiled(proto, tmp_path / "out", pairs, resident_constants=True)
    follow(program, Reference(proto, pairs))
    assert count_loads(program) < count_loads(compiled(proto, tmp_path / "loads", pairs))


def count_loads(program: LoadedProgram) -> int:
    """Number of loads of one sample."""
    return sum(int((stream["opcode"] == isa.OPCODE["ld"]).sum()) for stream in program.streams)


@pytest.mark.parametrize("name", ["lstm", "image"])
def test_the_order_of_the_cores_does_not_matter(name: str, tmp_path: Path):
    proto, pairs = MODELS[name]
    folder = tmp_path / "out"
    compiled(proto, folder, pairs)
    for schedule in ("block", "round-robin"):
        report = validate(folder, samples=4, schedule=schedule, engine="python")
        assert report.verdict == "pass"


def test_validation_has_states_of_its_own(tmp_path: Path):
    proto, pairs = MODELS["gru"]
    compiled(proto, tmp_path / "out", pairs)
    report = validate(tmp_path / "out", samples=7)
    assert report.verdict == "pass"
    assert [output.name for output in report.outputs] == ["y", "hn"]


def test_a_sequence(tmp_path: Path):
    proto, pairs = MODELS["gru"]
    program, reference = compiled(proto, tmp_path / "out", pairs), Reference(proto, pairs)
    first, steps = dict(reference.states), list(reference.steps(5))
    found = run_sequence(program, {"x": np.stack([inputs["x"] for inputs, _ in steps]), **first})
    np.testing.assert_allclose(found["y"], [wanted["y"] for _, wanted in steps], atol=1e-5)
    np.testing.assert_allclose(found["hn"], steps[-1][1]["hn"], atol=1e-5)
    with pytest.raises(UserError, match=r"input 'x': expected \[1, 1, 6\], or a sequence of steps"):
        run_sequence(program, {"x": np.zeros((5, 1, 6), np.float32)})


def test_sessions_take_turns(tmp_path: Path):
    proto, pairs = MODELS["lstm"]
    program = compiled(proto, tmp_path / "out", pairs, resident_constants=True)
    chip, users = SteppedRun(program), [Reference(proto, pairs, seed) for seed in range(8)]
    kept = [dict(user.states) for user in users]
    for turn in np.random.default_rng(5).integers(0, 8, 40).tolist():
        chip.restore(kept[turn])
        inputs, wanted = users[turn].step()
        found = chip.step(inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, atol=2e-5)
        kept[turn] = chip.save()
    chip.reset()
    assert all(not array.any() for array in chip.save().values())


def test_a_session_is_one_of_onnxruntime(tmp_path: Path):
    proto, pairs = MODELS["gru"]
    session, reference = InferenceSession(proto, states=pairs, cores=12, xbar=16), Reference(proto, pairs)
    session.run(None, {"x": reference.draw("x")})  # leaves a state
    first = dict(reference.states)
    for number, (inputs, wanted) in enumerate(reference.steps(3)):
        found = session.run(["hn", "y"], {**inputs, **(first if number == 0 else {})})
        np.testing.assert_allclose(found[0], wanted["hn"], atol=1e-5)
        np.testing.assert_allclose(found[1], wanted["y"], atol=1e-5)
    session.reset()
    zero = session.run(["y"], {"x": inputs["x"]})
    again = session.run(["y"], {"x": inputs["x"], "h0": np.zeros((1, 1, 8), np.float32)})
    np.testing.assert_array_equal(zero, again)


def test_what_has_no_states_is_unchanged(tmp_path: Path):
    proto, _ = MODELS["gru"]
    plain = raptor.compile(proto, cores=12, xbar=16).save(tmp_path / "a")
    again = raptor.compile(proto, cores=12, xbar=16, resident_constants=False).save(tmp_path / "b")
    assert sorted(p.name for p in plain.iterdir()) == sorted(p.name for p in again.iterdir())
    assert not (plain / "resident.json").exists()
    assert (plain / "manifest.json").read_bytes() == (again / "manifest.json").read_bytes()


def test_a_row_that_nothing_reads_is_held(tmp_path: Path):
    """The oldest row of a window is part of the state, which a session returns as a whole."""
    program = compiled(window(), tmp_path / "out", {"rows": "rows_out"})
    (state,) = program.resident.states
    rows = {row for tile in state.tiles for row in range(*tile.region.rows)}
    assert rows == set(range(5))


@pytest.mark.parametrize("name", ["gru", "cache"])
def test_an_explanation_tells_what_states_on_the_chip_gain(name: str, tmp_path: Path):
    """The step with states on the chip is near what the program without them tells, or shorter: its mapping differs."""
    proto, pairs = MODELS[name]
    alone = raptor.compile(proto, cores=12, xbar=16)
    told = [line for line in explain(alone.save(tmp_path / "alone")).advice if "can stay on the chip" in line]
    assert len(told) == 1
    least_us, latency_us = (float(text) for text in re.findall(r"([\d.]+) us", told[0]))
    kept = raptor.compile(proto, cores=12, xbar=16, states=pairs)
    step_ns = kept.simulate(mode="throughput").interval_ns or 0.0
    assert step_ns < min(1.5 * least_us, latency_us) * 1e3
    assert f"which is {latency_us / least_us:.1f} times as long" in told[0]
    assert not [line for line in explain(kept.save(tmp_path / "kept")).advice if "can stay on the chip" in line]
