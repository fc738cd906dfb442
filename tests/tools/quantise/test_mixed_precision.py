"""Mixed precision: widths of single layers, and the search for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.tools.cli import app
from raptor.tools.quantise import Policy
from raptor.tools.quantise.mixed_precision import find_weighted_layers
from raptor.tools.quantise.precision_search import PrecisionStep, PrecisionSteps, _PolicySearch, make_policy
from raptor.tools.quantise.qdq_pairs import DQ, QdqModel
from tests.tiny_models import make_model, node, random
from tests.tools.quantise.support import constants, run, small_cnn

CHIP: dict[str, Any] = {"xbar": 16, "cores": 2, "cell_bits": 2}


def two_layers() -> onnx.ModelProto:
    nodes = [node("Gemm", "x w1", "h", name="fc1"), node("Relu", "h", "r"), node("Gemm", "r w2", "y", name="fc2")]
    return make_model(nodes, {"x": (1, 24)}, ["y"], {"w1": random(24, 40, seed=1), "w2": random(40, 8, seed=2)})


@pytest.fixture(scope="module")
def found() -> Any:
    return raptor.search_policy(two_layers(), budget={"latency": 0.9}, samples=4, **CHIP)


@pytest.mark.parametrize("scheme", ["s8s8", "u8s8", pytest.param("pow2", marks=pytest.mark.slow)])
def test_inputs_of_other_widths(scheme: Any) -> None:
    """The input of conv2 is read by a sum, too, so it is quantised once more; that of fc gets the width itself."""
    source = small_cnn()
    conv1, conv2, fc = find_weighted_layers(onnx.load_from_string(raptor.quantize(source, samples=1).onnx_bytes))
    policy = Policy(weights={conv1: 4}, inputs={conv2: 4, fc: 4})
    quantised = raptor.quantize(source, samples=4, scheme=scheme, policy=policy)
    model = QdqModel(onnx.load_from_string(quantised.onnx_bytes))
    layers = find_weighted_layers(model.proto)
    restored = {name: model.producers[layer.input[0]] for name, layer in layers.items()}
    kinds = {name: model.constants[dq.input[2]].data_type for name, dq in restored.items()}
    narrow, wide = (TensorProto.UINT4, TensorProto.UINT8) if scheme == "u8s8" else (TensorProto.INT4, TensorProto.INT8)
    assert kinds == {conv1: wide, conv2: narrow, fc: narrow}
    before = model.producers[model.producers[restored[conv2].input[0]].input[0]]
    assert before.op_type == DQ
    assert model.constants[before.input[2]].data_type == wide
    assert model.producers[model.producers[restored[fc].input[0]].input[0]].op_type != DQ
    assert raptor.compile(model.proto, cores=16, xbar=32).validate().passed


def test_codes_of_four_bits_reach_as_far_as_those_of_eight() -> None:
    source = two_layers()
    ranges = []
    for policy in (Policy(), Policy(inputs={"fc2": 4})):
        model = QdqModel(onnx.load_from_string(raptor.quantize(source, samples=4, policy=policy).onnx_bytes))
        restore = model.producers[find_weighted_layers(model.proto)["fc2"].input[0]]
        scale = constants(model.proto)[restore.input[1]]
        ranges.append(scale * (7 if policy.inputs else 127))
    assert ranges[0] == pytest.approx(ranges[1])


def test_biases_follow_the_scale_of_the_input() -> None:
    """With weights and inputs of 4 bits, a wrong scale of the bias would be far off: it is larger than the sums."""
    weights = {"w": np.full((8, 4), 0.01, np.float32), "b": np.array([5, -5, 7, 9], np.float32)}
    nodes = [node("Relu", "x", "r"), node("Gemm", "r w b", "y", name="fc")]
    source = make_model(nodes, {"x": (1, 8)}, ["y"], weights)
    model = raptor.quantize(source, samples=4, policy=Policy(weights={"fc": 4}, inputs={"fc": 4})).onnx_bytes
    (found,) = run(model, {"x": np.zeros((1, 8), np.float32)})
    assert found == pytest.approx(weights["b"][None], abs=0.1)


def test_the_program_of_the_result_costs_what_was_found(found: Any) -> None:
    """The written model, compiled and simulated in the usual way, has the latency that the search tells."""
    quantised = raptor.quantize(two_layers(), samples=4, policy=found)
    program = raptor.compile(onnx.load_from_string(quantised.onnx_bytes), **CHIP)
    assert program.simulate().latency_ns == found.reached
    assert found.reached <= 0.9 * found.base
    assert quantised.report.search == found
    plain = raptor.compile(onnx.load_from_string(raptor.quantize(two_layers(), samples=4).onnx_bytes), **CHIP)
    assert plain.simulate().latency_ns == found.base


class _Made(_PolicySearch):
    """A search in which each set of moves costs what a function says."""

    costs_of: Any
    noise: Mapping[PrecisionStep, float]

    def _noise(self) -> dict[PrecisionStep, float]:
        return dict(self.noise)

    def _moves(self) -> PrecisionSteps:
        return tuple(self.noise)

    def cost(self, moves: PrecisionSteps) -> float:
        return self.costs.setdefault(frozenset(moves), self.costs_of(moves))


A, B, C = (PrecisionStep(name, "weights") for name in "abc")


def search(costs: Any, noise: dict[PrecisionStep, float], share: float) -> Any:
    made = _Made(None, None, None, "latency", lambda _: None)  # pyright: ignore[reportArgumentType] nothing is compiled
    made.costs_of, made.noise = costs, noise
    return made.run(share)


def _sum(gains: dict[PrecisionStep, float]) -> Any:
    return lambda moves: 100 - sum(gains[m] for m in moves)


def test_the_best_gain_for_the_noise_comes_first() -> None:
    gains, noise = {A: 30.0, B: 20.0, C: 1.0}, {A: 0.5, B: 0.1, C: 0.1}
    assert search(_sum(gains), noise, 0.85).policy == make_policy([B])
    assert search(_sum(gains), noise, 0.55).policy == make_policy([B, A])


def test_steps_without_a_gain_are_taken_if_they_make_way_for_others() -> None:
    """The slower one of two layers binds; each alone changes nothing."""

    def slower(moves: PrecisionSteps) -> float:
        return max(100 - 40 * (A in moves), 100 - 50 * (B in moves)) - (C in moves)

    found = search(slower, {A: 0.2, B: 0.2, C: 10.0}, 0.7)
    assert found.policy == make_policy([A, B])


def test_what_is_not_needed_any_more_is_taken_back() -> None:
    """The first step looked good alone; after the second one it saves nothing."""

    def late(moves: PrecisionSteps) -> float:
        return 100 - max(10 * (A in moves), 60 * (B in moves))

    found = search(late, {A: 0.1, B: 1.0, C: 1.0}, 0.5)
    assert found.policy == make_policy([B])


def test_what_cannot_be_reached_is_told() -> None:
    with pytest.raises(UserError, match=r"least that was reached is 0\.490, with 4 bits in 3 of 3 weights"):
        search(_sum({A: 30.0, B: 20.0, C: 1.0}), {A: 0.5, B: 0.1, C: 0.1}, 0.4)


def test_a_program_that_does_not_fit_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _PolicySearch._simulated

    def small(self: _PolicySearch, model: Any) -> float:
        if any(t.data_type == TensorProto.INT4 for t in model.graph.initializer):
            raise CapacityError("it does not fit", 2, 1, where="", levers=())
        return whole(self, model)

    monkeypatch.setattr(_PolicySearch, "_simulated", small)
    with pytest.raises(UserError, match=r"least that was reached is 1\.000, with 4 bits in 0 of 4"):
        raptor.search_policy(two_layers(), budget={"latency": 0.9}, samples=1, **CHIP)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "budget: expected one goal|budget=: expected one goal"),
        ({"latency": 0.5, "energy": 0.5}, "expected one goal, got 2"),
        ({"latency": 1.5}, "expected a share between 0 and 1"),
        ({"area": 0.5}, "budget='area': expected one of: latency, energy"),
        ("latency", "a share by its goal"),
    ],
)
def test_budgets_that_are_none(budget: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        raptor.search_policy(two_layers(), budget=budget)


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main(["quantize", "model.onnx", *words])
    return int(ended.value.code or 0)


def test_the_command_writes_a_policy_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(two_layers(), "model.onnx")
    chip = ("--xbar", "16", "--cores", "2", "--cell-bits", "2", "--samples", "4")
    assert call("--mixed", "--budget", "latency=0.9", *chip, "-o", "a.onnx", "--policy-out", "policy.json") == 0
    assert f"share {found.ratio:.3f}" in capsys.readouterr().out
    assert Policy.model_validate_json(Path("policy.json").read_bytes()) == found.policy
    assert call("--policy", "policy.json", "--samples", "4", "-o", "b.onnx") == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert call("--mixed", "--budget", "latency=0.01", *chip, "-o", "c.onnx", "--policy-out", "none.json") == 2
    assert "the least that was reached is" in capsys.readouterr().err
    assert not Path("c.onnx").exists()
    assert not Path("none.json").exists()


def test_policies_that_are_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"weights": {"fc1": 5}}')
    with pytest.raises(UserError, match="weights"):
        raptor.quantize(two_layers(), policy=bad)
    bad.write_text('{"inputs": {"nowhere": 4}}')
    with pytest.raises(UserError, match=r"'nowhere'.*: no layer with weights that are quantised; layers are fc1, fc2"):
        raptor.quantize(two_layers(), samples=1, policy=bad)
    with pytest.raises(UserError, match="layers=: not with policy="):
        raptor.quantize(two_layers(), policy=bad, layers={"fc1": 4})
