"""Backend of `torch.compile`: runs the graphs that Dynamo captures as instruction streams, or else in PyTorch.

model = torch.compile(model, backend="raptor", options={"xbar": 128, "cores": 200})

PyTorch finds `compile_graph` by an entry point of pyproject.toml. RAPTOR does not install PyTorch.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Unpack

import numpy as np

from raptor.api import Program
from raptor.common.errors import UserError
from raptor.integrations import torch as torch_export
from raptor.integrations.framework_export import require_packages
from raptor.integrations.onnxruntime_session import InferenceSession
from raptor.options import CompileKeywords, CompileOptions, read_options

MOST_SHAPES = 8
"""Most combinations of input shapes for which one graph is compiled; PyTorch computes all others."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A graph that Dynamo captured, for one combination of input shapes.

    `shapes`: of its inputs. `program`: None if PyTorch computes the graph; `reason` then says why.
    """

    shapes: tuple[tuple[int, ...], ...]
    program: Program | None
    reason: str = ""


class DynamoBackend:
    """A backend for `torch.compile` that keeps the programs: `torch.compile(model, backend=DynamoBackend(cores=200))`.

    `options` are those of `raptor.compile`. `graphs` are the captured graphs, in the order of their compilation. A
    graph that cannot be compiled is computed by PyTorch, with a `UserWarning` that says why. Raises `UserError` for
    wrong options, and without PyTorch and onnxscript.
    """

    def __init__(self, **options: Unpack[CompileKeywords]) -> None:
        read_options(CompileOptions, options, CompileKeywords)
        with require_packages("torch.compile(backend='raptor')", *torch_export.PACKAGES):
            for package in torch_export.PACKAGES:
                import_module(package)
        self.options = options
        self.graphs: list[CapturedGraph] = []

    def __call__(self, graph_module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Returns a function of the graph's inputs, which compiles the graph at the first call with each shape."""
        return _GraphRunner(graph_module, self)

    def compile(self, module: Any, inputs: Sequence[Any]) -> InferenceSession | None:
        """Compiles a module for inputs of these shapes; None if PyTorch has to compute it, which a warning says."""
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        try:
            session = InferenceSession(torch_export.export(module, tuple(inputs)), **self.options)
        except UserError as e:
            return self.decline(shapes, str(e))
        self.graphs.append(CapturedGraph(shapes, session.program))
        return session

    def decline(self, shapes: tuple[tuple[int, ...], ...], reason: str) -> None:
        """Leaves a graph to PyTorch, and warns with the reason."""
        self.graphs.append(CapturedGraph(shapes, None, reason))
        warnings.warn(f"raptor: PyTorch computes a graph with inputs of {shapes}: {reason}", UserWarning, stacklevel=2)


def compile_graph(
    graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: Any = None
) -> Callable[..., Any]:
    """Entry point of `torch.compile(backend="raptor")`. `options`: those of `raptor.compile`; see `DynamoBackend`."""
    if mode is not None:
        raise UserError(f"torch.compile(mode={mode!r}): the backend raptor has no modes, only options")
    return DynamoBackend(**dict(options or {}))(graph_module, example_inputs)


def _make_bound_module(graph_module: Any, values: Mapping[int, Any], names: Sequence[str]) -> Any:
    """Returns the graph as a module of which some inputs have values: tensors as its weights, numbers as constants.

    Dynamo passes parameters and buffers as inputs. Crossbars hold weights, which have to be known.
    """
    nn: Any = import_module("torch").nn

    class Bound(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.captured = graph_module
            for index, value in values.items():
                if not isinstance(value, int | float):
                    self.register_buffer(names[index], value.detach())

        def forward(self, *inputs: Any) -> Any:
            rest = iter(inputs)
            own = {i: getattr(self, names[i], value) for i, value in values.items()}
            return self.captured(*(own[i] if i in own else next(rest) for i in range(len(names))))

    return Bound()


@dataclass(slots=True, eq=False)
class _GraphRunner:
    """A captured graph as a function. `sessions`: the program for each combination of shapes, or None."""

    graph_module: Any
    backend: DynamoBackend
    names: list[str] = field(init=False)
    weights: set[int] = field(init=False)
    digest: bytes = b""
    sessions: dict[tuple[Any, ...], InferenceSession | None] = field(
        default_factory=dict[tuple[Any, ...], InferenceSession | None]
    )

    def __post_init__(self) -> None:
        nodes: list[Any] = [node for node in self.graph_module.graph.nodes if node.op == "placeholder"]
        self.names = [node.name for node in nodes]
        known: list[dict[str, Any]] = [node.meta.get("tensor_dict") or {} for node in nodes]
        self.weights = {index for index, each in enumerate(known) if "_dynamo_static_input_type" in each}

    def __call__(self, *arguments: Any) -> Any:
        """Computes the graph. Weights that have changed since the last call are compiled anew."""
        digest = _digest_weights([arguments[index] for index in sorted(self.weights)])
        if digest != self.digest:
            self.digest, self.sessions = digest, {}
        key = tuple((tuple(x.shape), x.dtype) if hasattr(x, "shape") else x for x in arguments)
        numbers = {index for index, value in enumerate(arguments) if isinstance(value, int | float)}
        bound = {index: arguments[index] for index in sorted(self.weights | numbers)}
        inputs = [value for index, value in enumerate(arguments) if index not in bound]
        if key not in self.sessions:
            self.sessions[key] = self._compile(bound, inputs)
        session = self.sessions[key]
        return self.graph_module(*arguments) if session is None else _run(session, inputs)

    def _compile(self, bound: Mapping[int, Any], inputs: list[Any]) -> InferenceSession | None:
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        reason = self._obstacle(inputs)
        if reason is not None:
            return self.backend.decline(shapes, reason)
        return self.backend.compile(_make_bound_module(self.graph_module, bound, self.names), inputs)

    def _obstacle(self, inputs: Sequence[Any]) -> str | None:
        """Returns why the graph is not even exported; None if it is."""
        (returned,) = (node.args[0] for node in self.graph_module.graph.nodes if node.op == "output")
        values: list[Any] = [getattr(node, "meta", {}).get("example_value") for node in returned]
        if len(self.sessions) >= MOST_SHAPES:
            return f"it was compiled for {MOST_SHAPES} other shapes already"
        if not inputs:
            return "it has no input"
        if not all(hasattr(value, "shape") for value in values):
            return "a result is no tensor"
        if len({id(node) for node in returned}) < len(returned):
            return "a tensor is returned twice"
        if any(value.requires_grad for value in values):
            return "results need gradients, which a program does not have; call it in torch.no_grad()"
        return None


def _run(session: InferenceSession, inputs: Sequence[Any]) -> list[Any]:
    """Runs a program on tensors. Returns tensors on the device of the first input."""
    torch: Any = import_module("torch")
    arrays = [tensor.detach().cpu().numpy() for tensor in inputs]
    names = [argument.name for argument in session.get_inputs()]
    results = session.run(None, dict(zip(names, arrays, strict=True)))
    return [torch.from_numpy(np.array(result)).to(inputs[0].device) for result in results]


def _digest_weights(tensors: Sequence[Any]) -> bytes:
    """Returns a digest of the values: optimisers, and loading a state, change weights in place."""
    torch: Any = import_module("torch")
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.digest()
