"""PyTorch, JAX, Keras and scikit-learn as they are; `make test-frameworks` installs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from tests.paths import ROOT
from tests.project.documents import blocks

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
