"""Float64 reference: evaluates a model node by node in float64, and again with random rounding errors.

Nothing of the compiler is used. A node is computed by the first of these that is possible:

1. onnxruntime in float64, where it has such a kernel; normalisations and recurrent layers in steps, and the branch of
   an If that a constant decides node by node;
2. a convolution here, or onnx's reference implementation, in float64. They are used only if they agree with
   onnxruntime's float32 kernel on the operands of the first run;
3. onnxruntime's float32 kernel.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import RaptorError, UserError
from raptor.target.layout import Floats
from validator import standard, widen
from validator.convolution import convolve
from validator.recurrent import Layer, Recurrence, Step
from validator.session import session as open_session
from validator.steps import OPSET, steps

Array = npt.NDArray[Any]
Run = Callable[[Mapping[str, Array]], Sequence[Array]]
Opsets = Sequence[onnx.OperatorSetIdProto]
HALF_UNIT = 2.0**-24
"""Largest relative error of one rounding to float32."""
UNDERFLOW = 2.0**-126
"""Smallest normal float32; smaller numbers may become zero."""
AGREE = 1e-3
"""Allowed difference of another float64 kernel from onnxruntime's float32 kernel, relative to the largest value."""
ROUNDING = 32
"""Allowed difference, as a multiple of the change of the result if each operand changes by half a unit."""
REFERENCE_ELEMENTS = 2**16
"""Largest result for the reference implementation, which is slow Python; above it the float32 kernel is used."""
ROUND_NOTHING = frozenset([
    "Abs", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant",
    "ConstantOfShape", "DepthToSpace", "Dropout", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual",
    "Max", "MaxPool", "Min", "Neg", "NonZero", "Not", "OneHot", "Or", "Pad", "Range", "ReduceMax", "ReduceMin",
    "Relu", "Reshape", "ReverseSequence", "Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
])  # fmt: skip
"""Operators that only move, select or clip elements, and so add no rounding error."""
INNER_ONES = frozenset(
    [
        *("Acosh", "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LogSoftmax", "Mish", "Selu", "Softplus"),
        "Swish",
    ]
)
"""Functions with intermediate results as large as 1, such as exp(x) - 1, which make results near 0 inexact."""
_OF_SHAPES = frozenset(["Shape", "Size"])
TRANSFORMS = frozenset(["DFT", "STFT"])
"""Sums of a signal times rounded factors up to 1, which make results near 0 as inexact as large ones."""
EXACT_PARAMETERS = {"Pow": 1, "Resize": 1, "Upsample": 1}
"""Index of the first operand that is a parameter and gets no error: exponents and scales must stay exact."""


class UnknownError(RaptorError):
    """The model cannot be computed in float64; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Function that computes a node.

    `error`: relative size of the random errors; a float32 kernel needs more, because it rounds half a unit away.
    """

    run: Run
    error: float = HALF_UNIT


@dataclass(slots=True, eq=False)
class _Node:
    """A node, and the names that it reads and writes. `fixed`: operands that are parameters, such as sizes and axes.

    `fixed`, and `kernel` or `steps`, are set when the node runs for the first time.
    """

    proto: NodeProto
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    kernel: Kernel | None = None
    steps: Step | None = None

    @property
    def rounds(self) -> bool:
        return self.proto.op_type not in ROUND_NOTHING


@dataclass(slots=True, eq=False)
class Exact:
    """A model that is evaluated in float64.

    `constants`: tensors that do not depend on inputs, in float32; the first run fills them. `types`: types of inputs
    that are not floats.
    """

    nodes: Sequence[_Node]
    opsets: Opsets
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    types: Mapping[str, "np.dtype[Any]"] = field(default_factory=dict[str, "np.dtype[Any]"])

    def run(
        self, inputs: Mapping[str, Floats], names: Sequence[str], rng: np.random.Generator | None = None
    ) -> dict[str, Array]:
        """Returns the tensors `names` in float64. With `rng`, random errors are added at every node that rounds.

        The errors change operands and results by as much as one rounding to float32 can, with random sign and size, so
        the results are about as wrong as float32 results. Raises `UnknownError` if the model cannot be computed.
        """
        try:
            with np.errstate(all="ignore"):
                given = {n: a.astype(self.types.get(n, np.float64)) for n, a in inputs.items()}
                return self.compute(given, names, rng)
        except MemoryError:
            raise
        except Exception as e:  # exceptions of onnx, onnxruntime and numpy have no common base
            raise UnknownError(f"{type(e).__name__}: {' '.join(str(e).split())[:200]}") from e

    def compute(
        self, inputs: Mapping[str, Array], names: Sequence[str], rng: np.random.Generator | None
    ) -> dict[str, Array]:
        """Computes tensors like `run`, from inputs in float64; raises the errors of the libraries."""
        needed = _needed(self.nodes, names)
        last = {name: k for k, node in enumerate(needed) for name in node.reads}
        values: dict[str, Array] = {**self.constants, **inputs}
        sizes: set[str] = set()
        for k, node in enumerate(needed):
            if all(name in self.constants for name in node.writes):
                continue
            of_sizes = node.proto.op_type in _OF_SHAPES or all(n in self.constants or n in sizes for n in node.reads)
            results = self._computed(node, values, rng, constant=of_sizes)
            values |= results
            sizes |= {*node.writes} if of_sizes else set()
            if all(name in self.constants for name in node.reads):
                self.constants |= {name: _cast(a, np.float32) for name, a in results.items()}
            for name in node.reads:
                if last[name] == k and name not in names:
                    values.pop(name, None)
        return {name: _cast(values[name], np.float64) for name in names}

    def _computed(
        self, node: _Node, values: Mapping[str, Array], rng: np.random.Generator | None, *, constant: bool
    ) -> dict[str, Array]:
        """Computes a node.

        Nodes that depend only on constants and shapes are computed in float32 without errors: sizes may follow from
        them.
        """
        operands = {name: _cast(values[name], np.float64) for name in node.reads}
        if node.kernel is None and node.steps is None:
            self._choose(node, operands, constant=constant)
        if node.steps is not None:
            return node.steps.compute(operands, node.writes, rng)
        kernel = node.kernel
        assert kernel is not None
        if rng is None or constant or not node.rounds:
            return dict(zip(node.writes, kernel.run(operands), strict=True))
        kept = frozenset(node.proto.input[EXACT_PARAMETERS.get(node.proto.op_type, len(node.proto.input)) :])
        disturbed = {n: a if n in kept else _with_errors(a, rng, kernel.error) for n, a in operands.items()}
        results = zip(node.writes, kernel.run(disturbed), strict=True)
        least = _rounding_floor(node.proto, operands)
        return {name: _with_underflow(_with_errors(a, rng, kernel.error, least), rng) for name, a in results}

    def _choose(self, node: _Node, operands: Mapping[str, Array], *, constant: bool) -> None:
        known = [n for n in node.reads if n in self.constants]
        node.fixed = tuple(n for n in known if operands[n].dtype.kind != "f" or not operands[n].size)
        if constant:
            node.kernel = _float32_kernel(node, self.opsets, operands)
        elif protos := steps(node.proto, operands):
            node.steps = _as_model(protos)
        elif node.proto.op_type == "If" and node.proto.input[0] in known:
            node.steps = _taken_branch(node, self.opsets, operands, {name: self.constants[name] for name in known})
        elif layer := Layer.of(node.proto, operands):
            node.steps = Recurrence(layer, [_as_model(layer.nodes(d)) for d in range(len(layer.reversed_directions))])
        else:
            node.kernel = _kernel(node, self.opsets, operands)


def load_exact(
    path: Path,
    constants: Mapping[str, Array],
    shapes: Mapping[str, Sequence[int]] | None = None,
    leave: Collection[str] = (),
) -> Exact:
    """Reads a model in which some inputs are `constants`. `shapes`: shapes of its inputs.

    Nodes in which onnxruntime deviates from ONNX's own suite are computed as in the suite, except those in `leave`.
    Raises `UnknownError` for a model that cannot be computed node by node.
    """
    try:
        model = widen.inlined(onnx.load(str(path)))  # pyright: ignore[reportUnknownMemberType]
        if shapes is not None and standard.may_depart(path):
            standard.follow_suite(model, shapes, leave)
        return _exact(model, constants)
    except MemoryError:
        raise
    except Exception as e:  # exceptions of protobuf and onnx have no common base
        raise UnknownError(f"{type(e).__name__}: {' '.join(str(e).split())[:200]}") from e


def _exact(model: ModelProto, inputs: Mapping[str, Array]) -> Exact:
    if model.graph.sparse_initializer:
        raise UnknownError("the model has sparse constants")
    constants = {t.name: numpy_helper.to_array(widen.tensor(t, np.float32)) for t in model.graph.initializer}
    constants |= {name: a.astype(np.float32) if a.dtype.kind == "f" else a for name, a in inputs.items()}
    kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.input}
    types = {name: kind for name, kind in kinds.items() if kind.kind in "iub"}
    return Exact([_node(proto) for proto in model.graph.node], list(model.opset_import), constants, types)


def _node(proto: NodeProto) -> _Node:
    return _Node(proto, widen.reads(proto), tuple(filter(None, proto.output)))


def _as_model(protos: Sequence[NodeProto]) -> Exact:
    return Exact([_node(proto) for proto in protos], [helper.make_opsetid("", OPSET)])


def _taken_branch(node: _Node, opsets: Opsets, operands: Mapping[str, Array], known: Mapping[str, Array]) -> Exact:
    """Returns the nodes of the branch that an If takes. Inside one If, an error in an exponent of 2 would make NaN."""
    taken = "then_branch" if operands[node.proto.input[0]].all() else "else_branch"
    graph = next(a.g for a in node.proto.attribute if a.name == taken)
    results = (
        helper.make_node("Identity", [o.name], [w]) for o, w in zip(graph.output, node.proto.output, strict=True) if w
    )
    constants = {t.name: numpy_helper.to_array(widen.tensor(t, np.float32)) for t in graph.initializer}
    return Exact([_node(proto) for proto in (*graph.node, *results)], opsets, {**known, **constants})


def _needed(nodes: Sequence[_Node], names: Sequence[str]) -> list[_Node]:
    """Returns the nodes on which `names` depend, in the model's order."""
    wanted, found = set(names), list[_Node]()
    for node in reversed(nodes):
        if wanted.intersection(node.writes):
            wanted.update(node.reads)
            found.append(node)
    return found[::-1]


def _rounding_floor(proto: NodeProto, operands: Mapping[str, Array]) -> float:
    """Returns the least size of the numbers that a node rounds inside, however small its result is."""
    if proto.op_type in TRANSFORMS:
        return float(np.abs(operands[proto.input[0]]).max(initial=0.0))
    if proto.op_type == "Det":  # a sum of products of one element of each row
        return float(np.abs(operands[proto.input[0]]).max(axis=-1).prod(axis=-1).max(initial=0.0))
    return float(proto.op_type in INNER_ONES)


def _with_errors(array: Array, rng: np.random.Generator, error: float, least: float = 0.0) -> Array:
    """Moves each element by up to `error` times its size, or times `least` if that is more. Zeros stay."""
    if array.dtype.kind != "f":
        return array
    size = array if not least else np.where(array == 0, 0.0, np.maximum(np.abs(array), least))
    moved = size * (rng.random(array.shape, np.float32) - np.float32(0.5))
    moved *= 2 * error
    moved += array
    return np.asarray(moved)  # numpy returns a scalar for an array without dimensions


def _with_underflow(array: Array, rng: np.random.Generator) -> Array:
    """Moves results so small that float32 may make them zero, by up to the smallest normal float32."""
    small = (array != 0) & (np.abs(array) < UNDERFLOW / HALF_UNIT) if array.dtype.kind == "f" else np.False_
    return np.where(small, array + UNDERFLOW * rng.uniform(-1, 1, array.shape), array) if small.any() else array


# Kernels


def _kernel(node: _Node, opsets: Opsets, operands: Mapping[str, Array]) -> Kernel:
    try:
        kernel = Kernel(_onnxruntime(node, opsets, operands, np.float64))
        kernel.run(operands)
        return kernel
    except MemoryError:
        raise
    except Exception:  # no such kernel
        single = _float32_kernel(node, opsets, operands)
    wanted = single.run(operands)
    try:
        double = _of_onnx(node, opsets, operands, wanted)
        return double if double is not None and _agrees(double, operands, wanted) else single
    except MemoryError:
        raise
    except Exception:  # the reference does not know the operator, or this version of it
        return single


def _of_onnx(node: _Node, opsets: Opsets, operands: Mapping[str, Array], wanted: Sequence[Array]) -> Kernel | None:
    if node.proto.op_type == "Conv" and not node.proto.domain:
        return Kernel(lambda values: [convolve(node.proto, [values[n] if n else None for n in node.proto.input])])
    if sum(w.size for w in wanted) > REFERENCE_ELEMENTS:
        return None
    from onnx.reference import ReferenceEvaluator

    evaluator: Any = ReferenceEvaluator(_model(node, opsets, operands, np.float64))
    return Kernel(lambda values: [np.asarray(a) for a in evaluator.run(None, dict(values))])


def _agrees(kernel: Kernel, operands: Mapping[str, Array], wanted: Sequence[Array]) -> bool:
    """Checks whether the kernel agrees with onnxruntime's float32 result, except for rounding."""
    found = kernel.run(operands)
    if any((a.shape, a.dtype) != (w.shape, w.dtype) for a, w in zip(found, wanted, strict=True)):
        return False
    off = [_gap(a, w) > AGREE * _gap(w, np.zeros_like(w)) for a, w in zip(found, wanted, strict=True)]
    if not any(off):
        return True
    moved = kernel.run({n: _with_errors(a, np.random.default_rng(0), kernel.error) for n, a in operands.items()})
    within = (_gap(a, w) <= ROUNDING * _gap(a, m) for a, w, m in zip(found, wanted, moved, strict=True))
    return all(near or not far for near, far in zip(within, off, strict=True))


def _gap(one: Array, two: Array) -> float:
    both = np.isfinite(one) & np.isfinite(two)
    return float(np.abs(one[both].astype(np.float64) - two[both].astype(np.float64)).max(initial=0))


def _onnxruntime(node: _Node, opsets: Opsets, operands: Mapping[str, Array], dtype: type[np.floating]) -> Run:
    model, path = _model(node, opsets, operands, dtype), Path(node.proto.name)
    names = [value.name for value in model.graph.input]
    try:
        session = open_session(model.SerializeToString(), path)
    except UserError:  # Resize, for example, needs the number of sizes
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, operands[value.name].shape, strict=True):
                dim.dim_value = size
        session = open_session(model.SerializeToString(), path)
    return lambda values: cast(Sequence[Array], session.run(None, {name: values[name] for name in names}))


def _float32_kernel(node: _Node, opsets: Opsets, operands: Mapping[str, Array]) -> Kernel:
    inner = _onnxruntime(node, opsets, operands, np.float32)

    def run(values: Mapping[str, Array]) -> Sequence[Array]:
        results = inner({n: _cast(a, np.float32) for n, a in values.items()})
        return [_cast(a, np.float64) for a in results]

    return Kernel(run, 2 * HALF_UNIT)


def _cast(array: Array, dtype: type[np.floating]) -> Array:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def _model(node: _Node, opsets: Opsets, operands: Mapping[str, Array], dtype: type[np.floating]) -> ModelProto:
    """Returns a model of a single node, with its `fixed` operands as constants."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(_cast(a, dtype).dtype), [None] * a.ndim)
        for n, a in operands.items()
        if n not in node.fixed
    ]
    fixed = [numpy_helper.from_array(_cast(operands[n], dtype), n) for n in node.fixed]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.writes]
    graph = helper.make_graph([widen.node(node.proto, dtype)], "node", inputs, outputs, fixed)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
