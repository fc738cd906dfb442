"""Meaning of float32 matrix and vector instructions, in plain Python.

The memory that an instruction reads and writes follows from its row (`raptor.target.isa`); `FUNCTIONS` gives what it
computes.

All results are float32. Elementwise operations are computed in float32; the transcendental functions, means and dot
products in float64 and rounded once; a matrix product adds its rows in order, every product and sum rounded to float32.
Both engines keep this order, so their results are equal to the bit.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.isa import BY_OPCODE, AccessCount, Operand, OperandKind
from raptor.target.tensor_layout import Floats
from validator.engines.machine import EngineStop
from validator.engines.reference_core import COMMON_SEMANTICS, DecodedInstruction, ReferenceCore, Semantics


def _vector(function: Callable[..., npt.ArrayLike]) -> Semantics:
    """Makes a vector instruction. `function` gets an array for each operand that is read, and for a bound in rs2."""

    def run(core: ReferenceCore, i: DecodedInstruction) -> None:
        row = BY_OPCODE[i.opcode]
        strided = any(o.access is not None and o.access.strided for o in row.operands)
        target, single = _result(core, i, row, strided=strided)
        sources = [_source(core, i, o) for o in row.operands if o.kind is OperandKind.SOURCE]
        for source in sources if not single else ():
            core.check_overlap(target, source, exact=not strided)
        step = core.read_register(i.a) if strided else 1
        values = [core.local[source.start + np.arange(i.d) * step] for source in sources]
        if not strided:
            values += [
                np.full(i.d, core.read_register(i.a), np.float32) for o in row.operands if o.kind is OperandKind.USE
            ]
        core.local[target] = function(*values)

    return run


def _result(core: ReferenceCore, i: DecodedInstruction, row: isa.Instruction, *, strided: bool) -> tuple[slice, bool]:
    """Returns the elements that are written, and true if there is only one.

    A single result, and vmv, have no offset (ISA 4.3.6, 4.3.10).
    """
    access = row.operand("rd").access
    single = access is not None and access.count is AccessCount.ONE
    if single or strided:
        return core.element_span(core.read_register(i.rd), 1 if single else i.d), single
    return core.vector_span(i, i.rd, 0, i.d), single


def _source(core: ReferenceCore, i: DecodedInstruction, operand: Operand) -> slice:
    """Returns the elements that an operand spans."""
    register, bit = (i.rs1, 1) if operand.name == "rs1" else (i.a, 2)
    if operand.access is None or not operand.access.strided:
        return core.vector_span(i, register, bit, i.d)
    stride = core.read_register(i.a)
    if stride < 0:
        raise core.make_fault(EngineStop.LOCAL_RANGE, core.read_register(register), stride)
    return core.vector_span(i, register, bit, (i.d - 1) * stride + 1)


def _setbw(core: ReferenceCore, i: DecodedInstruction) -> None:
    """Does nothing: a program of floats has one width only (`check`)."""


def _mvmul(core: ReferenceCore, i: DecodedInstruction) -> None:
    matrix = core.machine.weights.matrix(core.number, i.c)
    source = core.element_span(core.read_register(i.rs1), matrix.shape[0])
    target = core.element_span(core.read_register(i.rd), matrix.shape[1])
    products = core.machine.products
    x = core.local[source]
    total = _product(x, matrix) if products is None else products(core.number, i.c, x)
    core.local[target] = _relu(total) if i.b else total


def _product(vector: Floats, matrix: Floats) -> Floats:
    """Adds the rows in order. A cell with weight 0 conducts nothing, even if the input of its row is infinite."""
    total = np.zeros(matrix.shape[1], np.float32)
    for x, row in zip(vector, matrix, strict=True):
        total = total + (np.where(row == 0, np.float32(0), x * row) if np.isinf(x) else x * row)
    return total


def _relu(x: Floats) -> Floats:
    return np.where(x < 0, np.float32(0), x)  # NaN stays


def _maximum(x: Floats, y: Floats) -> Floats:
    return np.where((x >= y) | (x != x), x, y)  # NaN of either stays


def _mask(x: Floats, y: Floats) -> Floats:
    return np.where(y > 0, x, np.float32(-np.inf))


def _each(function: Callable[[float], float]) -> Callable[[Floats], npt.ArrayLike]:
    """Makes a function of arrays that applies `function` in double precision to each element, like the other engine."""
    return lambda x: [function(value) for value in x.tolist()]


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _log(x: float) -> float:
    if x > 0 or x != x:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _dot(x: Floats, y: Floats) -> float:
    total = 0.0
    for p, q in zip(x.tolist(), y.tolist(), strict=True):
        total += p * q
    return total


def _mean(x: Floats) -> float:
    total = 0.0
    for value in x.tolist():
        total += value
    return total / len(x)


def _minimum(x: Floats, y: Floats) -> Floats:
    return np.where((x <= y) | (x != x), x, y)


def _tanh(x: Floats) -> npt.ArrayLike:
    return [math.tanh(v) for v in x.tolist()]


def _sigmoid(x: Floats) -> npt.ArrayLike:
    return [1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v)) for v in x.tolist()]


def _softmax(x: Floats) -> npt.ArrayLike:
    values: list[float] = x.tolist()
    largest = values[0]
    for v in values:
        largest = v if v > largest or v != v else largest
    powers = [math.exp(v - largest) for v in values]
    total = 0.0
    for p in powers:
        total += p
    return [p / total for p in powers]


VECTOR_FUNCTIONS: dict[str, Callable[..., npt.ArrayLike]] = {
    "vvadd": np.add,
    "vvsub": np.subtract,
    "vvmul": np.multiply,
    "vvdmul": _dot,
    "vvmax": _maximum,
    "vavg": _mean,
    "vrelu": _relu,
    "vtanh": _tanh,
    "vsigm": _sigmoid,
    "vsoftmax": _softmax,
    "vexp": _each(_exp),
    "vlog": _each(_log),
    "vsqrt": _each(_sqrt),
    "verf": _each(math.erf),
    "vvdiv": np.divide,
    "vvmask": _mask,
    "vmv": np.positive,
    "vrsu": _minimum,
    "vrsl": _maximum,
}
"""Function of each vector instruction, from an array for each operand that is read, and for a bound in rs2."""
FLOAT_SEMANTICS: dict[str, Semantics] = {
    **COMMON_SEMANTICS,
    "setbw": _setbw,
    "mvmul": _mvmul,
    **{name: _vector(function) for name, function in VECTOR_FUNCTIONS.items()},
}
"""Meaning of each instruction, keyed by name. Every instruction that `check` accepts has one (tested)."""
