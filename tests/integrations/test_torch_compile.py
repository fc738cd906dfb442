"""`torch.compile(backend="raptor")` with PyTorch as it is; `make test-frameworks` installs it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raptor
from raptor.integrations.torch_compile import MOST_SHAPES, DynamoBackend
from tests.paths import ROOT
from tests.project.documents import Page

torch: Any = pytest.importorskip("torch", reason="PyTorch is not here (make test-frameworks)")

nn = torch.nn
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # the exporter's own
]


@pytest.fixture(autouse=True)
def _fresh():  # pyright: ignore[reportUnusedFunction] a fixture
    torch.manual_seed(3)
    torch._dynamo.reset()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        yield


class Residual(nn.Module):
    """Two linear layers with a normalisation, and their input added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def convolution() -> tuple[Any, Any]:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return nn.Sequential(*layers), torch.randn(2, 3, 12, 12)


def words() -> tuple[Any, Any]:
    layers = nn.Embedding(20, 16), Residual(), nn.Linear(16, 3), nn.Softmax(-1)
    return nn.Sequential(*layers), torch.tensor([[4, 0, 19, 7]])


def attention() -> tuple[Any, Any]:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(1, 6, 16)


def with_break() -> tuple[Any, Any]:
    first, second = nn.Linear(8, 8), nn.Linear(8, 4)

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.first(x))
            torch._dynamo.graph_break()
            return self.second(x)

    return Broken(), torch.randn(1, 8)


def with_inverse() -> tuple[Any, Any]:
    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.linear(x)
            torch._dynamo.graph_break()
            return torch.linalg.inv(x)

    return Inverse(), torch.randn(4, 4)


@pytest.mark.parametrize(
    ("make", "on_chip"),
    [
        (convolution, [True]),
        (words, [True]),
        (attention, [True]),
        (with_break, [True, True]),
        (with_inverse, [True, False]),
    ],
)
def test_models(make: Callable[[], tuple[Any, Any]], on_chip: list[bool]):
    module, inputs = make()
    module.eval()
    backend = DynamoBackend(cores=64)
    got = torch.compile(module, backend=backend)(inputs)
    assert torch.allclose(got, module(inputs), atol=1e-5, rtol=1e-5)
    assert [graph.program is not None for graph in backend.graphs] == on_chip
    assert [not graph.reason for graph in backend.graphs] == on_chip
    assert all(graph.program.validate().passed for graph in backend.graphs if graph.program is not None)


def test_the_name_and_its_options():
    module, inputs = convolution()
    module.eval()
    got = torch.compile(module, backend="raptor", options={"cores": 64})(inputs)
    assert torch.allclose(got, module(inputs), atol=1e-5)
    for wrong in ({"options": {"coers": 64}}, {"options": {"cores": "many"}}, {"mode": "max-autotune"}):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=r"coers|cores|no modes"):
            torch.compile(module, backend="raptor", **wrong)(inputs)
    with pytest.raises(raptor.UserError, match="cores"):
        DynamoBackend(cores=0)


def reasons(function: Any, *inputs: Any) -> list[str]:
    """Returns why PyTorch computes graphs of a function; each was said in a warning, too."""
    torch._dynamo.reset()
    backend = DynamoBackend(cores=8)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.compile(function, backend=backend)(*inputs)
    found = [graph.reason for graph in backend.graphs if graph.program is None]
    assert [text for text in found if not any(text in str(each.message) for each in said)] == []
    return found


def test_what_pytorch_computes():
    x, linear = torch.randn(2, 4), nn.Linear(4, 4)
    counted = nn.BatchNorm1d(4)
    assert "training_mode" in reasons(lambda x: nn.functional.dropout(x, 0.5, True) * 2, x)[0]
    assert "in place" in reasons(counted, x)[0]
    assert "in place" in reasons(lambda x: x.add_(1) * 2, x)[0]
    assert "crossbars" in reasons(nn.Linear(4000, 4000), torch.randn(1, 4000))[0]
    assert reasons(lambda: linear(torch.ones(1, 4))) == ["it has no input"]
    with torch.enable_grad():
        assert "no_grad" in reasons(linear, x)[0]
    with pytest.raises(AssertionError):
        assert reasons(linear, x)


def test_training_goes_on_in_pytorch():
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    counted = nn.BatchNorm1d(4)
    torch.compile(counted, backend="raptor", options={"cores": 8})(x)
    assert int(counted.num_batches_tracked) == 1
    torch._dynamo.reset()
    with torch.enable_grad():
        torch.compile(linear, backend="raptor", options={"cores": 8})(x).sum().backward()
    assert linear.weight.grad is not None


def test_host_for_one_operator():
    backend = DynamoBackend(cores=8, host=True)
    linear = nn.Linear(4, 4)

    def ranked(x: Any) -> Any:
        return torch.cumsum(linear(x), 1)

    x = torch.randn(1, 4)
    assert torch.allclose(torch.compile(ranked, backend=backend)(x), ranked(x), atol=1e-5)
    assert [graph.program is not None for graph in backend.graphs] == [True]


def test_shapes_and_their_limit():
    linear = nn.Linear(4, 4)
    backend = DynamoBackend(cores=8)
    compiled = torch.compile(linear, backend=backend, dynamic=True)
    for batch in (*range(2, MOST_SHAPES + 4), 3):
        x = torch.randn(batch, 4)
        assert torch.allclose(compiled(x), linear(x), atol=1e-5)
    on_chip = [graph.program is not None for graph in backend.graphs]
    assert on_chip == [True] * MOST_SHAPES + [False] * 2
    assert "other shapes" in backend.graphs[-1].reason


def test_weights_that_change():
    linear, x = nn.Linear(4, 4), torch.randn(1, 4)
    backend = DynamoBackend(cores=8)
    compiled = torch.compile(linear, backend=backend)
    for _ in range(2):
        assert torch.allclose(compiled(x), linear(x), atol=1e-5)
    assert len(backend.graphs) == 1
    linear.weight.data.mul_(2)
    assert torch.allclose(compiled(x), linear(x), atol=1e-5)
    assert len(backend.graphs) == 2


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "torch-compile.md").read_text()
    page = Page(text.replace("```py\n", "```python\n"))
    with torch.enable_grad():
        page.run()
    assert [body for _, body in page.edits] == []
