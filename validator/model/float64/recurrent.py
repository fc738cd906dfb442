"""Splits recurrent layers into the nodes of one time step, which are computed for each step.

onnxruntime has no float64 kernel for RNN, GRU and LSTM, and its float32 kernel loses more than a rounding in some
activations: its Softplus is log(1 + exp(x)). In an unstable layer, later steps amplify that.

Formulas, orders of gates and defaults follow the ONNX operators RNN, GRU and LSTM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from onnx import NodeProto

from validator.model.float64.node_builder import NodeBuilder
from validator.model.node import Array, attributes_of

GATES = {"RNN": "h", "GRU": "zrh", "LSTM": "iofc"}
"""The gates of each operator, in the order of its weights."""
_PEEPHOLES = "iof"
_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "Affine": {"alpha": 1.0, "beta": 0.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Relu": {},
    "ScaledTanh": {"alpha": 1.0, "beta": 1.0},
    "Sigmoid": {},
    "Softplus": {},
    "Softsign": {},
    "Tanh": {},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""Default parameters of each activation. Where the ONNX text gives none, onnxruntime's are used."""


class NodeEvaluator(Protocol):
    """Computes the results `names` of a node from its operands in float64; with `rng`, with random errors."""

    def compute(
        self, inputs: Mapping[str, Array], names: Sequence[str], rng: np.random.Generator | None
    ) -> dict[str, Array]: ...


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A recurrent layer. `writes`: its outputs by position, empty if unused. `attributes`: as set in the model."""

    op_type: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: Mapping[str, Any]

    @classmethod
    def from_node(cls, proto: NodeProto, operands: Mapping[str, Array]) -> "RecurrentLayer | None":
        """Returns the recurrent layer that a node describes.

        Returns None for other operators, if sequences end before the last step, and for features that onnxruntime does
        not support: a layout with batches first and unknown activations.
        """
        if proto.domain or proto.op_type not in GATES:
            return None
        layer = cls(proto.op_type, (*proto.input, *[""] * 8)[:8], tuple(proto.output), attributes_of(proto))
        lengths = operands[layer.reads[4]] if layer.reads[4] else None
        whole = lengths is None or bool((lengths == len(operands[layer.reads[0]])).all())
        known = not layer.attributes.get("layout", 0) and all(name in _PARAMETERS for name, _ in layer.activations)
        return layer if known and whole else None

    @property
    def reversed_directions(self) -> tuple[bool, ...]:
        """For each direction, true if it starts at the last element."""
        which = self.attributes.get("direction", b"forward").decode()
        return {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[which]

    @property
    def activations(self) -> list[tuple[str, dict[str, float]]]:
        """Names and parameters of the activations of all directions."""
        count = len(self.reversed_directions)
        given = [name.decode() for name in self.attributes.get("activations", ())]
        names = {name.lower(): name for name in _PARAMETERS}
        numbers = {n: iter(self.attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta")}
        found: list[tuple[str, dict[str, float]]] = []
        for name in given or _ACTIVATIONS[self.op_type] * count:
            usual = names.get(name.lower(), name)
            parameters = {n: next(numbers[n], value) for n, value in _PARAMETERS.get(usual, {}).items()}
            found.append((usual, parameters))
        return found

    def nodes(self, direction: int) -> list[NodeProto]:
        """Returns the nodes of a step: they compute h.next and c.next from x, h, c and the weights of the gates."""
        each = len(_ACTIVATIONS[self.op_type])
        activations = self.activations[direction * each : (direction + 1) * each]
        given = frozenset(name for name, place in (("bias", 3), ("peepholes", 7)) if self.reads[place])
        step = _Nodes(activations, given, float(self.attributes.get("clip", 0.0)))
        match self.op_type:
            case "RNN":
                step.state("h.next", step.activated(0, step.gate("h")))
            case "GRU":
                step.gru(reset_after=bool(self.attributes.get("linear_before_reset", 0)))
            case _:
                step.lstm(coupled=bool(self.attributes.get("input_forget", 0)))
        return step.nodes

    def weights(self, direction: int, operands: Mapping[str, Array]) -> dict[str, Array]:
        """Returns w [input, hidden], r [hidden, hidden], biases and peepholes of each gate of a direction."""
        gates, found = GATES[self.op_type], dict[str, Array]()
        for name, place in (("w", 1), ("r", 2)):
            parts = np.split(operands[self.reads[place]][direction], len(gates))
            found |= {f"{name}.{gate}": part.T for gate, part in zip(gates, parts, strict=True)}
        if self.reads[3]:
            parts = np.split(operands[self.reads[3]][direction], 2 * len(gates))
            names = [f"{name}.{gate}" for name in ("wb", "rb") for gate in gates]
            found |= dict(zip(names, parts, strict=True))
        if self.reads[7]:
            parts = np.split(operands[self.reads[7]][direction], len(_PEEPHOLES))
            found |= {f"p.{gate}": part for gate, part in zip(_PEEPHOLES, parts, strict=True)}
        return found

    def initial_state(self, direction: int, operands: Mapping[str, Array], batch: int) -> dict[str, Array]:
        """Returns the state before the first step: h and, for an LSTM, c, each [batch, hidden]."""
        hidden, found = operands[self.reads[2]].shape[-1], dict[str, Array]()
        for name, place in (("h", 5), ("c", 6)):
            if name == "c" and self.op_type != "LSTM":
                continue
            given = operands[self.reads[place]] if self.reads[place] else None
            found[name] = np.zeros((batch, hidden)) if given is None else given[direction]
        return found


@dataclass(slots=True)
class _Nodes(NodeBuilder):
    """Builder of the nodes of a step. `given`: which of bias and peepholes exist. `clip`: 0 for none."""

    activations: Sequence[tuple[str, dict[str, float]]]
    given: frozenset[str]
    clip: float

    def state(self, name: str, value: str) -> str:
        return self.add("Identity", value, name=name)

    def of_input(self, gate: str) -> str:
        """Adds the part of a gate that depends on the input."""
        product = self.add("MatMul", "x", f"w.{gate}")
        return self.add("Add", product, f"wb.{gate}") if "bias" in self.given else product

    def of_state(self, gate: str, state: str = "h") -> str:
        """Adds the part of a gate that depends on the previous state."""
        product = self.add("MatMul", state, f"r.{gate}")
        return self.add("Add", product, f"rb.{gate}") if "bias" in self.given else product

    def gate(self, gate: str, state: str = "h", cell: str = "") -> str:
        """Adds the argument of a gate's activation. `cell`: the cell state that a peephole reads."""
        total = self.add("Add", self.of_input(gate), self.of_state(gate, state))
        if cell and "peepholes" in self.given:
            total = self.add("Add", total, self.add("Mul", f"p.{gate}", cell))
        return total

    def activated(self, number: int, argument: str) -> str:
        """Adds the activation of a gate, with the clipping before it."""
        if self.clip:
            argument = self.add("Clip", argument, self.number(-self.clip), self.number(self.clip))
        return self.function(number, argument)

    def function(self, number: int, argument: str) -> str:
        """Adds an activation of the layer, given by its number."""
        name, parameters = self.activations[number]
        match name:
            case "Affine":
                product = self.add("Mul", argument, self.number(parameters["alpha"]))
                return self.add("Add", product, self.number(parameters["beta"]))
            case "ScaledTanh":
                inner = self.add("Tanh", self.add("Mul", argument, self.number(parameters["beta"])))
                return self.add("Mul", inner, self.number(parameters["alpha"]))
            case _:
                return self.add(name, argument, attributes=parameters)

    def gru(self, *, reset_after: bool) -> None:
        update, reset = (self.activated(0, self.gate(gate)) for gate in "zr")
        if reset_after:
            kept = self.add("Mul", reset, self.of_state("h"))
            argument = self.add("Add", self.of_input("h"), kept)
        else:
            argument = self.gate("h", self.add("Mul", reset, "h"))
        new = self.add("Mul", self.add("Sub", self.number(1.0), update), self.activated(1, argument))
        self.state("h.next", self.add("Add", new, self.add("Mul", update, "h")))

    def lstm(self, *, coupled: bool) -> None:
        let_in = self.activated(0, self.gate("i", cell="c"))
        kept = self.add("Sub", self.number(1.0), let_in) if coupled else self.activated(0, self.gate("f", cell="c"))
        new = self.add("Mul", let_in, self.activated(1, self.gate("c")))
        cell = self.state("c.next", self.add("Add", self.add("Mul", kept, "c"), new))
        let_out = self.activated(0, self.gate("o", cell=cell))
        # NOTE: onnxruntime does not clip the cell here.
        self.state("h.next", self.add("Mul", let_out, self.function(2, cell)))


@dataclass(slots=True, eq=False)
class Recurrence:
    """A recurrent layer, and the evaluator of a step for each direction."""

    layer: RecurrentLayer
    steps: Sequence[NodeEvaluator]

    def compute(
        self, inputs: Mapping[str, Array], names: Sequence[str], rng: np.random.Generator | None
    ) -> dict[str, Array]:
        """Computes the layer step by step. With `rng`, errors are added in each step (see `Float64Model.run`)."""
        layer = self.layer
        # For each direction, the states in the order of time, and the last state.
        found = [self._direction(d, inputs[layer.reads[0]], inputs, rng) for d in range(len(self.steps))]
        every = np.stack([states for states, _ in found], 1)
        lasts = [np.stack([last[part] for _, last in found]) for part in ("h", "c") if part in found[0][1]]
        return {name: r for name, r in zip(layer.writes, [every, *lasts], strict=False) if name in names}

    def _direction(
        self, direction: int, sequence: Array, operands: Mapping[str, Array], rng: np.random.Generator | None
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the hidden states [step, batch, hidden] of a direction, and its last state."""
        backwards = self.layer.reversed_directions[direction]
        weights = self.layer.weights(direction, operands)
        state = self.layer.initial_state(direction, operands, sequence.shape[1])
        states: list[Array] = []
        for x in sequence[::-1] if backwards else sequence:
            nexts = self.steps[direction].compute({"x": x, **state, **weights}, [f"{n}.next" for n in state], rng)
            state = {name: nexts[f"{name}.next"] for name in state}
            states.append(state["h"])
        hidden = np.stack(states) if states else np.zeros((0, *state["h"].shape))
        return (hidden[::-1] if backwards else hidden), state
