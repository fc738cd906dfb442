"""Random small ONNX models over every operator of docs/operators.md, of any opset, for hypothesis or a seed.

Every node is run by onnxruntime as soon as it is drawn: this gives its shape, keeps out what onnxruntime refuses, and
tells the size of its values, which are scaled back to about 1 where they leave that range. So no wrong element hides
behind large ones, however deep the model.

Each value has a second version, `rounded`: every node that computes reads its operands with noise of `ROUNDING`,
several times what float32 rounding does to one operator. A node after which the two versions differ by more than
`TOLERANCE` is not taken (a normalisation of nearly equal numbers, a logarithm near 1): what is left deviates by
rounding less than that, and whatever deviates more is wrong.
"""

import math
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import raptor
from raptor.errors import CapacityError
from tests.frontend.support import Array
from tests.pipeline import arch_file
from validator.checks import Severity
from validator.simulate.builtin import simulate
from validator.validate import validate

ROUNDING = 1e-6
"""Relative to the largest value of a tensor: 16 half units in the last place."""
TOLERANCE = 3e-5
OPSETS = (*range(7, 27), 24, 25, 26)
"""What onnxruntime loads; the newest, which have most operators, twice."""
MAX_ELEMENTS = 240
MAX_INPUTS = 4

T = TypeVar("T")
Shape = tuple[int, ...]
Step = Callable[["Builder"], None]
STEPS: dict[str, list[Step]] = {}
"""Family -> functions that add an operator of it."""


class MisfitError(Exception):
    """What was drawn makes no node; nothing of it is added."""


@dataclass(frozen=True, slots=True)
class Value:
    """A computed tensor: as onnxruntime computes it, and with the rounding of a far worse machine."""

    exact: Array
    rounded: Array

    @property
    def shape(self) -> Shape:
        return self.exact.shape

    def disturbed(self, noise: float, rng: np.random.Generator) -> Array:
        """Each element by so much of the largest: equal ones become different, as they do inside of an operator."""
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
    """Values of a good size, from which operands are taken."""

    # Draws

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, values: Sequence[T]) -> T:
        return values[self.number(0, len(values) - 1)]

    def chance(self, of: int = 2) -> bool:
        """One in `of`; shrinks to False."""
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
        name = f"x{len(self.inputs)}"
        array = np.random.default_rng((len(self.inputs), *shape)).standard_normal(shape).astype(np.float32)
        self.inputs[name] = array
        self.values[name] = Value(array, array)
        self.pool.append(name)
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
            name = sliced(self, name, [0], [wanted], [0])
        return self.reshape(name, shape)

    def operand(self, shape: Shape) -> str:
        """A constant or a computed tensor."""
        return self.constant(*shape) if self.chance() else self.computed(shape)

    def broadcast(self, shape: Shape) -> Shape:
        """A shape that can be broadcast to this one."""
        kept = tuple(1 if self.chance(3) else n for n in shape)
        return kept[self.number(0, len(kept)) :] if self.chance(3) else kept

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
        results: dict[str, Value] = {}
        for name, value in exact.items():
            self.need(value.dtype == np.float32 and 0 < value.size <= MAX_ELEMENTS and value.ndim <= 6)
            other = rounded[name]
            self.need(bool(np.isfinite(value).all() and np.isfinite(other).all()))
            scale = float(np.abs(value).max())
            self.need(0.03 <= scale <= 1e6)
            self.need(float(np.abs(other - value).max()) <= TOLERANCE * scale)
            results[name] = Value(value, other)
        return results

    def scaled(self, name: str) -> str:
        """The value itself, or its multiple, into the pool."""
        scale = float(np.abs(self.values[name].exact).max())
        if not 0.1 <= scale <= 4:
            return self.emit("Mul", [name, self.given(np.float32(1 / scale))])
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
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in self.inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * a.ndim) for n, a in outputs.items()],
            [_proto(a, n) for n, a in self.constants.items() if n in read and n not in as_nodes],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def _proto(array: Array, name: str = "") -> TensorProto:
    return numpy_helper.from_array(array, name)


def run_node(node: NodeProto, opset: int, operands: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one node by onnxruntime; `MisfitError` if it refuses it."""
    floats = {n: a for n, a in operands.items() if n.startswith(("x", "t"))}
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in floats.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        [_proto(a, n) for n, a in operands.items() if n not in floats],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, floats), strict=True))
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
        STEPS.setdefault(family, []).extend([function] * times)
        return function

    return register


# Convolutions


def image(b: Builder) -> str:
    """A tensor of rank 3 to 5 with at most 12 channels and dimensions that leave something to slide over."""
    name = b.tensor(3, 4, 4, 5)
    b.need(b.shape(name)[1] <= 12)
    return name


def sliding(b: Builder, dims: Shape, *, dilated: bool = True) -> dict[str, Any]:
    """Attributes of a window."""
    kernels = [b.number(1, min(3 if len(dims) < 3 else 2, n + 1)) for n in dims]
    attributes: dict[str, Any] = {"kernel_shape": kernels}
    if b.chance():
        attributes["strides"] = [b.number(1, 3) for _ in dims]
    if dilated and b.chance(3):
        attributes["dilations"] = [b.number(1, 2) for _ in dims]
    mode = b.pick(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if mode != "NOTSET":
        attributes["auto_pad"] = mode
    elif b.chance():
        attributes["pads"] = [b.number(0, k - 1) for k in kernels * 2]
    return attributes


@step("convolution", 4)
def conv(b: Builder) -> None:
    x = image(b)
    _, channels, *dims = b.shape(x)
    attributes = sliding(b, tuple(dims))
    group = b.pick([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    filters = group * b.number(1, max(1, 8 // group))
    kernel = attributes["kernel_shape"]
    ins = channels // group
    inputs = [x, b.constant(filters, ins, *kernel, fan_in=ins * math.prod(kernel))]
    if b.chance():
        inputs.append(b.constant(filters))
    if b.chance(4):
        del attributes["kernel_shape"]
    if group > 1:
        attributes["group"] = group
    b.emit("Conv", inputs, **attributes)


@step("convolution", 3)
def conv_transpose(b: Builder) -> None:
    x = image(b)
    _, channels, *dims = b.shape(x)
    group = b.pick([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    outs = b.number(1, max(1, 6 // group))
    kernel = [b.number(1, 3 if len(dims) < 3 else 2) for _ in dims]
    strides = [b.number(1, 3) for _ in dims]
    dilations = [b.number(1, 2) if b.chance(4) else 1 for _ in dims]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "group": group}
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(dims, strides, kernel, dilations, strict=True)]
    form = b.number(0, 3)
    if form == 1:
        # onnx and onnxruntime disagree about outputs smaller than the input's share.
        b.need(all(f >= n * s for f, n, s in zip(full, dims, strides, strict=True)))
        attributes["auto_pad"] = b.pick(["SAME_UPPER", "SAME_LOWER"])
    elif form == 2:
        attributes["output_shape"] = [b.number(max(1, f - 2), f) for f in full]
        # onnx infers no shape below the input's.
        b.need(all(o >= n for o, n in zip(attributes["output_shape"], dims, strict=True)))
    elif form == 3:
        attributes["pads"] = [b.number(0, k - 1) for k in kernel * 2]
    if form in (0, 3) and b.chance(3):
        attributes["output_padding"] = [b.number(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)]
    ins = channels // group
    inputs = [x, b.constant(channels, outs, *kernel, fan_in=max(1, ins))]
    if b.chance():
        inputs.append(b.constant(outs * group))
    b.emit("ConvTranspose", inputs, **attributes)


# Products


@step("product", 3)
def gemm(b: Builder) -> None:
    x = b.tensor(2)
    outs = b.number(1, 12)
    trans_a, trans_b = b.number(0, 1), b.number(0, 1)
    rows, inner = b.shape(x)[::-1] if trans_a else b.shape(x)
    shape = (outs, inner) if trans_b else (inner, outs)
    y = b.computed(shape) if b.chance(3) else b.constant(*shape, fan_in=inner)
    attributes: dict[str, Any] = {"transA": trans_a, "transB": trans_b}
    if b.chance(4):
        # The constant on the left.
        x, y = b.constant(*((inner, outs) if trans_a else (outs, inner)), fan_in=inner), x
        shape = b.shape(y)
        attributes["transB"] = int(not trans_a)
        rows, outs = outs, rows
    if b.chance(3):
        attributes["alpha"] = b.pick([0.5, 2.0, -1.5])
    if b.chance(3):
        attributes["beta"] = b.pick([0.5, 2.0, -1.5, 0.0])
    inputs = [x, y]
    if b.opset < 11 or b.chance():
        inputs.append(b.operand(b.pick([(rows, outs), (outs,), (1, outs), (rows, 1), (1,), (), (1, 1)])))
    b.emit("Gemm", inputs, **attributes)


@step("product", 4)
def matmul(b: Builder) -> None:
    x = b.tensor(1, 2, 2, 3, 3, 4)
    shape = b.shape(x)
    on_the_left = len(shape) > 1 and b.chance(3)
    inner = shape[-2] if on_the_left else shape[-1]
    free = b.number(1, 8)
    matrix = (free, inner) if on_the_left else (inner, free)
    batch = b.broadcast(shape[:-2])
    if b.chance(5):
        batch = (2, *(1 for _ in shape[:-2])) if len(shape) < 4 else batch
    other: Shape = (inner,) if b.chance(6) else (*(batch if b.chance() else ()), *matrix)
    y = b.computed(other) if b.chance() else b.constant(*other, fan_in=inner)
    b.emit("MatMul", [y, x] if on_the_left else [x, y])


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "bij,bjk->bik", "bij,jk->bik", "acd,db->abc", "acd,dbc->ab", "aebf,dfce->abcd",
    "ab,bc,cd->ad", "ij,kl->ikjl", "i,j->ij", "ij,ij->ij", "ij,ij->", "ij->ji", "ii->i", "ij->i", "ij->", "iij->j",
    "...ij,...jk->...ik", "...ij->...ji", "bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "ijk,k->ij", "ijk,jil->kl",
    "ab,cad->cdb", "ij,j,i->", "i,i->", "bi,bj->bij", "abc,bd,ce->ade",
)  # fmt: skip


@step("product", 3)
def einsum(b: Builder) -> None:
    b.need(b.opset >= 12)
    equation = b.pick(EQUATIONS)
    sizes = {letter: b.number(1, 5) for letter in dict.fromkeys(filter(str.isalpha, equation))}
    hidden = tuple(b.number(1, 3) for _ in range(b.number(0, 2)))
    terms = equation.split("->")[0].split(",")
    shapes = [
        (hidden if "..." in term else ()) + tuple(sizes[letter] for letter in term if letter.isalpha())
        for term in terms
    ]
    fixed = b.number(0, len(terms) - 1)
    operands = [b.computed(shape) if i == fixed else b.operand(shape) for i, shape in enumerate(shapes)]
    b.emit("Einsum", operands, equation=equation)


# Recurrent layers

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
GATE_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
PLAIN_ACTIVATIONS = ("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus")


@step("recurrent")
def recurrent(b: Builder) -> None:
    op = b.pick(["RNN", "GRU", "LSTM"])
    x = b.tensor(3)
    steps, batch, ins = b.shape(x)
    b.need(steps <= 5 and batch <= 4 and ins <= 10)
    hidden, direction = b.number(1, 4), b.pick(["forward", "reverse", "bidirectional"])
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


# Pools and reductions


@step("pool", 3)
def pool(b: Builder) -> None:
    x = image(b)
    dims = b.shape(x)[2:]
    op = b.pick(["MaxPool", "AveragePool", "LpPool"])
    dilated = b.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    attributes = sliding(b, dims, dilated=dilated)
    if op == "AveragePool":
        attributes["count_include_pad"] = b.number(0, 1)
    if op == "LpPool":
        attributes["p"] = b.number(1, 4)
    # Before opset 22 onnx infers one output too many in some cases.
    if b.opset >= 22 and b.chance(3) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = 1
    b.need(_all_windows_inside(dims, attributes))
    b.emit(op, [x], **attributes)


def _all_windows_inside(dims: Shape, attributes: Mapping[str, Any]) -> bool:
    """Whether every window has an element of the image (a limit of docs/operators.md)."""
    rank = len(dims)
    if attributes.get("auto_pad", "").startswith("SAME"):
        # onnxruntime counts on a kernel that is not dilated and not smaller than the stride.
        strides = attributes.get("strides", [1] * rank)
        sizes = zip(dims, attributes["kernel_shape"], strides, strict=True)
        return "dilations" not in attributes and all((-(-n // s) - 1) * s + k >= n for n, k, s in sizes)
    ones = [1] * rank
    pads = attributes.get("pads", [0] * 2 * rank)
    axes = zip(
        dims,
        attributes["kernel_shape"],
        attributes.get("strides", ones),
        attributes.get("dilations", ones),
        pads[:rank],
        pads[rank:],
        strict=True,
    )
    return all(_axis_inside(*axis, ceil=bool(attributes.get("ceil_mode"))) for axis in axes)


def _axis_inside(size: int, kernel: int, stride: int, dilation: int, before: int, behind: int, *, ceil: bool) -> bool:
    span = (kernel - 1) * dilation + 1
    steps = size + before + behind - span
    if steps < 0:
        return False
    count = (-(-steps // stride) if ceil else steps // stride) + 1
    starts = [i * stride - before for i in range(count) if not ceil or i * stride < size + before]
    return all(any(0 <= start + k * dilation < size for k in range(kernel)) for start in starts)


@step("pool")
def global_pool(b: Builder) -> None:
    x = b.tensor(3, 4, 5)
    op = b.pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    b.emit(op, [x], **({"p": b.number(1, 3)} if op == "GlobalLpPool" else {}))


REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceProd",
)  # fmt: skip


@step("pool", 3)
def reduction(b: Builder) -> None:
    op = b.pick(REDUCTIONS)
    x = b.tensor()
    rank = len(b.shape(x))
    axes = b.axes(rank)
    if op == "ReduceLogSum":
        x = b.positive(x)
    attributes: dict[str, Any] = {"keepdims": b.number(0, 1)}
    inputs = [x]
    if b.opset >= (13 if op == "ReduceSum" else 18):
        if not axes:
            attributes["noop_with_empty_axes"] = b.number(0, 1)
        if axes or b.chance():
            inputs.append(b.ints(axes))
    elif axes:
        attributes["axes"] = axes
    b.emit(op, inputs, **attributes)


# Element-wise functions

UNARY: Mapping[str, tuple[int, dict[str, Sequence[Any]]]] = {
    "Relu": (1, {}),
    "Tanh": (1, {}),
    "Sigmoid": (1, {}),
    "Erf": (9, {}),
    "Exp": (1, {}),
    "Neg": (1, {}),
    "Abs": (1, {}),
    "HardSwish": (14, {}),
    "Softplus": (1, {}),
    "Softsign": (1, {}),
    "Mish": (18, {}),
    "LeakyRelu": (1, {"alpha": [0.01, 0.3, 1.5, 0.0, -0.5]}),
    "ThresholdedRelu": (10, {"alpha": [1.0, 0.25, 0.0, -0.5]}),
    "Elu": (1, {"alpha": [1.0, 0.5, 2.0]}),
    "Selu": (1, {"alpha": [1.0, 1.6], "gamma": [0.5, 1.05]}),
    "Celu": (12, {"alpha": [1.0, 0.5, 2.0]}),
    "HardSigmoid": (1, {"alpha": [0.2, 0.5], "beta": [0.5, 0.3]}),
    "Swish": (24, {"alpha": [1.0, 0.5, 2.0]}),
    "Gelu": (20, {"approximate": ["none", "tanh"]}),
    "Dropout": (7, {}),
    "Identity": (1, {}),
    "Cast": (1, {"to": [TensorProto.FLOAT]}),
}
REQUIRED = frozenset({"to"})


@step("elementwise", 8)
def unary(b: Builder) -> None:
    op = b.pick([op for op, (since, _) in UNARY.items() if b.opset >= since])
    choices = UNARY[op][1]
    b.emit(op, [b.tensor()], **{key: b.pick(c) for key, c in choices.items() if key in REQUIRED or b.chance()})


@step("elementwise")
def of_positive(b: Builder) -> None:
    op = b.pick(["Log", "Sqrt", "Reciprocal"])
    b.emit(op, [b.positive(b.tensor())])


@step("elementwise")
def power(b: Builder) -> None:
    x = b.tensor()
    if b.chance(4):
        base = b.constant(*b.broadcast(b.shape(x)), low=0.3)
        b.emit("Pow", [base, x])
        return
    exponent = b.pick([2, 3, 0, 1, 4, 0.5, 1.5, 0.3, -1, -2, -0.5, 2.7])
    if exponent != int(exponent) or exponent < 0:
        x = b.positive(x)
    shape = b.pick([(), (1,), (1,) * len(b.shape(x))])
    whole = b.opset >= 12 and exponent == int(exponent) and b.chance(3)
    b.emit("Pow", [x, b.given(np.full(shape, exponent), np.int64 if whole else np.float32)])


@step("elementwise", 4)
def binary(b: Builder) -> None:
    op = b.pick(["Add", "Sub", "Mul", "Div"])
    x = b.tensor()
    y = b.operand(_partner(b, b.shape(x)))
    if b.chance(3):
        x, y = y, x
    if op == "Div":
        y = b.given(abs(b.constants[y]) + 0.3) if y in b.constants else b.positive(y)
    b.emit(op, [x, y])


def _partner(b: Builder, shape: Shape) -> Shape:
    """A shape that can be broadcast with this one, perhaps larger."""
    if b.chance(4):
        larger = tuple(b.number(1, 4) if n == 1 else n for n in shape)
        return (b.number(1, 3), *larger) if len(larger) < 5 and b.chance() else larger
    return b.broadcast(shape)


@step("elementwise", 2)
def variadic(b: Builder) -> None:
    op = b.pick(["Sum", "Mean", "Max", "Min"])
    x = b.tensor()
    shape = b.shape(x)
    others = [b.operand(b.broadcast(shape) if b.opset >= 8 else shape) for _ in range(b.number(0, 3))]
    at = b.number(0, len(others))
    b.emit(op, [*others[:at], x, *others[at:]])


@step("elementwise")
def clip(b: Builder) -> None:
    x = b.tensor()
    bounds = {"min": b.pick([None, -0.5, 0.0, -1.5]), "max": b.pick([None, 0.75, 0.25, 1.5, 6.0])}
    if b.opset < 11:
        b.emit("Clip", [x], **{key: value for key, value in bounds.items() if value is not None})
        return
    inputs = [x, *("" if value is None else b.given(value) for value in bounds.values())]
    if inputs[1] and b.chance(4):
        inputs[1] = b.computed(())
        b.need(inputs[2] == "" or float(b.values[inputs[1]].exact) < 0.2)
    while not inputs[-1]:
        inputs.pop()
    b.emit("Clip", inputs)


@step("elementwise")
def prelu(b: Builder) -> None:
    x = b.tensor()
    shape = b.shape(x)
    b.emit("PRelu", [x, b.operand(b.broadcast(shape))])


@step("elementwise")
def where(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor()
    shape = b.shape(x)
    mask = np.random.default_rng(len(b.nodes)).random(b.broadcast(shape)) < 0.5
    choices = [x, b.operand(_partner(b, shape))]
    b.emit("Where", [b.given(mask, np.bool_), *(reversed(choices) if b.chance() else choices)])


# Softmax and normalisations


@step("normalisation", 2)
def softmax(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4, 5)
    attributes = {} if b.chance(4) else {"axis": b.axis(len(b.shape(x)))}
    b.need(bool(attributes) or b.opset >= 13 or len(b.shape(x)) > 1)
    b.emit(b.pick(["Softmax", "LogSoftmax"]), [x], **attributes)


@step("normalisation", 2)
def batch_normalisation(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 5)
    channels = b.shape(x)[1]
    inputs = [x, *(b.constant(channels) for _ in range(3)), b.constant(channels, low=0.5)]
    b.emit("BatchNormalization", inputs, **({"epsilon": 1e-3} if b.chance() else {}))


@step("normalisation", 2)
def layer_normalisation(b: Builder) -> None:
    op = b.pick(["LayerNormalization", "RMSNormalization"])
    b.need(b.opset >= (17 if op == "LayerNormalization" else 23))
    x = b.tensor(1, 2, 3, 4)
    rank = len(b.shape(x))
    axis = b.axis(rank)
    inputs = [x, b.constant(*b.shape(x)[axis % rank :])]
    if op == "LayerNormalization" and b.chance():
        inputs.append(b.constant(*b.shape(x)[axis % rank :]))
    outputs = [True, *(b.chance(4) for _ in range(2))] if op == "LayerNormalization" else [True]
    b.emit(op, inputs, outputs, axis=axis, **({"epsilon": 1e-2} if b.chance() else {}))


@step("normalisation", 2)
def channel_normalisation(b: Builder) -> None:
    x = b.tensor(3, 4, 5)
    channels = b.shape(x)[1]
    if b.opset < 21 or b.chance():
        b.emit("InstanceNormalization", [x, b.constant(channels), b.constant(channels)], epsilon=1e-2)
        return
    groups = b.pick([g for g in range(1, channels + 1) if channels % g == 0])
    b.emit("GroupNormalization", [x, b.constant(channels), b.constant(channels)], num_groups=groups, epsilon=1e-2)


@step("normalisation")
def local_normalisation(b: Builder) -> None:
    x = b.tensor(4)
    attributes = {"size": b.pick([1, 3, 5]), "alpha": b.pick([0.1, 0.5]), "bias": b.pick([1.0, 0.7])}
    b.emit("LRN", [x], beta=b.pick([0.75, 0.5, 0.25, 1.0, 0.6]), **attributes)


@step("normalisation")
def plain_normalisation(b: Builder) -> None:
    if b.opset >= 9 and b.chance():
        b.emit("MeanVarianceNormalization", [b.tensor(4)], axes=b.pick([[0, 2, 3], [1], [0, 1, 2, 3], [2, 3]]))
        return
    x = b.tensor(1, 2, 3, 4)
    b.emit("LpNormalization", [x], axis=b.axis(len(b.shape(x))), p=b.number(1, 2))


# Movement


@step("movement", 2)
def concat(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4, 5)
    shape = b.shape(x)
    axis = b.axis(len(shape))
    place = axis % len(shape)
    fitting = [n for n in b.pool if b.shape(n)[:place] + b.shape(n)[place + 1 :] == shape[:place] + shape[place + 1 :]]
    fitting = [n for n in fitting if len(b.shape(n)) == len(shape)]
    others: list[str] = []
    for _ in range(b.number(0, 2)):
        size = b.number(1, 5)
        others.append(b.pick(fitting) if b.chance() else b.operand((*shape[:place], size, *shape[place + 1 :])))
    at = b.number(0, len(others))
    b.emit("Concat", [*others[:at], x, *others[at:]], axis=axis)


@step("movement", 2)
def split(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    size = b.shape(x)[axis]
    parts = b.number(1, min(size, 4))
    equal = size % parts == 0 and b.chance()
    attributes: dict[str, Any] = {"axis": axis}
    inputs = [x]
    if equal:
        if b.opset >= 18:
            attributes["num_outputs"] = parts
    else:
        cuts = sorted(b.number(0, size - parts) + i for i in range(parts - 1))
        cuts = [0, *(c + 1 for c in cuts), size]
        sizes = [int(n) for n in np.diff(cuts)]
        b.need(min(sizes) > 0)
        if b.opset >= 13:
            inputs.append(b.ints(sizes))
        else:
            attributes["split"] = sizes
    b.emit("Split", inputs, [True] * parts, **attributes)


def sliced(
    b: Builder,
    x: str,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> str:
    if b.opset < 10:
        return b.emit("Slice", [x], starts=list(starts), ends=list(ends), axes=list(axes))
    inputs = [x, b.ints(starts), b.ints(ends), b.ints(axes)]
    return b.emit("Slice", [*inputs, b.ints(steps)] if steps else inputs)


@step("movement", 2)
def slice_(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    axes = b.axes(len(shape), at_least=1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        first = b.number(0, size - 1)
        last = b.number(first, size - 1)
        if b.opset >= 10 and b.chance(3):
            starts.append(b.pick([last, last - size]))
            ends.append(first - 1 if first else b.pick([-size - 1, -1000]))
            steps.append(-b.number(1, 2))
        else:
            starts.append(b.pick([first, first - size]))
            ends.append(b.pick([last + 1, last + 1 if last + 1 < size else 1000]))
            steps.append(b.number(1, 2) if b.opset >= 10 else 1)
    sliced(b, x, starts, ends, axes, steps)


@step("movement", 2)
def pad(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    mode = b.pick(["constant", "constant", "reflect", "edge", *(["wrap"] if b.opset >= 19 else [])])
    axes = list(range(len(shape)))
    if b.opset >= 18 and b.chance(3):
        axes = b.axes(len(shape), at_least=1)
    low = -1 if mode == "constant" else 0
    pads = [b.number(low if shape[a] > 2 else 0, min(2, shape[a] - 1) if mode != "constant" else 2) for a in axes * 2]
    value = b.pick([0.0, 0.5, -2.0])
    if b.opset < 11:
        b.emit("Pad", [x], pads=pads, mode=mode, **({"value": value} if mode == "constant" else {}))
        return
    inputs = [x, b.ints(pads), b.given(value) if mode == "constant" and b.chance() else ""]
    if len(axes) < len(shape) or (b.opset >= 18 and axes != list(range(len(shape)))):
        inputs.append(b.ints(axes))
    while not inputs[-1]:
        inputs.pop()
    b.emit("Pad", inputs, mode=mode)


@step("movement", 3)
def reshape(b: Builder) -> None:
    x = b.tensor()
    shape = b.factors(math.prod(b.shape(x)), b.number(1, 5))
    if b.chance(4):
        at = b.number(0, len(shape) - 1)
        shape = (*shape[:at], -1, *shape[at + 1 :])
    b.emit("Reshape", [x, b.ints(shape)])


@step("movement")
def flatten(b: Builder) -> None:
    x = b.tensor()
    b.emit("Flatten", [x], axis=b.number(0, len(b.shape(x))))


@step("movement", 3)
def transpose(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 5)
    left = list(range(len(b.shape(x))))
    order = [left.pop(b.number(0, len(left) - 1)) for _ in b.shape(x)]
    b.emit("Transpose", [x], **({} if b.chance(6) else {"perm": order}))


def _with_axes(b: Builder, op: str, x: str, axes: list[int]) -> None:
    if b.opset >= 13:
        b.emit(op, [x, b.ints(axes)])
    else:
        b.emit(op, [x], axes=axes)


@step("movement")
def squeeze(b: Builder) -> None:
    single = [n for n in b.pool if 1 in b.shape(n)]
    b.need(bool(single))
    x = b.pick(single)
    if b.chance(4):
        b.emit("Squeeze", [x])
        return
    axes = b.subset([a for a, n in enumerate(b.shape(x)) if n == 1])
    b.need(bool(axes))
    _with_axes(b, "Squeeze", x, axes)


@step("movement")
def unsqueeze(b: Builder) -> None:
    x = b.tensor()
    rank = len(b.shape(x)) + b.number(1, 2)
    b.need(rank <= 5)
    axes = sorted({b.number(0, rank - 1) for _ in range(rank - len(b.shape(x)))})
    b.need(len(axes) == rank - len(b.shape(x)))
    _with_axes(b, "Unsqueeze", x, axes)


@step("movement")
def repeated(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    if b.opset >= 8 and b.chance():
        b.emit("Expand", [x, b.ints(_partner(b, shape))])
    else:
        b.emit("Tile", [x, b.ints([b.number(1, 2) if n < 8 else 1 for n in shape])])


def _indices(b: Builder, shape: Shape, size: int) -> Array:
    """Positions below `size`, some counted from the end."""
    low = -size if b.opset >= 11 else 0
    return np.random.default_rng((len(b.nodes), *shape)).integers(low, size, shape)


@step("movement", 2)
def gather(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, 4) for _ in range(b.number(0, 2)))
    b.emit("Gather", [x, b.ints(_indices(b, shape, b.shape(x)[axis]))], axis=axis)


@step("movement")
def gather_elements(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, n) for n in b.shape(x))
    inputs = [x, b.ints(_indices(b, shape, b.shape(x)[axis]))]
    b.emit("GatherElements", inputs, axis=axis)


def _tuples(b: Builder, shape: Shape, outer: int) -> Array:
    """[n, k] different indices into the first k dimensions after the `outer` ones."""
    depth = b.number(1, len(shape) - outer)
    dims = shape[outer : outer + depth]
    count = b.number(1, min(5, math.prod(dims)))
    flat = np.random.default_rng((len(b.nodes), *shape)).permutation(math.prod(dims))[:count]
    return np.stack(np.unravel_index(flat, dims), axis=-1)


@step("movement")
def gather_nd(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    outer = 1 if b.opset >= 12 and len(shape) > 1 and b.chance(3) else 0
    indices = _tuples(b, shape, outer)
    if outer:
        indices = np.stack([np.roll(indices, i, axis=0) for i in range(shape[0])])
    b.emit("GatherND", [x, b.ints(indices)], **({"batch_dims": outer} if outer else {}))


@step("movement")
def scatter_nd(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    indices = _tuples(b, shape, 0)
    updates = b.operand((len(indices), *shape[indices.shape[1] :]))
    b.emit("ScatterND", [x, b.ints(indices), updates])


@step("movement")
def scatter_elements(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, n) for n in b.shape(x))
    # Different along the axis: what comes last is not defined.
    along = np.random.default_rng(len(b.nodes)).permutation(b.shape(x)[axis])[: shape[axis]]
    column = along.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))])
    b.emit("ScatterElements", [x, b.ints(np.broadcast_to(column, shape)), b.operand(shape)], axis=axis)


@step("movement", 2)
def blocks(b: Builder) -> None:
    size = b.number(1, 2)
    n, c, h, w = (b.number(1, 2), b.number(1, 4), b.number(1, 3), b.number(1, 3))
    if b.chance():
        x = b.computed((n, c, h * size, w * size))
        b.emit("SpaceToDepth", [x], blocksize=size)
        return
    x = b.computed((n, c * size * size, h, w))
    b.emit("DepthToSpace", [x], blocksize=size, **({"mode": b.pick(["DCR", "CRD"])} if b.opset >= 11 else {}))


@step("movement")
def reverse_sequence(b: Builder) -> None:
    b.need(b.opset >= 10)
    x = b.tensor(2, 3, 4)
    batch = b.number(0, 1)
    time, count = b.shape(x)[1 - batch], b.shape(x)[batch]
    lengths = [b.number(1, time) for _ in range(count)]
    b.emit("ReverseSequence", [x, b.ints(lengths)], batch_axis=batch, time_axis=1 - batch)


@step("movement")
def trilu(b: Builder) -> None:
    b.need(b.opset >= 14)
    inputs = [b.tensor(2, 3, 4)]
    if b.chance():
        inputs.append(b.ints(b.number(-2, 2)))
    b.emit("Trilu", inputs, upper=b.number(0, 1))


@step("resize", 2)
def resize(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 4, 4)
    shape = b.shape(x)
    scales = [1.0 if len(shape) > 2 and a < 2 and not b.chance(6) else b.pick(SCALES) for a in range(len(shape))]
    sizes = [math.floor(s * n) for s, n in zip(scales, shape, strict=True)]
    # Sizes on the edge of rounding are refused.
    for kind in (np.float32, np.float64):
        b.need(sizes == [int(kind(np.float32(s)) * kind(n)) for s, n in zip(scales, shape, strict=True)])
    if b.opset < 11:
        _old_resize(b, x, scales)
        return
    attributes = _resize_attributes(b)
    roi = b.given([]) if b.opset < 13 else ""
    by_sizes = b.chance(3)
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        # With scales, onnx infers the size of the part and onnxruntime that of the whole.
        by_sizes = True
        # Fractions of 8: of others, the rounding of onnxruntime decides which element is the nearest.
        low, high = b.pick([(0.0, 1.0), (0.125, 0.75), (0.25, 1.25)])
        roi = b.given([low] * len(shape) + [high] * len(shape))
        if b.chance():
            attributes["extrapolation_value"] = 0.5
    if by_sizes:
        b.emit("Resize", [x, roi, b.given([]) if b.opset < 13 else "", b.ints(sizes)], **attributes)
    else:
        b.emit("Resize", [x, roi, b.given(scales)], **attributes)


SCALES = (1.0, 2.0, 2.0, 3.0, 1.5, 0.5, 0.75, 1.3)


def _old_resize(b: Builder, x: str, scales: list[float]) -> None:
    mode = b.pick(["nearest", "linear"])
    if b.opset == 10:
        b.emit("Resize", [x, b.given(scales)], mode=mode)
        return
    b.need(min(scales) >= 1)
    if b.opset >= 9:
        b.emit("Upsample", [x, b.given(scales)], mode=mode)
    else:
        b.emit("Upsample", [x], mode=mode, scales=scales)


def _resize_attributes(b: Builder) -> dict[str, Any]:
    mode = b.pick(["nearest", "linear", "cubic"])
    coordinates = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize"]
    if b.opset >= 19 and mode != "nearest":
        # Nearest ones on the edge of rounding are refused.
        coordinates.append("half_pixel_symmetric")
    attributes = {"mode": mode, "coordinate_transformation_mode": b.pick(coordinates)}
    if mode == "nearest":
        attributes["nearest_mode"] = b.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic" and b.chance():
        attributes |= {"cubic_coeff_a": -0.5, "exclude_outside": b.number(0, 1)}
    if mode != "nearest" and b.opset >= 18 and b.chance(3):
        attributes["antialias"] = 1
    return attributes


# Whole models

FAMILIES = tuple(STEPS)


_OPTION = {"cores": "cores", "crossbars a core": "xbars_per_core"}
"""What the chip has too little of, and the option that gives it more."""


@dataclass(frozen=True)
class Case:
    """A model with inputs, and the chip and strategy to compile it for.

    Options are those of `raptor.compile`, and `rob_size` of the architecture file: then the program is timed as well.
    """

    model: ModelProto
    inputs: dict[str, Array]
    options: dict[str, Any]

    def check(self) -> None:
        """Compiles, saves, executes, compares every tensor. What fails tells how to try it again."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._check(Path(folder))
        except Exception as error:
            error.add_note(self.script(Path(tempfile.gettempdir()) / f"raptor-failing-graph-{os.getpid()}"))
            raise

    def _check(self, folder: Path) -> None:
        program = self._compile(folder)
        found = [f for f in program.check() if f.severity is Severity.ERROR]
        assert not found, found
        out = program.save(folder / "out", stream_format="pim", weight_format="npz")
        report = validate(out, inputs=self.inputs, layers=True, tolerance=TOLERANCE)
        compared = [*(layer.comparison for layer in report.layers), *report.outputs]
        assert report.verdict == "pass", f"{report.first_deviation}: {[c for c in compared if not c.passed]}"
        assert all(np.isfinite(c.max_absolute) for c in compared)
        if "rob_size" in self.options:
            simulate(out, out / "arch.json")  # raises where the program does not end

    def _compile(self, folder: Path) -> "raptor.Program":
        """For the chip given, with more cores or crossbars where it needs them."""
        options = {"cores": 1} | self.options_in(folder)
        while True:
            try:
                return raptor.compile(self.model, **options)
            except CapacityError as e:
                option = _OPTION[e.resource]
                if e.needed <= options[option]:
                    raise
                options[option] = e.needed

    def options_in(self, folder: Path) -> dict[str, Any]:
        """Those of `raptor.compile`; an architecture file that they need is written."""
        options = dict(self.options)
        if "rob_size" in options:
            options["arch"] = str(arch_file(folder, rob_size=options.pop("rob_size")))
        return options

    def script(self, folder: Path) -> str:
        """Writes the model and its inputs; returns the commands that compile and validate it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(self.model.SerializeToString())
        given: list[str] = []
        for name, array in self.inputs.items():
            np.save(folder / f"{name}.npy", array)
            given += ["--input", f"{name}={folder / name}.npy"]
        chosen = {"cores": 10_000} | self.options_in(folder)
        chosen["xbar"] = "x".join(map(str, np.broadcast_to(chosen["xbar"], 2)))
        options = [text for key, value in chosen.items() for text in (f"--{key.replace('_', '-')}", str(value))]
        model, out = str(folder / "model.onnx"), str(folder / "out")
        return "\n".join(
            shlex.join(command)
            for command in (
                ["raptor", "compile", model, *options, "--output", out, "--force"],
                ["raptor", "validate", out, *given, "--layers", "--tolerance", str(TOLERANCE)],
                ["raptor", "simulate", out],
            )
        )


def build(rng: Random, focus: str, most: int = 40) -> Builder:
    """One to three inputs and up to `most` nodes, half of them of the family `focus`, or of any (`all`)."""
    b = Builder(rng)
    b.opset = b.pick(OPSETS)
    for _ in range(b.number(1, 3)):
        rank = b.pick([4, 3, 2, 4, 5, 1])
        largest = {1: 24, 2: 12, 3: 7, 4: 4, 5: 3}[rank]
        shape = tuple(b.number(1, largest) for _ in range(rank))
        while math.prod(shape) > MAX_ELEMENTS // 2:
            shape = tuple((n + 1) // 2 for n in shape)
        b.input((min(shape[0], 3), *shape[1:]) if rank > 1 else shape)
    wanted = b.number(1, most)
    for _ in range(3 * wanted):
        if len(b.nodes) >= wanted:
            break
        family = focus if focus in STEPS and b.chance() else b.pick(FAMILIES)
        try:
            b.pick(STEPS[family])(b)
        except MisfitError:
            continue
    if not b.nodes:
        b.emit("Neg", ["x0"])
    return b


def make_case(rng: Random, focus: str) -> Case:
    """The same for equal `rng`, whatever else runs; hypothesis's depend on the modules that are loaded."""
    b = build(rng, focus)
    return Case(b.model(), b.inputs, draw_chip(b))


def draw_chip(b: Builder) -> dict[str, Any]:
    """Options for `Case`: mostly small crossbars and as many cores as it takes, on which most is cut and sent."""
    bits, cell_bits = b.pick([(8, 8), (8, 8), (8, 4), (16, 16), (16, 8)])
    rows, cols = (b.number(17, 256) if b.chance(6) else b.number(3, 16) for _ in range(2))
    chip: dict[str, Any] = {
        "xbar": (rows, max(cols, bits // cell_bits)),
        "xbars_per_core": 1 if b.chance(6) else b.number(2, 12),
        "bits": bits,
        "cell_bits": cell_bits,
    }
    if b.chance(3):
        chip |= {"mapping": "rows", "xbars_per_core": b.number(1, 40)}
    if b.chance(3):
        chip["cores"] = b.number(1, 400)
    if b.chance(4):
        chip["rob_size"] = b.number(1, 8)
    return chip


@st.composite
def cases(draw: st.DrawFn, focus: str) -> Case:
    return make_case(draw(st.randoms(use_true_random=False)), focus)
