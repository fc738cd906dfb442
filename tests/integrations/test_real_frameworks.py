"""PyTorch, JAX, Keras and scikit-learn as they are; `make test-frameworks` installs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.integrations.onnxruntime_session import InferenceSession
from tests.paths import ROOT
from tests.project.documents import blocks
from validator.model.ort_session import create_session

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # the exporters' own
]
RNG = np.random.default_rng(7)
PAGE = [block.body for block in blocks((ROOT / "docs" / "tutorials" / "from-others.md").read_text())]


@pytest.mark.parametrize("name", ["encoder", "tagger"])
def test_torch(name: str) -> None:
    """The stored exports are still what the exporter writes, but for versions and the like."""
    torch = pytest.importorskip("torch")
    from tests.integrations.exports.make import modules

    module, inputs = modules()[name]
    assert module.training
    program = raptor.torch.compile(module, inputs, cores=8)
    found = raptor.torch.compare(module, [torch.randn_like(x) for x in inputs], program)
    assert found.passed, str(found)
    assert module.training


def test_torch_with_dropout_batch_norm_and_its_refusals() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(288, 4)
    )
    image = torch.randn(1, 3, 8, 8)
    assert raptor.torch.compare(module, image, cores=8).passed

    class Branching(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(raptor.UserError, match=r"torch\.onnx\.export does not export it: Guard"):
        raptor.torch.compile(Branching(), image)


@pytest.mark.parametrize("how", ["index_copy", "index_put", "scatter", "assignment"])
def test_torch_with_a_cache_of_fixed_size(how: str, tmp_path: Path) -> None:
    """The export compiles unchanged, and its logits are onnxruntime's. StaticCache of transformers writes rows so."""
    torch = pytest.importorskip("torch")
    nn, rows, heads, size = torch.nn, 6, 2, 8

    def write(cache: Any, at: Any, new: Any) -> Any:
        if how == "index_copy":
            return cache.index_copy(2, at, new)
        if how == "scatter":
            return cache.scatter(2, at.view(1, 1, -1, 1).expand(1, heads, 1, size), new)
        if how == "index_put":
            return cache.transpose(0, 2).index_put((at,), new.transpose(0, 2)).transpose(0, 2)
        cache = cache.clone()
        cache[:, :, at] = new
        return cache

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = heads * size
            self.words, self.places = nn.Embedding(12, width), nn.Embedding(rows, width)
            self.parts, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 12)

        def forward(self, ids: Any, at: Any, keys: Any, values: Any) -> Any:
            x = self.words(ids) + self.places(at)
            q, k, v = (p.view(1, 1, heads, size).transpose(1, 2) for p in self.parts(x).chunk(3, -1))
            keys, values = write(keys, at, k), write(values, at, v)
            seen = (torch.arange(rows) <= at)[None, None, None]
            mixed = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            return self.head(x + mixed.transpose(1, 2).reshape(1, 1, -1)), keys, values

    torch.manual_seed(0)
    caches = {f"past_{kind}": torch.zeros(1, heads, rows, size) for kind in ("key", "value")}
    given = (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), *caches.values())
    names = ["logits", "present_key", "present_value"]
    inputs = ["input_ids", "cache_position", *caches]
    file = tmp_path / "decoder.onnx"
    torch.onnx.export(Decoder().eval(), given, file, dynamo=True, input_names=inputs, output_names=names)
    chip = InferenceSession(raptor.compile(file, states="auto", cores=16))
    judge, held = create_session(str(file), file), {name: cache.numpy() for name, cache in caches.items()}
    for position, token in enumerate((3, 1, 7, 7, 0, 11)):
        step = {"input_ids": np.array([[token]]), "cache_position": np.array([position])}
        wanted = judge.run(names, {**step, **held})
        held = dict(zip(held, wanted[1:], strict=True))
        np.testing.assert_allclose(chip.run(["logits"], step)[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_jax_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    (block,) = [body for body in PAGE if "import jax\n" in body]
    exec(compile(block, "<page>", "exec"), {})
    assert capsys.readouterr().out.endswith("True\n")


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    filters, matrix = (jax.numpy.asarray(RNG.standard_normal(shape), "float32") for shape in ((3, 3, 3, 8), (8, 10)))

    def classify(image: Any) -> Any:
        pixels = jax.lax.conv_general_dilated(
            image, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.softmax(jax.nn.relu(pixels).mean((1, 2)) @ matrix)

    image = jax.numpy.asarray(RNG.standard_normal((1, 16, 16, 3)), "float32")
    found = raptor.jax.compare(classify, image, cores=8)
    assert found.passed, str(found)
    with pytest.raises(raptor.UserError, match=r"jax2onnx\.to_onnx does not export it: Concret"):
        raptor.jax.compile(lambda x: float(x.sum()), image)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras(backend: str, tmp_path: Path) -> None:
    """The block of docs/tutorials/from-others.md, in a process of its own: Keras takes one framework for good."""
    (block,) = [body for body in PAGE if "import keras" in body]
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.endswith("True\n")


def test_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/tutorials/from-others.md."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for body in PAGE:
        if "classifier" in body:
            exec(compile(body, "<page>", "exec"), names)
    assert names["verdict"].passed
