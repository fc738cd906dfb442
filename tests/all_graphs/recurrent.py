"""Recurrent layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.all_graphs.builder import Builder, step

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
GATE_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
BOUNDED = ("HardSigmoid", "Sigmoid", "Softsign", "Tanh")
MANY_STEPS = 5
"""Steps beyond which gates must be bounded: as factors of one another, they leave the range of float32 within 20 steps.
Where another gate is 0, the result is 0 all the same, but by inf * 0."""
PLAIN_ACTIVATIONS = ("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus")


@step("recurrent")
def recurrent(b: Builder) -> None:
    x = b.tensor(3)
    steps, batch, ins = b.shape(x)
    b.need(steps <= MANY_STEPS and batch <= 4 and ins <= 10)
    _layer(b, x, b.pick(["forward", "reverse", "bidirectional"]))


@step("recurrent")
def both_ways(b: Builder) -> None:
    """Enough steps in both directions for results of early ones to wait for long."""
    _layer(b, b.computed((b.number(6, 20), 1, b.number(1, 6))), "bidirectional")


def _layer(b: Builder, x: str, direction: str) -> None:
    op, (steps, batch, ins), hidden = b.pick(["RNN", "GRU", "LSTM"]), b.shape(x), b.number(1, 4)
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * hidden
    inputs = [x, b.constant(directions, rows, ins, fan_in=ins), b.constant(directions, rows, hidden, fan_in=hidden)]
    inputs.append(b.constant(directions, 2 * rows) if b.chance() else "")
    inputs.append(b.given([steps] * batch, np.int32) if b.chance(4) else "")
    inputs.append(b.operand((directions, batch, hidden)) if b.chance() else "")
    if op == "LSTM":
        inputs.append(b.operand((directions, batch, hidden)) if b.chance() else "")
        inputs.append(b.constant(directions, 3 * hidden) if b.chance(3) else "")
    while not inputs[-1]:
        inputs.pop()
    attributes = dict(_cell_attributes(b, op, directions), hidden_size=hidden, direction=direction)
    gates, *_ = attributes.get("activations", BOUNDED)
    b.need(op == "RNN" or steps <= MANY_STEPS or gates in BOUNDED)
    outputs = [b.chance() for _ in range(3 if op == "LSTM" else 2)]
    b.emit(op, inputs, outputs if any(outputs) else [True], **attributes)


def _cell_attributes(b: Builder, op: str, directions: int) -> Iterator[tuple[str, Any]]:
    if b.chance(4):
        yield "clip", 0.75
    if op == "GRU":
        yield "linear_before_reset", b.number(0, 1)
    if op == "LSTM" and b.chance(4):
        yield "input_forget", 1
    if b.chance(3):
        yield "activations", [b.pick(PLAIN_ACTIVATIONS) for _ in range(GATE_FUNCTIONS[op])] * directions
    elif b.chance(4):
        name, alpha, beta = b.pick(
            [("LeakyRelu", 0.2, 0), ("Elu", 0.7, 0), ("HardSigmoid", 0.3, 0.4), ("Affine", 0.5, 0.1)]
        )
        count = GATE_FUNCTIONS[op] * directions
        yield from (("activations", [name] * count), ("activation_alpha", [alpha] * count))
        if beta:
            yield "activation_beta", [beta] * count
