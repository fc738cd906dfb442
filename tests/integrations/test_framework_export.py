"""PyTorch and JAX, without them: a stand-in for torch that hands out a stored export, and exports that torch wrote."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import raptor
from raptor.integrations.onnxruntime_session import InferenceSession
from tests.project.documents import GIVEN

STORED = Path(__file__).parent / "exports"
CNN = GIVEN / "from-pytorch" / "cnn.onnx"
IMAGE = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)


@dataclass
class Tensor:
    """Tensor with as much as `raptor.torch` asks for."""

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def detach(self) -> "Tensor":
        return self

    cpu = detach

    def numpy(self) -> Any:
        return self.values


class Module:
    """A module that is the stored network; `off` is added to what it returns."""

    def __init__(self, *parts: "Module", off: float = 0) -> None:
        self.parts, self.off, self.training = parts, off, True

    def modules(self) -> list["Module"]:
        return [self, *self.parts]

    def eval(self) -> None:
        for part in self.modules():
            part.training = False

    def __call__(self, image: Tensor, *_: Tensor) -> dict[str, Any]:
        assert not self.training
        session = onnxruntime.InferenceSession(CNN, providers=["CPUExecutionProvider"])
        return {"scores": [Tensor(session.run(None, {"image": image.values})[0] + self.off)]}


@dataclass
class Calls:
    """Calls of `torch.onnx.export`; `fails` is what it raises, `changes` the buffers that the module writes to."""

    made: list[tuple[Any, ...]] = field(default_factory=list)
    fails: Exception | None = None
    changes: dict[str, str] = field(default_factory=dict[str, str])

    def export(self, module: Module, args: Any, **options: Any) -> Any:
        assert not any(part.training for part in module.modules())
        self.made.append((args, options))
        if self.fails:
            raise self.fails
        signature = SimpleNamespace(user_inputs_to_mutate={}, buffers_to_mutate=self.changes)
        exported = SimpleNamespace(graph_signature=signature)
        return SimpleNamespace(model_proto=onnx.load(CNN), exported_program=exported)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Puts the stand-in in the place of torch."""
    torch: Any = ModuleType("torch")
    calls = Calls()
    torch.nn = SimpleNamespace(Module=Module)
    torch.onnx = SimpleNamespace(export=calls.export)
    torch.no_grad = lambda: __import__("contextlib").nullcontext()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return calls


def test_a_module_becomes_a_program(calls: Calls) -> None:
    frozen = Module()
    frozen.training = False
    module = Module(frozen)
    program = raptor.torch.compile(module, Tensor(IMAGE), xbar=64, cores=8)
    assert (module.training, frozen.training) == (True, False)
    (((image,), options),) = calls.made
    assert image.values is IMAGE
    assert options == {"dynamo": True, "external_data": False, "verbose": False}
    assert program.validate().passed
    assert raptor.torch.compare(module, (Tensor(IMAGE),), program).passed
    renamed = onnx.ModelProto.FromString(onnx.load(CNN).SerializeToString().replace(b"scores", b"points"))
    assert raptor.torch.compare(module, (Tensor(IMAGE),), raptor.compile(renamed, cores=8)).passed
    assert module.training


def test_compare_tells_who_is_wrong(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    program = raptor.torch.compile(Module(), Tensor(IMAGE), cores=8)
    exporter = raptor.torch.compare(Module(off=1), Tensor(IMAGE), program)
    assert [exporter.export[0].passed, exporter.compiler[0].passed, exporter.passed] == [False, True, False]
    assert str(exporter).startswith("scores: export differs (")
    right = InferenceSession.run
    monkeypatch.setattr(InferenceSession, "run", lambda *args: [y + 1 for y in right(*args)])
    compiler = raptor.torch.compare(Module(), Tensor(IMAGE), program)
    assert [compiler.export[0].passed, compiler.compiler[0].passed] == [True, False]
    assert ", compiler differs (" in str(compiler)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.compile("cnn.pt", Tensor(IMAGE)), "module='cnn.pt': expected a torch.nn.Module"),
        (
            lambda t: t.compile(Module(), "image"),
            "example_inputs: expected arrays, or tuples of arrays; got an object of",
        ),
        (
            lambda t: t.compare(Module(), (Tensor(IMAGE), Tensor(IMAGE)), cores=8),
            r"has 1 inputs \(image\), not 2",
        ),
        (lambda t: t.compare(Module(), Tensor(IMAGE), tolerance=-1), "tolerance=-1: expected a finite number"),
        (lambda t: t.compile(Module(), Tensor(IMAGE), cores=0), "cores=0: expected"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_bad_arguments(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(raptor.UserError, match=message):
        call(raptor.torch)


def test_what_torch_cannot_export(calls: Calls) -> None:
    try:
        raise RuntimeError("a long report") from ValueError("data decides a branch\nand more")
    except RuntimeError as error:
        calls.fails = error
    with pytest.raises(
        raptor.UserError, match=r"^torch.onnx.export does not export it: ValueError: data decides a branch$"
    ):
        raptor.torch.compile(Module(), Tensor(IMAGE))
    calls.fails, calls.changes = None, {"add": "count"}
    with pytest.raises(raptor.UserError, match="changes count in place"):
        raptor.torch.compile(Module(), Tensor(IMAGE))
    calls.fails = ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript")
    with pytest.raises(
        raptor.UserError, match="needs onnxscript, which is not installed: pip install torch onnxscript"
    ):
        raptor.torch.compile(Module(), Tensor(IMAGE))


@pytest.mark.parametrize(("name", "package"), [("torch", "torch"), ("jax", "jax2onnx")])
def test_a_framework_that_is_not_there(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(raptor.UserError, match=f"raptor.{name} needs {package}, which is not installed: pip install"):
        getattr(raptor, name).compile(Module(), Tensor(IMAGE))


def test_nothing_is_imported_early() -> None:
    names = ", ".join(f"raptor.integrations.{name}" for name in ("torch", "jax", "onnxruntime_session"))
    code = f"import sys, {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "onnxscript", "jax", "jax2onnx", "sklearn", "skl2onnx", "keras"} & set(loaded)


@pytest.mark.parametrize("path", sorted(STORED.glob("*.onnx")), ids=lambda path: path.stem)
def test_what_torch_has_written(path: Path) -> None:
    program = raptor.compile(path, xbar=32, cores=8)
    assert program.validate(samples=2).passed
    session = raptor.session.InferenceSession(program)
    wanted = {"encoder": ["layer_norm_1"], "tagger": ["linear", "tanh"]}[path.stem]
    assert [output.name for output in session.get_outputs()] == wanted
