"""States of quantised models: one scale for an input and its next value, ranges from steps of the float model."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import raptor
from raptor.common.errors import UserError
from raptor.tools.quantise.qdq_pairs import QdqModel
from tests.stateful_models import cached_convolution, elman_step, recurrent_step
from tests.tiny_models import Array, node
from validator.validate import validate

CHIP: dict[str, Any] = {"cores": 8, "states": "auto", "resident_constants": True}
MODELS = {
    "relu": elman_step(),
    "sigmoid": elman_step(activation="Sigmoid"),
    "tanh": elman_step(activation="Tanh"),
    "cache": cached_convolution(),
}


def scales(quantised: raptor.Quantisation) -> dict[str, tuple[float, int]]:
    """Returns scale and zero point of each quantised tensor."""
    found = QdqModel(onnx.load_from_string(quantised.onnx_bytes))
    values = {name: numpy_helper.to_array(tensor) for name, tensor in found.constants.items()}
    pairs = ((pair.tensor, pair.quantise.input[1:3]) for pair in found.pairs())
    return {tensor: (float(values[scale]), int(values[zero])) for tensor, (scale, zero) in pairs}


def quantised(model: ModelProto, **options: Any) -> raptor.Quantisation:
    return raptor.quantize(model, **{"states": "auto", "samples": 8, **options})


def growing(folder: Path, shape: tuple[int, ...]) -> Path:
    """Writes a sequence whose last step makes the largest state, which no step of the sequence reads."""
    factors = np.arange(1, 9).reshape(8, *[1] * len(shape))
    np.savez(folder / "data.npz", x=factors * np.random.default_rng(6).standard_normal((8, *shape)))
    return folder / "data.npz"


@pytest.mark.parametrize("scheme", ["s8s8", "u8s8", "pow2"])
@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_state_stays_on_the_chip(name: str, scheme: str, tmp_path: Path):
    data = growing(tmp_path, (1, 5, 1) if name == "cache" else (1, 6))
    made = quantised(MODELS[name], scheme=scheme, data=data)
    assert (made.report.snr_db or 0) > 25
    found = scales(made)
    states = ("cache", "cache_out") if name == "cache" else ("h0", "hn")
    assert found[states[0]] == found[states[1]]
    out = raptor.compile(onnx.load_from_string(made.onnx_bytes), **CHIP).save(tmp_path / "out")
    assert validate(out, samples=12).verdict == "pass"


def test_a_state_that_is_an_output_and_read_again(tmp_path: Path):
    """The quantiser leaves the Identity that names the output behind the DequantizeLinear of what other nodes read."""
    cell = elman_step()
    nodes = [*cell.graph.node]
    for each in nodes:
        each.input[:] = ["inner" if name == "hn" else name for name in each.input]
        each.output[:] = ["inner" if name == "hn" else name for name in each.output]
    cell.graph.node.append(node("Identity", "inner", "hn"))
    made = quantised(cell, data=growing(tmp_path, (1, 6)))
    found = scales(made)
    assert found["h0"] == found["inner"]
    assert raptor.compile(onnx.load_from_string(made.onnx_bytes), **CHIP)


def test_without_the_option_a_state_has_two_scales():
    alone = raptor.quantize(elman_step(), samples=8)
    found = scales(alone)
    assert found["h0"] != found["hn"]
    with pytest.raises(UserError, match="the same option of raptor quantize gives them one scale"):
        raptor.compile(onnx.load_from_string(alone.onnx_bytes), **CHIP)


def steps_by_hand(model: ModelProto, frames: Array, first: Array) -> float:
    """Returns the largest value of the state in a sequence."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    state, most = first, 0.0
    for frame in frames:
        state = np.maximum(frame @ weights["w0"] + state @ weights["wh"] + weights["bias"], 0)
        most = max(most, float(state.max()))
    return most


@pytest.mark.parametrize("case", ["sequences", "first states", "one sequence"])
def test_ranges_are_those_of_steps(case: str, tmp_path: Path):
    rng, model = np.random.default_rng(5), elman_step()
    frames = rng.standard_normal((3, 6, 1, 6)).astype(np.float32)
    first = np.abs(rng.standard_normal((3, 1, 12))).astype(np.float32) * (20 if case == "first states" else 0)
    arrays = {"x": frames[0] if case == "one sequence" else frames}
    np.savez(tmp_path / "data.npz", **arrays, **({"h0": first} if case == "first states" else {}))
    begun = [*zip(frames, first, strict=True)][: 1 if case == "one sequence" else 3]
    most = max(steps_by_hand(model, *each) for each in begun)
    found = scales(quantised(model, data=tmp_path / "data.npz", samples=None))
    assert found["hn"][0] == pytest.approx(most / 127, rel=0.01)


def test_so_many_steps_of_a_sequence(tmp_path: Path):
    np.savez(tmp_path / "data.npz", x=np.ones((9, 1, 6), np.float32))
    assert quantised(elman_step(), data=tmp_path / "data.npz", samples=4).report.samples == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": {"h0": "y"}}, r"the input is \[1, 12\], and the output \[1, 3\]"),
        ({"states": {"h0": "zz"}}, "no output zz; it has y, hn"),
        ({"states": {"zz": "hn"}}, "no input zz; it has x, h0"),
        ({"states": 3}, "expected outputs by input"),
    ],
)
def test_wrong_states_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        quantised(elman_step(), **options)


def test_names_without_states_are_refused():
    model = elman_step()
    with pytest.raises(UserError, match="no output has the name and the shape"):
        quantised(renamed_tensor(model, "hn", "other"))


def renamed_tensor(model: ModelProto, old: str, new: str) -> ModelProto:
    """Returns a model with another name of a tensor."""
    renamed = ModelProto()
    renamed.CopyFrom(model)
    for each in renamed.graph.node:
        each.input[:] = [new if name == old else name for name in each.input]
        each.output[:] = [new if name == old else name for name in each.output]
    for value in renamed.graph.output:
        value.name = new if value.name == old else value.name
    return renamed


def test_values_that_are_no_numbers_are_refused(tmp_path: Path):
    np.savez(tmp_path / "data.npz", x=np.full((4, 1, 6), np.nan, np.float32))
    with pytest.raises(UserError, match="24 of 24 numbers of 'x' are not finite"):
        quantised(elman_step(), data=tmp_path / "data.npz")


def test_a_state_that_stays_in_float_has_no_scale():
    """onnxruntime's quantiser leaves recurrent layers in float."""
    assert "h0" not in scales(quantised(recurrent_step("GRU")))


def test_bits_of_layers_are_searched_with_states():
    from raptor.tools.quantise.precision_search import search_policy

    found = search_policy(elman_step(), budget={"latency": 0.999}, samples=4, states="auto", cores=8)
    made = quantised(elman_step(), policy=found)
    assert scales(made)["h0"] == scales(made)["hn"]
