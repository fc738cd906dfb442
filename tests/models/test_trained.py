"""The trained network: its images, its accuracy in each form, and that the script trains."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import raptor
from models.trained import DATA, LANGUAGE_MODEL, DigitImages, load_images, load_model, train_digits
from models.trained.language_model import build_language_model
from tests.tools.quantise.support import run


def _accuracy(model: onnx.ModelProto | bytes, images: DigitImages) -> float:
    scores = [run(model, {"image": pixels[None]})[0] for pixels in images.pixels]
    return float((np.concatenate(scores).argmax(1) == images.digits).mean())


def test_no_image_is_for_both() -> None:
    training, test = load_images()
    assert (len(training.digits), len(test.digits)) == (1197, 600)
    seen = {pixels.tobytes() for pixels in training.pixels}
    assert not any(pixels.tobytes() in seen for pixels in test.pixels)
    assert sorted({*test.digits.tolist()}) == list(range(10))
    assert (training.pixels.min(), training.pixels.max()) == (0, 1)


def test_the_images_are_all_there() -> None:
    with np.load(DATA) as archive:
        assert archive["pixels"].shape == (1797, 8, 8)
        assert np.bincount(archive["digits"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"scheme": "s8s8"}, 0.975),
        pytest.param({"scheme": "u8s8"}, 0.975, marks=pytest.mark.slow),
        pytest.param({"scheme": "pow2"}, 0.975, marks=pytest.mark.slow),
        pytest.param({"weights": 4, "per_channel": True}, 0.94, marks=pytest.mark.slow),
    ],
)
def test_accuracy(options: dict[str, object], least: float, tmp_path: Path) -> None:
    """Figures of docs/how-to/quantisation.md, less a point, because machines round differently."""
    training, test = load_images()
    np.savez(tmp_path / "data.npz", image=training.pixels[:200])
    quantised = raptor.quantize(load_model(), data=tmp_path / "data.npz", **options)  # pyright: ignore[reportArgumentType] of a table
    assert _accuracy(quantised.onnx_bytes, test) >= least
    assert _accuracy(load_model(), test) >= 0.98


def test_the_file_is_the_network_of_the_script() -> None:
    """The stored weights in the script's network give the stored file, and the same scores in numpy."""
    stored = load_model()
    onnx.checker.check_model(stored, full_check=True)
    network = train_digits.build_network(np.random.default_rng(0))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in stored.graph.initializer}
    for layer in network.all_layers():
        layer.weights = {key: weights[f"{layer.name}.{key}"] for key in layer.weights}
    assert train_digits.to_onnx(network) == stored
    _, test = load_images()
    pixels = test.pixels[:20]
    wanted = np.concatenate([run(stored, {"image": image[None]})[0] for image in pixels])
    assert np.abs(network.forward(pixels) - wanted).max() < 1e-4


def test_gradients() -> None:
    """A small step along the gradient lowers the loss by the step times the square of the gradient."""
    training, _ = load_images()
    network, pixels, digits = (
        train_digits.build_network(np.random.default_rng(0)),
        training.pixels[:8],
        training.digits[:8],
    )
    before, gradient = train_digits.cross_entropy(network.forward(pixels), digits)
    network.backward(gradient)
    step = 1e-3
    for layer in network.all_layers():
        square = sum(float(np.square(g, dtype=np.float64).sum()) for g in layer.gradients.values())
        old = dict(layer.weights)
        length = step / max(np.sqrt(square), 1e-12)
        layer.weights = {k: w - np.float32(length) * layer.gradients[k] for k, w in old.items()}
        after, _ = train_digits.cross_entropy(network.forward(pixels), digits)
        layer.weights = old
        if layer.weights:
            assert before - after == pytest.approx(length * square, rel=0.05), layer.name


@pytest.mark.slow
def test_training_lowers_the_loss(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train_digits, "EPOCHS", 10)
    training, _ = load_images()
    few = DigitImages(training.pixels[:400], training.digits[:400])
    network = train_digits.train_network(few)
    assert "epoch 10: loss" in capsys.readouterr().out
    assert train_digits.measure_accuracy(network, few) > 0.5


def test_the_language_model_knows_its_text() -> None:
    """Nats a byte of a verse; an equal choice among all bytes would cost 4.9."""
    from validator.model.ort_session import create_session

    verse = b"In the beginning God created the heaven and the earth. And the earth was without form, and void."
    session = create_session(LANGUAGE_MODEL.read_bytes(), LANGUAGE_MODEL)
    ids = np.array([list(verse)])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    past = [i.name for i in session.get_inputs() if i.name not in feed]
    feed |= {name: np.zeros((1, 2, 0, 32), np.float32) for name in past}
    logits = session.run(["logits"], feed)[0][0].astype(np.float64)
    shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert -shares[np.arange(len(verse) - 1), list(verse[1:])].mean() < 1.4


def test_the_language_model_is_small() -> None:
    assert LANGUAGE_MODEL.stat().st_size < 1.1e6
    weights = onnx.load(str(LANGUAGE_MODEL)).graph.initializer
    assert sum(np.prod(t.dims) for t in weights if t.data_type == onnx.TensorProto.INT8) > 1e6


def test_the_builder_makes_the_stored_language_model() -> None:
    """Weights that are read back from the integers give the same integers."""
    stored = onnx.load(str(LANGUAGE_MODEL))
    values = {t.name: onnx.numpy_helper.to_array(t) for t in stored.graph.initializer}
    weights = {f"{n.removesuffix('.gain')}.weight": a for n, a in values.items() if n.endswith(".gain")}
    for name in (n.removesuffix(".int8") for n in values if n.endswith(".int8")):
        matrix = values[f"{name}.int8"].astype(np.float32)
        rows = matrix * values[f"{name}.scale"][:, None] if name == "e" else (matrix * values[f"{name}.scale"]).T
        if name.endswith(".qkv"):
            parts = np.split(rows, [128, 192])
            weights |= {f"{name[:-3]}{kind}.weight": part for kind, part in zip("qkv", parts, strict=True)}
        weights[f"{name}.weight"] = rows
    built = {t.name: onnx.numpy_helper.to_array(t) for t in build_language_model(weights).graph.initializer}
    assert built.keys() == values.keys()
    assert all(np.array_equal(built[n], a) for n, a in values.items() if n.endswith((".int8", ".gain")))
