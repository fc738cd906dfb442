"""`raptor harden`: the function stays, the predicted noise is that of drawn errors, clips help or there are none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import ModelProto, load_model_from_string

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.options import ModelInputs
from raptor.tools.cli.app import build_commands
from raptor.tools.harden.channel_scales import find_channel_scales
from raptor.tools.harden.clip_weights import clip_layer
from raptor.tools.harden.equalise import MOST_SCALE, choose_scales, describe_noise, smooth_noise
from raptor.tools.harden.harden_model import measure_moments
from raptor.tools.harden.weight_layers import LayerConstants
from raptor.tools.quantise.prepare_model import prepare_floats
from tests.tiny_models import make_model, node, random

COMMAND = build_commands()
Array = np.ndarray[Any, Any]


def uneven(*shape: int, seed: int = 0) -> Array:
    """Random weights whose input channels differ by up to a factor of 30, so that equalisation has something to do."""
    factors = np.exp(np.random.default_rng(seed + 1).uniform(-2, 2, (1, shape[1]) + (1,) * (len(shape) - 2)))
    return (random(*shape, seed=seed) * factors).astype(np.float32)


def conv(given: str, name: str, outputs: int, inputs: int, **attributes: Any) -> tuple[Any, Mapping[str, Array]]:
    weights = {f"{name}.w": uneven(outputs, inputs, 3, 3, seed=len(name)), f"{name}.b": random(outputs)}
    made = node("Conv", f"{given} {name}.w {name}.b", name, name=name, pads=[1] * 4, **attributes)
    return made, weights


def build(*parts: Any, outputs: Mapping[str, int], size: int = 6) -> ModelProto:
    nodes, constants = [], {}
    for part in parts:
        made, more = part if isinstance(part, tuple) else (part, {})
        nodes.append(made)
        constants |= more
    return make_model(nodes, {"x": [1, 3, size, size]}, outputs, constants)


MODELS = {
    "chain": lambda: build(
        conv("x", "a", 8, 3), node("Relu", "a", "r"), conv("r", "b", 4, 8), outputs={"b": 4}
    ),
    "pool and dense": lambda: build(
        conv("x", "a", 8, 3),
        node("LeakyRelu", "a", "r", alpha=0.1),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", "f"),
        (node("Gemm", "f w v", "g", name="g"), {"w": uneven(5, 72).T.copy(), "v": random(5)}),
        node("Relu", "g", "h", name="h"),
        (node("MatMul", "h u", "y", name="m"), {"u": uneven(4, 5).T.copy()}),
        outputs={"y": 2},
    ),
    "residual": lambda: build(
        conv("x", "a", 8, 3),
        node("Relu", "a", "r"),
        conv("r", "b", 8, 8),
        node("Add", "b r", "s"),
        conv("s", "c", 2, 8),
        outputs={"c": 4},
    ),
    "depthwise and groups": lambda: build(
        conv("x", "a", 8, 3),
        conv("a", "d", 8, 1, group=8),
        node("Relu", "d", "r"),
        conv("r", "e", 6, 4, group=2),
        node("GlobalAveragePool", "e", "p"),
        conv("p", "f", 2, 6),
        outputs={"f": 4},
    ),
    "concat and constant": lambda: build(
        conv("x", "a", 4, 3),
        conv("x", "b", 5, 3),
        node("Concat", "a b", "c", axis=1),
        (node("Add", "c k", "s", name="s"), {"k": random(1, 9, 1, 1)}),
        node("PRelu", "s slope", "r"),
        (node("Identity", "r", "i"), {"slope": np.full((1,), 0.2, np.float32)}),
        conv("i", "e", 2, 9),
        outputs={"e": 4},
    ),
}  # fmt: skip


def samples(size: int = 6, count: int = 8) -> list[dict[str, Array]]:
    return [{"x": random(1, 3, size, size, seed=k)} for k in range(count)]


def prepared(model: ModelProto, folder: Path) -> LayerConstants:
    return LayerConstants(prepare_floats(model, ModelInputs(), 21, folder).proto)


@pytest.mark.parametrize("name", MODELS)
def test_the_function_stays_and_the_noise_falls(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.concatenate([s["x"] for s in samples()]))
    found = raptor.harden(MODELS[name](), cells="reram-milo", data=tmp_path / "data.npz")
    assert found.report.difference <= 1e-5
    assert found.report.scaled_channels > 0
    noises = [layer.noise for layer in found.report.layers]
    assert max(noises) <= 1 + 1e-6
    assert min(noises) < 0.95


def test_a_sigmoid_lets_no_scale_through(tmp_path: Path) -> None:
    model = build(conv("x", "a", 8, 3), node("Sigmoid", "a", "r"), conv("r", "b", 4, 8), outputs={"b": 4})
    np.savez(tmp_path / "data.npz", x=np.concatenate([s["x"] for s in samples()]))
    before = prepared(model, tmp_path)
    found = raptor.harden(model, cells="reram-milo", data=tmp_path / "data.npz")
    assert found.report.scaled_channels == 0
    after = LayerConstants(load_model_from_string(found.onnx_bytes))
    assert all(np.array_equal(before.read_value(n), after.read_value(n)) for n in ("a.w", "a.b", "b.w", "b.b"))


def noises(model: ModelProto, folder: Path) -> tuple[Any, LayerConstants, Any]:
    constants = prepared(model, folder)
    found = find_channel_scales(constants)
    moments = measure_moments(constants.model, [s.layer.node.input[0] for s in found.layers], samples())
    return found, constants, describe_noise(found, constants, {name: m.power for name, m in moments.items()})


def test_the_gradient_is_that_of_finite_differences(tmp_path: Path) -> None:
    found, _, layers = noises(MODELS["depthwise and groups"](), tmp_path)
    rng = np.random.default_rng(0)
    for layer in layers:
        logs = np.concatenate([[0], rng.uniform(-1, 1, found.count - 1)])
        start, _ = smooth_noise(layer, np.zeros(found.count))
        gradient = np.zeros(found.count)
        np.add.at(gradient, layer.scaled.inputs, smooth_noise(layer, logs, start)[1])
        for at in np.unique(layer.scaled.inputs):
            step = 1e-5 * (np.arange(found.count) == at)
            high, low = ((smooth_noise(layer, logs + s, start)[0] / start).mean() for s in (step, -step))
            assert gradient[at] == pytest.approx((high - low) / 2e-5, rel=1e-4, abs=1e-8)


def test_the_noise_is_that_of_drawn_errors(tmp_path: Path) -> None:
    """Errors of every weight are drawn, 4000 times, for a dense layer before and after."""
    found, constants, layers = noises(MODELS["pool and dense"](), tmp_path)
    layer = next(x for x in layers if x.scaled.layer.name == "m")
    scales = choose_scales(layers, found.count)
    assert scales[0] == 1
    assert np.all((scales >= 1 / MOST_SCALE - 1e-9) & (scales <= MOST_SCALE + 1e-9))
    moments = measure_moments(constants.model, ["h"], samples())["h"]
    inputs = np.sqrt(moments.power)
    drawn = np.random.default_rng(0).standard_normal((4000, *layer.weights.shape))
    weights = layer.scaled.layer.arrange(constants.read_value("u"))[:, :, 0]
    factors = layer.scaled.input_scales(scales)
    measured = [
        ((np.abs(weights / f).max(axis=1, keepdims=True) * drawn) @ np.diag(inputs * f[0])).sum(axis=2).var(axis=0)
        for f in (np.ones_like(factors), factors)
    ]
    wanted = layer.measure(scales) / layer.measure(np.ones(found.count))
    assert measured[1] / measured[0] == pytest.approx(wanted, rel=0.15)


def test_clips_are_none_without_errors_and_lessen_them(tmp_path: Path) -> None:
    found, constants, _ = noises(MODELS["chain"](), tmp_path)
    layer, rng = found.layers[1], np.random.default_rng(0)
    moments = measure_moments(constants.model, ["r"], samples())
    before = constants.read_value("b.w").copy()
    assert clip_layer(layer, constants, moments, 0.0) == 0
    assert np.array_equal(constants.read_value("b.w"), before)
    bias = constants.read_value("b.b").copy()
    assert clip_layer(layer, constants, moments, 0.2) > 0
    inputs = moments["r"]
    x = inputs.mean + np.sqrt(inputs.power - inputs.mean**2) * rng.standard_normal((4000, 9, 8))

    def error(weights: Array, shift: Array) -> float:
        """Returns the mean square of the error of the layer, for independent inputs and for errors of 0.2."""
        peak = np.abs(weights).max(axis=(1, 2, 3), keepdims=True)
        held = weights[None] + 0.2 * peak * rng.standard_normal((4000, *weights.shape))
        wrong = np.einsum("nocp,npc->no", (held - before).reshape(4000, *before.shape[:2], 9), x) + shift
        return float((wrong**2).mean())

    after = constants.read_value("b.w"), constants.read_value("b.b") - bias
    assert error(*after) < 0.97 * error(before, np.zeros_like(bias))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cells", "isaac"], "its cells have no errors, so there is nothing to harden for"),
        (["--cells", "reram-milo", "--weights", "5"], "5: expected 8 or 4"),
        (["--cells", "reram-milo", "--with", "seed=x"], "seed=x: expected a whole number"),
        (["--cells", "nowhere"], "nowhere"),
        (["--cells", "reram-milo", "-o", "there.onnx"], "there.onnx: exists"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", image=load_images()[0].pixels[:2])
    Path("there.onnx").touch()
    result = CliRunner().invoke(COMMAND, ["harden", str(MODEL), "--data", "data.npz", *options])
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.npz", "there.onnx"]


def test_the_command_writes_a_model_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", image=load_images()[0].pixels[:20])
    words = ["harden", str(MODEL), "--data", "data.npz", "--cells", "reram-milo", "--clip", "--json", "report.json"]
    shown = CliRunner().invoke(COMMAND, words)
    assert shown.exit_code == 0, shown.exception
    assert "hardened for reram-milo, with 20 inputs: digits-hardened.onnx" in shown.output
    assert Path("report.json").read_text().startswith('{\n  "version": 1')
    first = Path("digits-hardened.onnx").read_bytes()
    CliRunner().invoke(COMMAND, [*words, "--force"])
    assert Path("digits-hardened.onnx").read_bytes() == first
