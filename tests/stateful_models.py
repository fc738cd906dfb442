"""Models whose outputs are the next values of inputs, and onnxruntime stepping through them with its own states."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.recurrent_models import GATES
from tests.tiny_models import Array, node, random
from validator.model.ort_session import create_session
from validator.model.types import number_type


def model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, Any] | None = None,
    *,
    wholes: Sequence[str] = (),
) -> ModelProto:
    """Tensors are float32, those in `wholes` int64."""

    def value(name: str, shape: Sequence[int]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.INT64 if name in wholes else TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        list(nodes),
        "stateful",
        [value(*each) for each in inputs.items()],
        [value(*each) for each in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def recurrent_step(op_type: str, inputs: int = 6, hidden: int = 8) -> ModelProto:
    """One step of a recurrent layer between two dense layers; states as torch names them."""
    rows, states = GATES[op_type] * hidden, ["h0", "c0"][: 1 + (op_type == "LSTM")]
    ends = [f"{name[0]}n" for name in states]
    constants = {
        "w0": random(inputs, inputs, seed=1) / 2,
        "wi": random(1, rows, inputs, seed=2) / 2,
        "wh": random(1, rows, hidden, seed=3) / 3,
        "b": random(1, 2 * rows, seed=4) / 5,
        "w1": random(hidden, 3, seed=5) / 2,
        "shape": np.array([1, hidden]),
    }
    nodes = [
        node("MatMul", "x w0", "a"),
        node(op_type, f"a wi wh b - {' '.join(states)}", f"s {' '.join(ends)}", hidden_size=hidden),
        node("Reshape", "s shape", "flat"),
        node("MatMul", "flat w1", "y", name="last"),
    ]
    shapes = {"x": (1, 1, inputs), **dict.fromkeys(states, (1, 1, hidden))}
    return model(nodes, shapes, {"y": (1, 3), **dict.fromkeys(ends, (1, 1, hidden))}, constants)


def elman_step(inputs: int = 6, hidden: int = 12, activation: str = "Relu") -> ModelProto:
    """One step of a recurrent layer of two dense layers, whose state is read by another one."""
    nodes = [
        node("MatMul", "x w0", "a"),
        node("MatMul", "h0 wh", "b"),
        node("Add", "a b", "c"),
        node("Add", "c bias", "d"),
        node(activation, "d", "hn"),
        node("MatMul", "hn w1", "y"),
    ]
    constants = {
        **{"w0": random(inputs, hidden, seed=1) / 2, "wh": random(hidden, hidden, seed=2) / 4},
        **{"bias": random(hidden, seed=3) / 3, "w1": random(hidden, 3, seed=4) / 3},
    }
    return model(nodes, {"x": (1, inputs), "h0": (1, hidden)}, {"y": (1, 3), "hn": (1, hidden)}, constants)


def cached_convolution(channels: int = 5, taps: int = 3, dilation: int = 2) -> ModelProto:
    """A causal convolution of one frame: the cache has the frames before."""
    kept = (taps - 1) * dilation
    nodes = [
        node("Concat", "cache frame", "all", axis=2),
        node("Conv", "all w b", "c", kernel_shape=[taps], dilations=[dilation]),
        node("Relu", "c", "y"),
        node("Slice", "all first last axis", "cache_out"),
    ]
    constants = {
        **{"w": random(4, channels, taps, seed=1) / 3, "b": random(4, seed=2)},
        **{"first": np.array([1]), "last": np.array([1 + kept]), "axis": np.array([2])},
    }
    shapes = {"frame": (1, channels, 1), "cache": (1, channels, kept)}
    return model(nodes, shapes, {"y": (1, 4, 1), "cache_out": (1, channels, kept)}, constants)


def window(rows: int = 5, width: int = 6) -> ModelProto:
    """The last rows of a signal, scaled: nothing reads the oldest row, which the next step drops."""
    nodes = [
        node("Slice", "rows second end axis", "kept"),
        node("Concat", "kept row", "rows_out", axis=2),
        node("Mul", "rows_out factor", "y"),
    ]
    constants = {"second": np.array([1]), "end": np.array([99]), "axis": np.array([2]), "factor": np.float32(0.5)}
    shape = (1, 2, rows, width)
    return model(nodes, {"row": (1, 2, 1, width), "rows": shape}, {"y": shape, "rows_out": shape}, constants)


def packed_states(units: int = 8, cells: int = 2, *, read_whole: bool = False) -> ModelProto:
    """Recurrent cells of two vectors each, which are all kept in one tensor: the elements of two vectors alternate.

    With `read_whole`, the model returns a function of the whole state, too.
    """
    nodes, constants, below = list[NodeProto](), dict[str, Any](), "x"
    for cell in range(cells):
        for part in range(2):
            ends = {"from": [cell, part], "to": [cell + 1, part + 1]}
            constants |= {f"{end}{cell}{part}": np.array(numbers) for end, numbers in ends.items()}
            nodes += [
                node("Slice", f"state from{cell}{part} to{cell}{part} axes", f"cut{cell}{part}"),
                node("Squeeze", f"cut{cell}{part} axes", f"old{cell}{part}"),
            ]
        constants |= {
            f"w{cell}": random(units, units, seed=cell) / 3,
            f"u{cell}": random(units, units, seed=7 + cell) / 3,
        }
        nodes += [
            node("MatMul", f"{below} w{cell}", f"a{cell}"),
            node("MatMul", f"old{cell}0 u{cell}", f"b{cell}"),
            node("Add", f"a{cell} b{cell}", f"c{cell}"),
            node("Tanh", f"c{cell}", f"new{cell}0"),
            node("Mul", f"old{cell}1 half", f"d{cell}"),
            node("Add", f"d{cell} new{cell}0", f"new{cell}1"),
            *(node("Unsqueeze", f"new{cell}{part} axes", f"part{cell}{part}") for part in range(2)),
            node("Concat", f"part{cell}0 part{cell}1", f"cell{cell}", axis=3),
        ]
        below = f"new{cell}0"
    nodes.append(node("Concat", " ".join(f"cell{cell}" for cell in range(cells)), "next_state", axis=1))
    nodes.append(node("MatMul", f"{below} last", "y"))
    for each in nodes:
        each.name = each.output[0]
    constants |= {"axes": np.array([1, 3]), "half": np.float32(0.5), "last": random(units, 3, seed=5)}
    shape = (1, cells, units, 2)
    outputs = {"y": (1, 3), "next_state": shape}
    if read_whole:
        nodes.append(node("Relu", "state", "z"))
        outputs["z"] = shape
    return model(nodes, {"x": (1, units), "state": shape}, outputs, constants)


def recurrent_image(channels: int = 4, pixels: int = 7) -> ModelProto:
    """A convolution of an image and of its own last result."""
    nodes = [
        node("Concat", "x state", "both", axis=1),
        node("Conv", "both w", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Tanh", "c", "next_state"),
        node("Relu", "next_state", "y"),
    ]
    shape = (1, channels, pixels, pixels)
    shapes = {"x": (1, 2, pixels, pixels), "state": shape}
    weights = random(channels, 2 + channels, 3, 3, seed=1) / 5
    return model(nodes, shapes, {"y": shape, "next_state": shape}, {"w": weights})


def exchanged(kind: str) -> tuple[ModelProto, dict[str, str]]:
    """States that become others as they are: `kept`, `delayed`, `swapped` or `shifted`; and the pairs."""
    nexts = {"kept": ("s", "t"), "delayed": ("x", "t"), "swapped": ("t", "s"), "shifted": ("x", "s")}[kind]
    nodes = [node("Add", "x s", "a"), node("Mul", "a t", "y")]
    nodes += [node("Identity", old, new, name=f"to_{new}") for old, new in zip(nexts, ("s2", "t2"), strict=True)]
    shape = (1, 8)
    outputs = dict.fromkeys(("y", "s2", "t2"), shape)
    return model(nodes, dict.fromkeys(("x", "s", "t"), shape), outputs), {"s": "s2", "t": "t2"}


def counted() -> ModelProto:
    """A position that selects a row of a table, and grows."""
    nodes = [node("Add", "n one", "n_out"), node("Gather", "table n", "row"), node("Add", "row x", "y", name="last")]
    constants = {"one": np.array([1]), "table": random(32, 4)}
    shapes, outputs = {"x": (1, 4), "n": (1,)}, {"y": (1, 4), "n_out": (1,)}
    return model(nodes, shapes, outputs, constants, wholes=("n", "n_out"))


class Reference:
    """onnxruntime, without optimisations, stepping through a model with its own states."""

    def __init__(self, proto: ModelProto, pairs: Mapping[str, str], seed: int = 0) -> None:
        self.session = create_session(proto.SerializeToString(), proto.graph.name)
        self.pairs, self.rng = pairs, np.random.default_rng(seed)
        self.given = {i.name: i for i in self.session.get_inputs()}
        self.names = [o.name for o in self.session.get_outputs()]
        self.states = {name: self.draw(name) for name in pairs}

    def draw(self, name: str) -> Array:
        shape, dtype = self.given[name].shape, number_type(self.given[name].type)
        if dtype is not None and dtype.kind in "iu":
            return self.rng.integers(0, 4, shape).astype(dtype)
        return self.rng.standard_normal(shape).astype(np.float32)

    def step(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Inputs of one step but the states, and all outputs."""
        inputs = {name: self.draw(name) for name in self.given if name not in self.pairs}
        found = dict(zip(self.names, self.session.run(self.names, {**inputs, **self.states}), strict=True))
        self.states = {name: found[output] for name, output in self.pairs.items()}
        return inputs, found

    def steps(self, count: int) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        return (self.step() for _ in range(count))
