"""A prepared float model as a module of PyTorch: a pure function of its inputs and weights.

Weights keep the names of the ONNX constants, so trained ones go back by name.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.nodes import NodeView, read_attributes
from raptor.tools.train.torch_operators import OPERATORS, OperatorCall

torch: Any = import_module("torch")
Tensor = Any
Array = npt.NDArray[Any]
InputQuantisers = Mapping[str, Callable[[Tensor], Tensor]]
"""Functions that quantise the first input of a node, keyed by the name of the node."""
_WITH_WEIGHTS = {
    *("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "PRelu", "BatchNormalization"),
}
"""Operators whose float constants of more than one element are trained."""
_STATISTICS = {"BatchNormalization": (3, 4)}
"""Constant inputs that are measured, not trained."""


class TorchGraph(torch.nn.Module):  # pyright: ignore[reportUntypedBaseClass] PyTorch is not installed everywhere
    """A model with one or more inputs of fixed shapes. `weights`: parameters by the names of the constants.

    Raises `UserError` for operators that are not in `OPERATORS`.
    """

    def __init__(self, model: ModelProto) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] as above
        versions = {o.domain: o.version for o in model.opset_import}
        self.nodes: list[NodeView] = []
        unknown: list[str] = []
        for node in model.graph.node:
            if node.domain not in STANDARD_DOMAINS or node.op_type not in OPERATORS:
                unknown.append(f"{node.name} ({node.op_type})")
            version = next((v for d, v in versions.items() if d in STANDARD_DOMAINS), 1)
            self.nodes.append(
                NodeView(node.name, node.op_type, version, tuple(node.input), tuple(node.output), read_attributes(node))
            )
        if unknown:
            shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
            raise UserError(f"raptor train cannot differentiate {shown}; it knows {', '.join(OPERATORS)}")
        self.inputs = [value.name for value in model.graph.input]
        self.outputs = [value.name for value in model.graph.output]
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        trained = self._find_trained()
        self.weights = torch.nn.ParameterDict()
        self._names: dict[str, str] = {}
        for number, (name, values) in enumerate(self.constants.items()):
            tensor = torch.tensor(np.array(values))
            key = f"w{number}"  # names of parameters have no dots
            if name in trained:
                self.weights[key] = torch.nn.Parameter(tensor)
            else:
                self.register_buffer(f"constant{number}", tensor, persistent=False)
                key = f"constant{number}"
            self._names[name] = key

    def _find_trained(self) -> set[str]:
        return {
            name
            for node in self.nodes
            if node.op_type in _WITH_WEIGHTS
            for position, name in enumerate(node.inputs)
            if name in self.constants and position not in _STATISTICS.get(node.op_type, ())
            if self.constants[name].dtype == np.float32 and self.constants[name].size > 1
        }

    def parameter(self, name: str) -> Tensor:
        """Returns the parameter that the constant of this name has become."""
        return self.weights[self._names[name]]

    def list_weights(self) -> dict[str, Tensor]:
        """Returns the parameters, keyed by the name of the constant."""
        return {name: self.weights[key] for name, key in self._names.items() if key in self.weights}

    def forward(
        self,
        samples: Mapping[str, Tensor],
        changed: Mapping[str, Tensor] | None = None,
        quantisers: InputQuantisers | None = None,
        tensors: Sequence[str] | None = None,
    ) -> list[Tensor]:
        """Returns the outputs [samples, *shape], or `tensors` by name.

        `samples`: inputs [samples, *shape]; `changed`: weights by name.
        """
        names, wanted = list(samples), self.outputs if tensors is None else tensors
        values = {name: getattr(self, key) for name, key in self._names.items() if key not in self.weights}
        values |= self.list_weights() | dict(changed or {})

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            found = self._run(values | dict(zip(names, inputs, strict=True)), quantisers or {})
            return tuple(found[name] for name in wanted)

        return list(torch.vmap(run)(*samples.values()))

    def _run(self, values: dict[str, Tensor], quantisers: InputQuantisers) -> dict[str, Tensor]:
        values = {"": None, **values}
        for node in self.nodes:
            given = [values[name] for name in node.inputs]
            if node.name in quantisers:
                given[0] = quantisers[node.name](given[0])
            constants = [self.constants.get(name) for name in node.inputs]
            found: Any = OPERATORS[node.op_type](OperatorCall(node, given, constants))
            outputs = cast(Sequence[Tensor], found if isinstance(found, list | tuple) else [found])
            values |= dict(zip(node.outputs, outputs, strict=False))
        return values
