"""Random small quantised models: their tensors of integers, and the scales that make results use all codes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.all_graphs.builder import MisfitError
from tests.tiny_models import Array

MAX_ELEMENTS = 400
OPSET, OLD_OPSETS = 21, (13, 15, 17, 19)
CONTRIBUTED = "com.microsoft"
ACTIVATIONS = ("uint8", "int8", "uint8", "int8", "uint16", "int16")
WEIGHTS = ("int8", "int8", "uint8", "int4", "uint4")

T = TypeVar("T")
Shape = tuple[int, ...]
Step = Callable[["Builder"], None]


def limits(dtype: str) -> tuple[int, int]:
    """Returns the smallest and the largest integer of a type of ONNX."""
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def of_type(values: Any, dtype: str) -> Array:
    """Returns an array of a type of ONNX."""
    onnx_type = TensorProto.DataType.Value(dtype.upper())
    return np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(onnx_type))


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A tensor of integers that stands for (codes - zero) * scale. codes: values it has for one input."""

    name: str
    dtype: str
    scale: np.float32
    zero: int
    codes: Array

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def real(self) -> Array:
        return (self.codes - self.zero).astype(np.float32) * self.scale


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Constant integers. scale, zero: one, or one for each index of an axis."""

    dtype: str
    codes: Array
    scale: Array
    zero: Array
    axis: int | None

    @property
    def real(self) -> Array:
        shape = [1] * self.codes.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        centred = self.codes - self.zero.astype(np.int64).reshape(shape)
        return centred.astype(np.float32) * self.scale.reshape(shape)


@dataclass
class Builder:
    """A quantised model in the making. `floats`: it has sections that only floats can compute."""

    rng: Random
    opset: int = OPSET
    base: str = "uint8"
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    pool: list[Codes] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    floats: bool = False
    made: int = 0
    _reals: dict[str, str] = field(default_factory=dict)

    # Attempts

    def state(self) -> tuple[tuple[int, ...], dict[str, str], bool]:
        """Returns what `restore` needs to take back a step that made no node."""
        return tuple(map(len, self._lists())), dict(self._reals), self.floats

    def restore(self, state: tuple[tuple[int, ...], dict[str, str], bool]) -> None:
        counts, self._reals, self.floats = state
        for some, count in zip(self._lists(), counts, strict=True):
            del some[count:]

    def _lists(self) -> tuple[list[Any], ...]:
        return self.nodes, self.constants, self.pool, self.inputs, self.outputs

    # Draws

    @property
    def numbers(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.randrange(2**32))

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, values: Sequence[T]) -> T:
        return self.rng.choice(values)

    def chance(self, of: int = 2) -> bool:
        return self.rng.randrange(of) == 0

    def need(self, condition: bool) -> None:
        if not condition:
            raise MisfitError

    def activation(self) -> str:
        """Draws the type of a result: mostly that of the model."""
        return self.pick(ACTIVATIONS if self.opset >= OPSET else ACTIVATIONS[:4]) if self.chance(8) else self.base

    # Names

    def name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    def constant(self, values: Any) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def emit(self, op: str, inputs: Sequence[str], outputs: int = 1, *, domain: str = "", **attributes: Any) -> str:
        """Adds a node; returns its result, or the first of several, which have a dot and their number behind."""
        stem = self.name("t")
        names = [f"{stem}.{i}" if i else stem for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}_{stem}", domain=domain, **attributes))
        return stem

    # Integers

    def input(self, shape: Shape) -> Codes:
        """Adds an input: integers, or floats that are quantised first."""
        dtype = self.activation()
        low, high = limits(dtype)
        scale = self.scale(self.rng.uniform(0.5, 4) / (high - low))
        zero = self.pick((0, low, high, (low + high + 1) // 2, self.number(low, high), self.number(low, high)))
        zero = min(max(zero, low), high)
        name, as_floats = self.name("x"), self.chance()
        kind = TensorProto.FLOAT if as_floats else TensorProto.DataType.Value(dtype.upper())
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        if as_floats:
            name = self.emit("QuantizeLinear", [name, *self.parameters(scale, zero, dtype)])
        self.pool.append(Codes(name, dtype, scale, zero, self.numbers.integers(low, high, shape, endpoint=True)))
        return self.pool[-1]

    def scale(self, size: float) -> np.float32:
        """Returns a scale near `size`, sometimes a power of two."""
        size = max(size, 1e-9) * self.rng.uniform(0.6, 1.4)
        return np.float32(2.0 ** round(math.log2(size)) if self.chance(4) else size)

    def parameters(self, scale: Any, zero: Any, dtype: str) -> list[str]:
        return [self.constant(np.asarray(scale, np.float32)), self.constant(of_type(zero, dtype))]

    def operand(self, *ranks: int) -> Codes:
        """Draws a tensor, mostly one of the last, of one of these ranks if any are given."""
        known = [c for c in self.pool if not ranks or len(c.shape) in ranks]
        self.need(bool(known))
        return known[max(self.number(0, len(known) - 1) for _ in range(2))]

    def real(self, codes: Codes) -> str:
        """Returns the result of a DequantizeLinear node, often one that another reader has too."""
        if codes.name not in self._reals or self.chance(3):
            given = [codes.name, *self.parameters(codes.scale, codes.zero, codes.dtype)]
            self._reals[codes.name] = self.emit("DequantizeLinear", given)
        return self._reals[codes.name]

    def fitted(self, values: Array, dtype: str | None = None) -> tuple[str, np.float32, int]:
        """Returns type, scale and zero point with which real numbers use most codes."""
        dtype = dtype or self.activation()
        (first, last), low, high = limits(dtype), min(0.0, float(values.min())), max(0.0, float(values.max()))
        self.need(math.isfinite(low) and math.isfinite(high) and high - low < 1e9)
        scale = self.scale(max(high - low, 1e-3) / (last - first))
        if self.chance(20):
            # A calibration that has seen nearly one value: the rest saturates.
            scale = np.float32(scale * 2.0 ** self.rng.uniform(-11, 0))
        if self.chance(4):
            scale = self.scale(2 * max(high, -low, 1e-3) / (last - first))
            return dtype, scale, (first + last + 1) // 2
        zero = round(first - low / float(scale)) + self.number(-3, 3)
        return dtype, scale, min(max(zero, first), last)

    def rounded(self, name: str, values: Array, like: Codes | None = None) -> Codes:
        """Adds QuantizeLinear behind real numbers, with other scales, or those of another tensor."""
        dtype, scale, zero = (like.dtype, like.scale, like.zero) if like else self.fitted(values)
        if like and self.chance(5):
            zero = self.number(*limits(dtype))
        self.need(0 < values.size <= MAX_ELEMENTS and values.ndim <= 5)
        codes = self.emit("QuantizeLinear", [name, *self.parameters(scale, zero, dtype)])
        return self.put(codes, values, dtype, scale, zero)

    def put(self, name: str, values: Array, dtype: str, scale: np.float32, zero: int) -> Codes:
        """Puts a tensor of integers into the pool, with the codes of real numbers."""
        codes = np.clip(np.rint(values / scale).astype(np.float64) + zero, *limits(dtype)).astype(np.int64)
        self.pool.append(Codes(name, dtype, scale, zero, codes))
        return self.pool[-1]

    def weights(self, shape: Shape, axis: int | None, types: Sequence[str] = WEIGHTS) -> Weights:
        """Draws constant integers, with scales by channel if there is an axis."""
        dtype = self.pick([t for t in types if self.opset >= OPSET or "4" not in t])
        low, high = limits(dtype)
        some = (shape[axis],) if axis is not None else ()
        scale = np.array([self.scale(0.01) for _ in range(math.prod(some))], np.float32).reshape(some)
        middle = (low + high + 1) // 2 if self.chance() else self.number(low, high)
        codes = self.numbers.integers(low, high, shape, endpoint=True)
        return Weights(dtype, codes, scale, np.full(some, middle), axis)

    def real_weights(self, w: Weights) -> str:
        given = [self.constant(of_type(w.codes, w.dtype)), *self.parameters(w.scale, w.zero, w.dtype)]
        axis: dict[str, Any] = {} if w.axis is None else {"axis": w.axis}
        return self.emit("DequantizeLinear", given, **axis)

    def real_bias(self, count: int, scale: Array, size: float) -> tuple[str, Array]:
        """Adds a bias of about `size`: integers in units of `scale`, or floats."""
        values = self.numbers.normal(0, size, count).astype(np.float32)
        if self.chance(3):
            return self.constant(values), values
        codes = np.clip(np.rint(values / scale), -(2**30), 2**30).astype(np.int32)
        given = [self.constant(codes), self.constant(scale)]
        if self.chance():
            given.append(self.constant(np.zeros(scale.shape, np.int32)))
        axis: dict[str, Any] = {"axis": 0} if scale.ndim else {}
        return self.emit("DequantizeLinear", given, **axis), codes.astype(np.float32) * scale

    # Real numbers

    def computed(self, op: str, operands: Sequence[Array], outputs: int = 1, **attributes: Any) -> list[Array]:
        """Returns the results of an operator by onnxruntime. Raises `MisfitError` if it refuses it."""
        names = [f"i{k}" for k in range(len(operands))]
        results = [f"o{k}" for k in range(outputs)]
        graph = helper.make_graph(
            [helper.make_node(op, names, results, **attributes)],
            "node",
            [],
            [helper.make_empty_tensor_value_info(o) for o in results],
            [numpy_helper.from_array(a, n) for n, a in zip(names, operands, strict=True)],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return run_once(helper.make_model(graph, opset_imports=opsets, ir_version=10))

    # Models

    def model(self) -> ModelProto:
        """Returns the model. Outputs: what nobody reads, one tensor that is read, some of them as floats."""
        read = {i for n in self.nodes for i in n.input}
        loose = [c for c in self.pool if c.name not in read]
        self.need(bool(self.nodes))
        if self.chance() and self.pool:
            loose.append(self.pick(self.pool))
        infos = {value.name: value for value in (*map(self._output, loose), *self.outputs)}
        graph = helper.make_graph(self.nodes, "quantised", self.inputs, list(infos.values()), self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(CONTRIBUTED, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _output(self, codes: Codes) -> ValueInfoProto:
        if codes.name in {value.name for value in self.inputs} or self.chance(3):
            return helper.make_tensor_value_info(self.real(codes), TensorProto.FLOAT, codes.shape)
        kind = TensorProto.DataType.Value(codes.dtype.upper())
        return helper.make_tensor_value_info(codes.name, kind, codes.shape)


def run_once(model: ModelProto) -> list[Array]:
    """Returns the outputs of a model without inputs. Raises `MisfitError` if onnxruntime refuses it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(a) for a in session.run(None, {})]
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise MisfitError(str(error)) from None
