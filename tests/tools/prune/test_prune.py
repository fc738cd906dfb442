"""`raptor prune`: whole tiles become 0, the rest makes up for them, and the crossbars vanish."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result

import raptor
from models.trained import MODEL, load_images
from raptor.graph.layers import tile_channels
from raptor.target import arch
from raptor.tools.cli.app import build_commands
from raptor.tools.prune.choose_tiles import LayerSums, PruningCurve, choose_counts, cut_tiles, order_tiles, refit
from raptor.tools.prune.held_out import HeldOutSamples, split_samples
from raptor.tools.prune.layer_inputs import find_layers
from raptor.tools.prune.prune_model import PrunedModel, prune_model
from tests.tiny_models import make_model, node, random

COMMAND = build_commands()
CHIP: dict[str, Any] = {"xbar": 16, "cores": 64}


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prune")
    training, test = load_images()
    np.savez(folder / "seen.npz", image=training.pixels[:300])
    np.savez(folder / "test.npz", x=test.pixels[:200], y=test.digits[:200])
    return folder


def prune(model: Any, share: float, data: Path | None = None, mapping: Any = "raptor", **chip: Any) -> PrunedModel:
    target = arch.load("bench", **(chip or CHIP))
    return prune_model(model, target, tile_channels(target), share, mapping, data)


def crossbars(found: PrunedModel) -> tuple[int, int]:
    return sum(x.crossbars for x in found.layers), sum(x.crossbars_before for x in found.layers)


def test_the_crossbars_of_zeros_vanish(data: Path):
    found = prune(str(MODEL), 0.5, data / "seen.npz")
    left, before = crossbars(found)
    assert left <= before / 2
    program = raptor.compile(found.model, **CHIP, mapping="raptor")
    assert program.report.xbars_used <= left  # a channel that is dead takes none, either
    assert raptor.compile(found.before, **CHIP, mapping="raptor").report.xbars_used == before
    assert program.validate(samples=1).passed


def test_other_weights_make_up_for_what_is_gone(data: Path):
    def top1(found: PrunedModel) -> float:
        session = ort.InferenceSession(found.model.SerializeToString())
        name = session.get_inputs()[0].name
        test = np.load(data / "test.npz")
        made = [session.run(None, {name: x.reshape(session.get_inputs()[0].shape)})[0] for x in test["x"]]
        return float(np.mean([scores.argmax() == y for scores, y in zip(made, test["y"], strict=True)]))

    assert top1(prune(str(MODEL), 0.5, data / "seen.npz")) > 0.93
    assert top1(prune(str(MODEL), 0.5)) < 0.5


def test_masks_say_what_stays(data: Path):
    found = prune(str(MODEL), 0.3, data / "seen.npz")
    values = {t.name: onnx.numpy_helper.to_array(t) for t in found.model.graph.initializer}
    for name, mask in found.masks.items():
        assert not values[name][~mask].any()
    assert any(not mask.all() for mask in found.masks.values())


def test_rows_prune_all_kernel_positions(data: Path):
    found = prune(str(MODEL), 0.4, data / "seen.npz", "rows")
    for layer in find_layers(found.model):
        if layer.pixels > 1:
            used = layer.weights.any(axis=0)
            assert (layer.weights.any(axis=(1, 2)) == used.any()).all()


def test_saved_products_count_beside_saved_crossbars(data: Path):
    target = arch.load("bench", **CHIP)
    given = (onnx.load(MODEL), target, tile_channels(target), 0.3, "raptor", data / "seen.npz", 100)
    few, many = ({x.node: x.zero_tiles for x in prune_model(*given, products=w).layers} for w in (0.0, 100.0))
    assert many != few
    first = next(iter(few))  # a convolution, whose tiles are multiplied for each pixel
    assert many[first] > few[first]


def test_nothing_goes_for_a_share_of_zero(data: Path):
    found = prune(str(MODEL), 0, data / "seen.npz")
    assert crossbars(found)[0] == crossbars(found)[1]
    given = {"image": np.load(data / "seen.npz")["image"][:1]}
    before, after = (
        ort.InferenceSession(m.SerializeToString()).run(None, {k: v.reshape(1, 1, 8, 8) for k, v in given.items()})[0]
        for m in (found.before, found.model)
    )
    np.testing.assert_allclose(before, after, atol=1e-3)


def sums_of(inputs: "np.ndarray", outputs: "np.ndarray") -> LayerSums:
    rows = np.hstack([inputs, np.ones((len(inputs), 1))])
    return LayerSums(rows.T @ rows, rows.T @ outputs, float(((outputs - outputs.mean(axis=0)) ** 2).sum()))


def test_the_error_of_an_order_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    inputs, weights = rng.standard_normal((400, 12)) @ rng.standard_normal((12, 12)), rng.standard_normal((12, 4))
    outputs = inputs @ weights
    tiles = cut_tiles(np.arange(12).reshape(1, 12), 4, (4, 4), 4, 1, whole=False)
    sums = sums_of(inputs, outputs)
    error, block, _ = next(order_tiles(weights, tiles, sums))
    costs = []
    for rows in tiles.rows:
        kept = np.setdiff1d(np.arange(12), rows)
        given = np.hstack([inputs[:, kept], np.ones((400, 1))])
        best = given @ np.linalg.lstsq(given, outputs, rcond=None)[0]
        costs.append(((outputs - best) ** 2).sum() / sums.square)
    assert block == int(np.argmin(costs))
    assert error == pytest.approx(min(costs), rel=0.05)


def test_refit_is_least_squares():
    rng = np.random.default_rng(1)
    inputs, weights, bias = rng.standard_normal((300, 8)), rng.standard_normal((8, 3)), rng.standard_normal(3)
    inputs[:, 0] = inputs[:, 5] + 0.01 * rng.standard_normal(300)  # 5 makes up for 0
    outputs = inputs @ weights + bias
    kept = np.ones((8, 3), np.bool_)
    kept[:4] = False
    tiles = cut_tiles(np.arange(8).reshape(1, 8), 3, (4, 3), 3, 1, whole=False)
    refit(weights, bias, kept, tiles, sums_of(inputs, outputs))
    assert not weights[:4].any()
    given = np.hstack([inputs[:, 4:], np.ones((300, 1))])
    best = np.linalg.lstsq(given, outputs, rcond=None)[0]
    np.testing.assert_allclose(np.vstack([weights[4:], bias]), best, atol=0.02)


def test_a_refit_keeps_weights_about_which_the_samples_say_nothing():
    rng = np.random.default_rng(2)
    inputs, weights = rng.standard_normal((100, 6)), rng.standard_normal((6, 3))
    inputs[:, 2] = 0
    tiles, found = cut_tiles(np.arange(6).reshape(1, 6), 3, (3, 3), 3, 1, whole=False), weights.copy()
    refit(found, None, np.ones((6, 3), np.bool_), tiles, sums_of(inputs, inputs @ weights))
    np.testing.assert_allclose(found, weights, atol=1e-6)


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 2]}, {"dilations": [1, 2]}])
def test_rows_of_a_convolution(attributes: dict[str, Any]):
    weights, bias = random(5, 3, 3, 2), random(5)
    made = node("Conv", "x w b", "y", name="conv", kernel_shape=[3, 2], **attributes)
    model = make_model([made], {"x": (1, 3, 9, 8)}, ["y"], {"w": weights, "b": bias})
    (layer,) = find_layers(onnx.shape_inference.infer_shapes(model))
    given = random(1, 3, 9, 8)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": given})[0]
    rows = layer.make_rows(given)
    found = rows @ layer.weights.reshape(-1, 5) + bias
    np.testing.assert_allclose(found.T.reshape(wanted.shape), wanted, atol=1e-4)
    np.testing.assert_array_equal(layer.to_initializer(layer.weights), weights)


def test_what_trains_gets_no_sample_that_is_held_out(data: Path):
    target, seen = arch.load("bench", **CHIP), list[bytes]()

    def refine(before: onnx.ModelProto, model: onnx.ModelProto, masks: Any, samples: Any) -> onnx.ModelProto:
        assert "conv1" in "".join(masks)
        seen.extend(sample["image"].tobytes() for sample in samples)
        return model

    found = prune_model(str(MODEL), target, 16, 0.2, "raptor", data / "seen.npz", refine=refine)
    given = [image.tobytes() for image in np.load(data / "seen.npz")["image"]]
    assert (len(seen), found.held_out) == (240, 60)
    assert seen == [image for number, image in enumerate(given) if number % 5]
    assert found.error is not None
    assert 0 < found.error < 0.5


def test_layers_that_the_outputs_need_keep_their_tiles():
    def curve(*errors: float) -> PruningCurve:
        return PruningCurve(tuple((k, 0) for k in range(len(errors))), np.array(errors))

    tiles = cut_tiles(np.arange(20).reshape(1, 20), 4, (4, 4), 4, 1, whole=False)
    many = cut_tiles(np.arange(20).reshape(1, 20), 4, (4, 4), 4, 100, whole=False)
    needed, spare = curve(0.3, 0.6, 0.9, 1.2), curve(0.1, 0.1, 0.1, 0.5)
    assert choose_counts([(tiles, needed), (tiles, spare)], 0.3, 0) == [0, 3]
    assert choose_counts([(tiles, needed), (tiles, spare)], 0.5, 0) == [2, 3]
    assert choose_counts([(many, needed), (tiles, spare)], 0.3, 0) == [0, 3]
    assert choose_counts([(many, needed), (tiles, spare)], 0.3, 100) == [3, 0]  # its tiles have 100 products each
    assert choose_counts([(tiles, curve(0.15, 0.9)), (tiles, curve(0.2, 0.2))], 0.2, 0) == [0, 2]  # 0.1 for each of two
    assert choose_counts([(tiles, needed), (tiles, spare)], 0, 1) == [0, 0]
    assert choose_counts([(tiles, needed), (tiles, spare)], 1, 1) == [4, 4]


def test_samples_of_the_test_are_refused(data: Path, tmp_path: Path):
    pixels = np.concatenate([load_images()[0].pixels[:50], load_images()[1].pixels[7:8]])
    np.savez(tmp_path / "mixed.npz", image=pixels)
    words = ("--xbar", "16", "--data", str(tmp_path / "mixed.npz"), "--test", str(data / "test.npz"))
    done = invoke("prune", str(MODEL), *words, "-o", str(tmp_path / "p.onnx"))
    assert "1 of its 51 samples are also in" in str(done.exception)
    assert not (tmp_path / "p.onnx").exists()


def test_training_needs_pytorch(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    words = ("--data", str(data / "seen.npz"), "--epochs", "1", "-o", str(tmp_path / "p.onnx"))
    assert "raptor-crossbar[train]" in str(invoke("prune", str(MODEL), *words).exception)


def test_errors_of_outputs_that_are_held_out():
    weights = random(6, 3)
    nodes = [node("MatMul", "x w", "y"), node("ArgMax", "y", "c", axis=1)]
    model = make_model(nodes, {"x": (1, 6)}, {"y": 2, "c": 2}, {"w": weights})
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    samples = [{"x": random(1, 6) * (n + 1)} for n in range(7)]
    held = HeldOutSamples.make(model, samples)
    assert held.find_error(model) == 0
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(-weights, "w"))
    exact = np.stack([sample["x"][0] @ weights for sample in samples])
    wrong = 4 * (exact**2).sum() / ((exact - exact.mean()) ** 2).sum()
    differ = np.mean(exact.argmax(axis=1) != (-exact).argmax(axis=1))
    assert held.find_error(changed) == pytest.approx((wrong + differ) / 2, rel=1e-4)


@pytest.mark.parametrize(("count", "fitted", "held_out"), [(3, 3, 3), (5, 4, 1), (300, 240, 60), (3000, 2700, 300)])
def test_samples_are_fitted_or_held_out(count: int, fitted: int, held_out: int):
    given = [{"x": np.array([n])} for n in range(count)]
    parts = split_samples(given)
    assert [len(part) for part in parts] == [fitted, held_out]
    if count >= 5:
        assert {int(x["x"][0]) for part in parts for x in part} == set(range(count))


def test_the_command(data: Path, tmp_path: Path):
    out, seen = str(tmp_path / "p.onnx"), str(data / "seen.npz")
    words = ("--xbar", "16", "--mapping", "raptor", "--data", seen, "--samples", "100", "-o", out)
    done = invoke("prune", str(MODEL), *words, "--test", str(data / "test.npz"))
    assert done.exit_code == 0, done.output
    assert "34 of 68 crossbars" in done.output
    assert "top-1" in done.output
    assert "exists" in str(invoke("prune", str(MODEL), *words).exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mapping", "x"), "expected rows or raptor"),
        (("--samples", "3"), "needs --data"),
        (("--epochs", "3"), "needs --data"),
        (("--data", "none.npz"), "no such file"),
        (("--share", "2"), "Invalid value"),
        (("--test", "none.npz"), "none.npz"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = invoke("prune", str(MODEL), *words)
    assert done.exit_code
    assert message in done.output + str(done.exception)
    assert not list(tmp_path.iterdir())
