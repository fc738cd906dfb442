"""Straight-line programs of vector operations on 32-bit integers, which implement requantisation.

The values of a program are numbered: first the operands, then the result of each step. Every value is a vector of
integers that fit 32 bits (two's complement), proved for all operands in their ranges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
"""An integer array: int32, int64, or Python integers (dtype object)."""
Op = Literal["mul", "add", "sub", "sra", "sll", "max", "min"]

INT32 = (-(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class VectorStep:
    """One vector operation `op` on value number `left` and on `right`.

    right: the number of another value (add, sub), or constants [classes or 1, width or 1, channels or 1]; max and min
    take one constant only, [1, 1, 1]. sra: arithmetic shift right, the floor of left / 2^right.
    """

    op: Op
    left: int
    right: int | Ints


@dataclass(frozen=True, slots=True)
class TrimStage:
    """The first five steps of a recipe, whose constants a chip may set (`raptor.graph.requantise.trim_stage`).

    tensor: the sums, by name. layer: ONNX node that makes them. operand: number of the operand that is trimmed. low,
    high: its range. shift: a gain of 1 is 2^shift.
    """

    tensor: str
    layer: str
    operand: int
    shift: int
    low: int
    high: int

    @property
    def unit_gain(self) -> int:
        return 1 << self.shift

    @property
    def most_gain(self) -> int:
        """The largest gain; it fits as many whole bytes as a gain of 1."""
        return (2 << self.shift) - 1

    @property
    def unit_bias(self) -> int:
        """The bias that rounds: half of a gain of 1."""
        return 1 << (self.shift - 1)

    @property
    def most_bias(self) -> int:
        """The largest absolute value of a bias."""
        return (max(abs(self.low), abs(self.high), 1) << self.shift) + self.unit_bias


@dataclass(frozen=True, slots=True, eq=False)
class RequantiseRecipe:
    """A requantisation as a program: y = clamp(value of the last step, low, high); without steps, of operand 0.

    operands: proved range of each operand, ends included. bounds: proved range of each step's value, ends included.
    flips: sum of |result - exact result| over all operand values and parameters; 0 for an exact program. trim: stage at
    the beginning of `steps` whose constants may be changed in the compiled program; None for none.
    """

    operands: tuple[tuple[int, int], ...]
    steps: tuple[VectorStep, ...]
    bounds: tuple[tuple[int, int], ...]
    low: int
    high: int
    flips: int = 0
    trim: TrimStage | None = None

    @property
    def result_low(self) -> int:
        """The smallest value before the clamp."""
        return (*self.operands[:1], *self.bounds)[-1][0]

    @property
    def result_high(self) -> int:
        """The largest value before the clamp."""
        return (*self.operands[:1], *self.bounds)[-1][1]

    def assign_registers(self) -> tuple[int, ...]:
        """Returns the register number of each step's value; registers of dead values are reused.

        A step may write a register that it reads. Operands have no register and are never overwritten.
        """
        last_use = {n: i for i, step in enumerate(self.steps) for n in _read(step)}
        free: list[int] = []
        chosen: list[int] = []
        for i, step in enumerate(self.steps):
            dead = {n - len(self.operands) for n in _read(step) if last_use[n] == i}
            free = sorted({*free, *(chosen[n] for n in dead if n >= 0)})
            chosen.append(free.pop(0) if free else len(set(chosen)))
        return tuple(chosen)


def _read(step: VectorStep) -> tuple[int, ...]:
    return (step.left, step.right) if isinstance(step.right, int) else (step.left,)


class RangeError(ArithmeticError):
    """Raised for a value or constant beyond its range. `step`: number of the step; `where`: index in the arrays."""

    def __init__(self, step: int, where: tuple[int, ...], value: int) -> None:
        self.step, self.where, self.value = step, where, value
        super().__init__(f"step {step}, element {where}: {value}")


def _refuse_outside(values: Ints, low: int, high: int, step: int) -> None:
    if values.size and (values.min() < low or values.max() > high):
        where = np.unravel_index(int(np.argmax((values < low) | (values > high))), values.shape)
        raise RangeError(step, tuple(int(w) for w in where), int(values[where]))


_FUNCTIONS: dict[Op, Callable[[Ints, Ints], Ints]] = {
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "sra": lambda a, b: a >> b,
    "sll": lambda a, b: a << b,
    "max": np.maximum,
    "min": np.minimum,
}


def execute_steps(steps: Sequence[VectorStep], operands: Sequence[Ints]) -> list[Ints]:
    """Returns all values of a program: operands, then steps. Computed in the operands' type; constants broadcast."""
    values = list(operands)
    for step in steps:
        right = values[step.right] if isinstance(step.right, int) else step.right
        values.append(_FUNCTIONS[step.op](values[step.left], right))
    return values


def compute_ranges(steps: Sequence[VectorStep], operands: Sequence[tuple[int, int]]) -> list[tuple[Ints, Ints]]:
    """Returns the lowest and highest value of each operand and step, by interval arithmetic.

    Raises `RangeError` if a value or constant may leave 32 bits, or a shift amount leaves 0..31.
    """
    values = [(np.array([low], np.int64), np.array([high], np.int64)) for low, high in operands]
    for i, step in enumerate(steps):
        if not isinstance(step.right, int):
            _refuse_outside(step.right, *((0, 31) if step.op in ("sra", "sll") else INT32), i)
        low, high = _range(steps, len(operands), step, values)
        _refuse_outside(low, *INT32, i)
        _refuse_outside(high, *INT32, i)
        values.append((low, high))
    return values


def _range(
    steps: Sequence[VectorStep], inputs: int, step: VectorStep, values: list[tuple[Ints, Ints]]
) -> tuple[Ints, Ints]:
    low, high = values[step.left]
    bits = match_remainder(steps, inputs, step)
    if bits is not None:
        return np.zeros_like(bits), (1 << bits) - 1
    other = values[step.right] if isinstance(step.right, int) else (step.right.astype(np.int64),) * 2
    function = _FUNCTIONS[step.op]
    if step.op == "sub":
        return low - other[1], high - other[0]
    if step.op == "mul":
        ends = low * other[0], high * other[0]
        return np.minimum(*ends), np.maximum(*ends)
    return function(low, other[0]), function(high, other[1])


def match_remainder(steps: Sequence[VectorStep], inputs: int, step: VectorStep) -> Ints | None:
    """Returns k if the step computes v - ((v >> k) << k), the k low bits of a value v; otherwise None."""
    if step.op != "sub" or not isinstance(step.right, int) or step.right < inputs:
        return None
    shifted = steps[step.right - inputs]
    if shifted.op != "sll" or isinstance(shifted.right, int) or shifted.left < inputs:
        return None
    floor = steps[shifted.left - inputs]
    if floor.op != "sra" or floor.left != step.left or isinstance(floor.right, int):
        return None
    return floor.right.astype(np.int64) if np.array_equal(floor.right, shifted.right) else None


def select_by_row(constants: Ints, row_class: Ints | None) -> Ints:
    """Returns constants [rows or 1, width or 1, channels or 1] as int64, their first index looked up in `row_class`."""
    wide = constants.astype(np.int64)
    return wide if row_class is None or len(wide) == 1 else wide[row_class]


def run_recipe(recipe: RequantiseRecipe, inputs: Sequence[Ints], row_class: Ints | None = None) -> Ints:
    """Executes a recipe on images [rows, width, channels] and clamps. Raises `RangeError` if a value leaves 32 bits."""
    steps = [
        s if isinstance(s.right, int) else VectorStep(s.op, s.left, select_by_row(s.right, row_class))
        for s in recipe.steps
    ]
    values = execute_steps(steps, [x.astype(np.int64) for x in inputs])
    for i, value in enumerate(values):
        _refuse_outside(value, *INT32, i - len(inputs))
    return np.clip(values[-1] if steps else values[0], recipe.low, recipe.high)
