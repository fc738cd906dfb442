"""Random small ONNX models over every operator of docs/reference/operators.md, of any opset, for hypothesis or a seed.

Every node is run by onnxruntime as soon as it is drawn: this gives its shape, keeps out what onnxruntime refuses, and
tells the size of its values, which are scaled back to about 1 where they leave that range. So no wrong element hides
behind large ones, however deep the model.

Each value has a second version, `rounded`: every node that computes reads its operands with noise of `ROUNDING`,
several times what float32 rounding does to one operator. A node after which the two versions differ by more than
`SENSITIVITY` is not taken (a normalisation of nearly equal numbers, a logarithm near 1): what is left deviates by
rounding less than `TOLERANCE`, and whatever deviates more is wrong.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.tiny_models import Array

ROUNDING = 1e-6
"""Relative to the largest value of a tensor: 16 half units in the last place."""
SENSITIVITY = 3e-5
TOLERANCE = 2 * SENSITIVITY
"""Twice the measured sensitivity: in one draw of noise of ten thousand, errors cancel and rounding goes further."""
OPSETS = (*range(7, 27), 24, 25, 26)
"""Versions that onnxruntime loads. The newest, which have most operators, are drawn twice."""
MAX_ELEMENTS = 240
MAX_INPUTS = 4
MOST_WHOLE = 1000
"""Largest integer: products of a few are still exact on a chip of floats."""

T = TypeVar("T")
Shape = tuple[int, ...]
Step = Callable[["Builder"], None]
FAMILIES = (
    "convolution",
    "product",
    "recurrent",
    "pool",
    "elementwise",
    "normalisation",
    "movement",
    "resize",
    "truth",
)
STEPS: dict[str, list[Step]] = {family: [] for family in FAMILIES}
"""Family -> functions that add an operator of it."""


class MisfitError(Exception):
    """The drawn values make no node; nothing is added."""


@dataclass(frozen=True, slots=True)
class Value:
    """A computed tensor: as onnxruntime computes it, and with the rounding of a far worse machine."""

    exact: Array
    rounded: Array

    @property
    def shape(self) -> Shape:
        return self.exact.shape

    def disturbed(self, noise: float, rng: np.random.Generator) -> Array:
        """Adds noise to each element, as a part of the largest: equal elements become different, as in an operator.

        Integers and truth values have no noise.
        """
        if self.exact.dtype != np.float32:
            return self.exact
        added = noise * float(np.abs(self.exact).max()) * rng.uniform(-1, 1, self.shape)
        return np.asarray(self.rounded + added, np.float32)


@dataclass
class Builder:
    """A model in the making."""

    rng: Random
    opset: int = 17
    made: int = 0
    """Names given to results."""
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    pool: list[str] = field(default_factory=list)
    """Floats of a good size, from which operands are taken."""
    wholes: list[str] = field(default_factory=list)
    """Integers and truth values."""

    # Draws

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.number(0, len(values) - 1)]

    def chance(self, of: int = 2) -> bool:
        """Returns True once in `of`; shrinks to False."""
        return self.number(1, of) == of

    def subset(self, values: Sequence[T]) -> list[T]:
        return [v for v in values if self.chance()]

    def need(self, condition: bool) -> None:
        if not condition:
            raise MisfitError

    # Operands

    def shape(self, name: str) -> Shape:
        return self.values[name].shape

    def tensor(self, *ranks: int) -> str:
        """A computed tensor, of one of these ranks if any are given; later ones are likelier."""
        known = [n for n in self.pool if not ranks or len(self.shape(n)) in ranks]
        if known and not (ranks and self.chance(6)):
            return known[max(self.number(0, len(known) - 1) for _ in range(2))]
        name = self.tensor()
        return self.reshape(name, self.factors(math.prod(self.shape(name)), self.pick(ranks)))

    def factors(self, size: int, rank: int) -> Shape:
        """A random shape of so many elements."""
        dims: list[int] = []
        for _ in range(rank - 1):
            dims.append(self.pick([d for d in range(1, size + 1) if size % d == 0 and d <= 12]))
            size //= dims[-1]
        at = self.number(0, rank - 1) if rank else 0
        return (*dims[:at], size, *dims[at:]) if rank else ()

    def constant(self, *shape: int, fan_in: int = 1, low: float | None = None) -> str:
        """Normal numbers; with `low` their absolute values above it."""
        rng = np.random.default_rng((len(self.constants), len(self.nodes)))
        values = rng.standard_normal(shape) / math.sqrt(fan_in)
        return self.given(values if low is None else abs(values) + low)

    def given(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def ints(self, values: Any) -> str:
        return self.given(values, np.int64)

    def input(self, shape: Shape) -> str:
        rng = np.random.default_rng((len(self.inputs), *shape))
        name = self._input(rng.standard_normal(shape).astype(np.float32))
        self.pool.append(name)
        return name

    def whole_input(self, shape: Shape, kind: Any, low: int, high: int) -> str:
        """An input of integers from `low` to `high`, or of truth values."""
        rng = np.random.default_rng((len(self.inputs), *shape))
        name = self._input(rng.integers(low, high + 1, shape).astype(kind))
        self.wholes.append(name)
        return name

    def _input(self, array: Array) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        self.values[name] = Value(array, array)
        return name

    def computed(self, shape: Shape) -> str:
        """A tensor of this shape that is not a constant: one there is, a new input, or parts of another."""
        self.need(math.prod(shape) <= MAX_ELEMENTS)
        same = [n for n in self.pool if self.shape(n) == shape]
        if same and not self.chance(6):
            return self.pick(same)
        if len(self.inputs) < MAX_INPUTS and self.chance():
            return self.input(shape)
        return self.fitted(self.tensor(), shape)

    def fitted(self, name: str, shape: Shape) -> str:
        size, wanted = math.prod(self.shape(name)), math.prod(shape)
        if size != wanted:
            name = self.reshape(name, (size,))
            if size < wanted:
                name = self.emit("Tile", [name, self.ints([-(-wanted // size)])])
            name = self.sliced(name, [0], [wanted], [0])
        return self.reshape(name, shape)

    def operand(self, shape: Shape) -> str:
        """A constant or a computed tensor."""
        return self.constant(*shape) if self.chance() else self.computed(shape)

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that can be broadcast to this one."""
        kept = tuple(1 if self.chance(3) else n for n in shape)
        return kept[self.number(0, len(kept)) :] if self.chance(3) else kept

    def partner(self, shape: Shape) -> Shape:
        """A shape that can be broadcast with this one, perhaps larger."""
        if self.chance(4):
            larger = tuple(self.number(1, 4) if n == 1 else n for n in shape)
            return (self.number(1, 3), *larger) if len(larger) < 5 and self.chance() else larger
        return self.broadcast(shape)

    def axis(self, rank: int) -> int:
        axis = self.number(0, rank - 1)
        return axis - rank if self.opset >= 11 and self.chance(3) else axis

    def axes(self, rank: int, *, at_least: int = 0) -> list[int]:
        chosen = self.subset(range(rank))
        self.need(len(chosen) >= at_least)
        return [a - rank if self.opset >= 11 and self.chance(3) else a for a in chosen]

    # Results

    def reshape(self, name: str, shape: Shape) -> str:
        if self.shape(name) == shape:
            return name
        return self.emit("Reshape", [name, self.ints(shape)])

    def sliced(
        self,
        x: str,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:
        if self.opset < 10:
            return self.emit("Slice", [x], starts=list(starts), ends=list(ends), axes=list(axes))
        inputs = [x, self.ints(starts), self.ints(ends), self.ints(axes)]
        return self.emit("Slice", [*inputs, self.ints(steps)] if steps else inputs)

    def positive(self, name: str) -> str:
        """A tensor made of this one whose values are above 0, by some 0.1."""
        if self.chance():
            return self.emit("Add", [self.emit("Abs", [name]), self.given(0.3)])
        return self.emit("Add", [self.emit("Sigmoid", [name]), self.given(0.2)])

    def emit(self, op: str, inputs: Sequence[str], outputs: Sequence[bool] = (True,), **attributes: Any) -> str:
        """Adds a node and returns the first of its outputs; raises `MisfitError` if it is not to be."""
        names = [f"t{self.made + i}" if wanted else "" for i, wanted in enumerate(outputs)]
        while names[-1] == "":
            names.pop()
        node = helper.make_node(op, list(inputs), names, name=f"{op.lower()}_{len(self.nodes)}", **attributes)
        results = self.results(node)
        self.nodes.append(node)
        self.made += len(names)
        self.values |= results
        return next(iter([self.scaled(name) for name in results]))

    def results(self, node: NodeProto) -> dict[str, Value]:
        constants = {n: self.constants[n] for n in node.input if n in self.constants}
        read = {n: self.values[n] for n in node.input if n in self.values}
        exact = run_node(node, self.opset, constants | {n: v.exact for n, v in read.items()})
        noise = 0 if node.op_type in EXACT else ROUNDING
        rng = np.random.default_rng(len(self.values))
        rounded = run_node(node, self.opset, constants | {n: v.disturbed(noise, rng) for n, v in read.items()})
        return {name: self.checked(Value(value, rounded[name])) for name, value in exact.items()}

    def checked(self, value: Value) -> Value:
        """Returns the value; raises `MisfitError` unless it is small, and depends but little on rounding."""
        exact, other = value.exact, value.rounded
        self.need(0 < exact.size <= MAX_ELEMENTS and exact.ndim <= 6)
        if exact.dtype != np.float32:
            self.need(exact.dtype.kind in "biu" and np.array_equal(exact, other))
            self.need(exact.dtype == np.bool_ or int(np.abs(exact.astype(np.int64)).max()) <= MOST_WHOLE)
            return value
        self.need(bool(np.isfinite(exact).all() and np.isfinite(other).all()))
        scale = float(np.abs(exact).max())
        self.need(0.03 <= scale <= 1e6)
        self.need(float(np.abs(other - exact).max()) <= SENSITIVITY * scale)
        return value

    def scaled(self, name: str) -> str:
        """The value itself, or its multiple, into the pool; integers and truth values stay as they are.

        No multiple has 1 for its largest value: rounding decides whether its whole part is 1.
        """
        if self.values[name].exact.dtype != np.float32:
            self.wholes.append(name)
            return name
        scale = float(np.abs(self.values[name].exact).max())
        self.need(scale > 0)  # such as a convolution of nothing but padding
        if not 0.1 <= scale <= 4:
            return self.emit("Mul", [name, self.given(np.float32(0.93 / scale))])
        self.pool.append(name)
        return name

    def model(self) -> ModelProto:
        """Outputs: all values that nobody reads, one that is read as well, sometimes a constant."""
        made = [o for n in self.nodes for o in n.output if o]
        read = {i for n in self.nodes for i in n.input}
        inner = self.pick(made)
        outputs = {n: self.values[n].exact for n in made if n not in read or n == inner}
        floats = [n for n, a in self.constants.items() if n in read and a.dtype == np.float32 and a.size]
        if floats and self.chance(8):
            name = self.pick(floats)
            outputs[name] = self.constants[name]
        as_nodes = [n for n in self.constants if n in read and n not in outputs and self.chance(8)]
        constants = [helper.make_node("Constant", [], [n], value=_proto(self.constants[n])) for n in as_nodes]
        graph = helper.make_graph(
            [*constants, *self.nodes],
            "random",
            [_info(n, a, a.shape) for n, a in self.inputs.items()],
            [_info(n, a, [None] * a.ndim) for n, a in outputs.items()],
            [_proto(a, n) for n, a in self.constants.items() if n in read and n not in as_nodes],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def _info(name: str, array: Array, shape: Sequence[int | None]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _proto(array: Array, name: str = "") -> TensorProto:
    return numpy_helper.from_array(array, name)


def run_node(node: NodeProto, opset: int, operands: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one node by onnxruntime; `MisfitError` if it refuses it."""
    given = {n: a for n, a in operands.items() if n.startswith(("x", "t"))}
    graph = helper.make_graph(
        [node],
        "node",
        [_info(n, a, a.shape) for n, a in given.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        [_proto(a, n) for n, a in operands.items() if n not in given],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, given), strict=True))
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise MisfitError(str(error)) from None


EXACT = frozenset([
    "Abs", "Cast", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu",
    "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where",
])  # fmt: skip
"""Operators that round nothing."""


def step(family: str, times: int = 1) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS[family].extend([function] * times)
        return function

    return register
