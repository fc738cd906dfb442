"""Tiny models of one recurrent layer."""

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.tiny_models import node, random

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 3, 2, 4, 5
OP_TYPES = list(GATES)


def recurrent(
    op_type: str,
    *,
    extra: str = "",
    computed: str = "",
    outputs: str | None = None,
    sizes: tuple[int, int, int, int] = (STEPS, BATCH, INPUTS, HIDDEN),
    lengths: list[int] | None = None,
    **attributes: Any,
) -> ModelProto:
    """`extra`: optional inputs among B, h, c, P; those in `computed` are inputs of the model."""
    steps, batch, inputs, hidden = sizes
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op_type] * hidden
    shapes = {
        "W": (directions, rows, inputs),
        "R": (directions, rows, hidden),
        "B": (directions, 2 * rows),
        "h": (directions, batch, hidden),
        "c": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    used = set("WR" + extra) - set(computed)
    values = {n: random(*s, seed=i) for i, (n, s) in enumerate(shapes.items()) if n in used}
    names = ["x", "W", "R", *(n if n in extra else "" for n in "B"), "l" if lengths else ""]
    names += [n if n in extra else "" for n in ("hcP" if op_type == "LSTM" else "h")]
    if lengths:
        values["l"] = np.array(lengths, np.int32)
    made = outputs or ("y h_n c_n" if op_type == "LSTM" else "y h_n")
    layer = node(op_type, "x W R", made.replace("-", " - "), hidden_size=hidden, **attributes)
    del layer.input[:], layer.output[:]
    layer.input.extend(names)
    layer.output.extend("" if n == "-" else n for n in made.split())
    graph = helper.make_graph(
        [layer],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, inputs])]
        + [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in computed],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * (4 if n == "y" else 3))
            for n in made.split()
            if n != "-"
        ],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
