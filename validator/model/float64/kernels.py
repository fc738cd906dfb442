"""Kernels that compute a single node in float64, with random errors as large as those of float32."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UserError
from validator.model.convolution import convolve
from validator.model.float_types import floats_as, node_in
from validator.model.node import Array, ModelNode
from validator.model.node_models import by_reference, model_of
from validator.model.ort_session import create_session

Run = Callable[[Mapping[str, Array]], Sequence[Array]]
HALF_UNIT = 2.0**-24
"""Largest relative error of one rounding to float32."""
UNDERFLOW = 2.0**-126
"""Smallest normal float32; smaller numbers may become zero."""
KERNEL_TOLERANCE = 1e-3
"""Allowed difference of another float64 kernel from onnxruntime's float32 kernel, relative to the largest value."""
ROUNDING_FACTOR = 32
"""Allowed difference, as a multiple of the change of the result if each operand changes by half a unit."""
REFERENCE_ELEMENTS = 2**16
"""Largest result for the reference implementation, which is slow Python; above it the float32 kernel is used."""
ROUNDING_FREE_OPERATORS = frozenset([
    "Abs", "And", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant",
    "ConstantOfShape", "DepthToSpace", "Dropout", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "GlobalMaxPool", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual",
    "Max", "MaxPool", "Min", "Neg", "NonZero", "Not", "OneHot", "Or", "Pad", "Range", "ReduceMax", "ReduceMin",
    "Relu", "Reshape", "ReverseSequence", "Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
])  # fmt: skip
"""Operators that only move, select or clip elements, and so add no rounding error."""
OPERATORS_WITH_INNER_ONES = frozenset(
    [
        *("Acosh", "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LogSoftmax", "Mish", "Selu", "Softplus"),
        "Swish",
    ]
)
"""Functions with intermediate results as large as 1, such as exp(x) - 1, which make results near 0 inexact."""
FOURIER_OPERATORS = frozenset(["DFT", "STFT"])
"""Sums of a signal times rounded factors up to 1, which make results near 0 as inexact as large ones."""
EXACT_PARAMETERS = {"Pow": 1, "Resize": 1, "Upsample": 1}
"""Index of the first operand that is a parameter and gets no error: exponents and scales must stay exact."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeKernel:
    """Function that computes a node.

    `error`: relative size of the random errors; a float32 kernel needs more, because it rounds half a unit away.
    """

    proto: NodeProto
    run: Run
    error: float = HALF_UNIT

    def compute(
        self, inputs: Mapping[str, Array], names: Sequence[str], rng: np.random.Generator | None
    ) -> dict[str, Array]:
        """Computes the results `names` of the node. With `rng`, adds errors to operands and results, if it rounds."""
        if rng is None or self.proto.op_type in ROUNDING_FREE_OPERATORS:
            return dict(zip(names, self.run(inputs), strict=True))
        kept = frozenset(self.proto.input[EXACT_PARAMETERS.get(self.proto.op_type, len(self.proto.input)) :])
        disturbed = {n: a if n in kept else _with_errors(a, rng, self.error) for n, a in inputs.items()}
        results = zip(names, self.run(disturbed), strict=True)
        least = _rounding_floor(self.proto, inputs)
        return {name: _with_underflow(_with_errors(a, rng, self.error, least), rng) for name, a in results}


def _rounding_floor(proto: NodeProto, operands: Mapping[str, Array]) -> float:
    """Returns the least size of the numbers that a node rounds inside, however small its result is."""
    if proto.op_type in FOURIER_OPERATORS:
        return float(np.abs(operands[proto.input[0]]).max(initial=0.0))
    if proto.op_type == "Det":  # a sum of products of one element of each row
        return float(np.abs(operands[proto.input[0]]).max(axis=-1).prod(axis=-1).max(initial=0.0))
    return float(proto.op_type in OPERATORS_WITH_INNER_ONES)


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


@dataclass(frozen=True, slots=True, eq=False)
class SingleNode:
    """A node alone, with its operands in the first run.

    `fixed`: operands that are constant parameters, such as sizes and axes.
    """

    node: ModelNode
    operands: Mapping[str, Array]
    fixed: frozenset[str]

    def kernel(self) -> NodeKernel:
        """Returns the kernel with the most digits that is right."""
        try:
            kernel = NodeKernel(self.node.proto, self._by_onnxruntime(np.float64))
            kernel.run(self.operands)
            return kernel
        except MemoryError:
            raise
        except Exception:  # no such kernel
            single = self.float32_kernel()
        wanted = single.run(self.operands)
        try:
            double = self._by_onnx(wanted)
            return double if double is not None and self._agrees(double, wanted) else single
        except MemoryError:
            raise
        except Exception:  # the reference does not know the operator, or this version of it
            return single

    def float32_kernel(self) -> NodeKernel:
        inner = self._by_onnxruntime(np.float32)

        def run(values: Mapping[str, Array]) -> Sequence[Array]:
            results = inner({n: floats_as(a, np.float32) for n, a in values.items()})
            return [floats_as(a, np.float64) for a in results]

        return NodeKernel(self.node.proto, run, 2 * HALF_UNIT)

    def _by_onnx(self, wanted: Sequence[Array]) -> NodeKernel | None:
        proto = self.node.proto
        if proto.op_type == "Conv" and not proto.domain:
            return NodeKernel(proto, lambda values: [convolve(proto, [values[n] if n else None for n in proto.input])])
        if sum(w.size for w in wanted) > REFERENCE_ELEMENTS:
            return None
        return NodeKernel(proto, by_reference(self._model(np.float64)))

    def _agrees(self, kernel: NodeKernel, wanted: Sequence[Array]) -> bool:
        """Tells whether the kernel agrees with onnxruntime's float32 result, except for rounding."""
        found = kernel.run(self.operands)
        if any((a.shape, a.dtype) != (w.shape, w.dtype) for a, w in zip(found, wanted, strict=True)):
            return False
        off = [_gap(a, w) > KERNEL_TOLERANCE * _gap(w, np.zeros_like(w)) for a, w in zip(found, wanted, strict=True)]
        if not any(off):
            return True
        moved = kernel.run(
            {n: _with_errors(a, np.random.default_rng(0), kernel.error) for n, a in self.operands.items()}
        )
        within = (_gap(a, w) <= ROUNDING_FACTOR * _gap(a, m) for a, w, m in zip(found, wanted, moved, strict=True))
        return all(near or not far for near, far in zip(within, off, strict=True))

    def _by_onnxruntime(self, dtype: type[np.floating]) -> Run:
        model, path = self._model(dtype), Path(self.node.proto.name)
        names = [value.name for value in model.graph.input]
        try:
            opened = create_session(model.SerializeToString(), path)
        except UserError:  # Resize, for example, needs the number of sizes
            for value in model.graph.input:
                for dim, size in zip(value.type.tensor_type.shape.dim, self.operands[value.name].shape, strict=True):
                    dim.dim_value = size
            opened = create_session(model.SerializeToString(), path)
        return lambda values: cast(Sequence[Array], opened.run(None, {name: values[name] for name in names}))

    def _model(self, dtype: type[np.floating]) -> ModelProto:
        """Returns a model of the node alone, with its `fixed` operands as constants."""
        inputs = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(floats_as(a, dtype).dtype), [None] * a.ndim
            )
            for n, a in self.operands.items()
            if n not in self.fixed
        ]
        fixed = [
            numpy_helper.from_array(floats_as(self.operands[n], dtype), n) for n in self.node.reads if n in self.fixed
        ]
        return model_of([node_in(self.node.proto, dtype)], inputs, self.node.writes, self.node.opsets, fixed)


def _gap(one: Array, two: Array) -> float:
    both = np.isfinite(one) & np.isfinite(two)
    return float(np.abs(one[both].astype(np.float64) - two[both].astype(np.float64)).max(initial=0))
