"""Horner's scheme: a scaled sum of operands as a program of 32-bit products, additions and floor shifts.

A factor is split into limbs, the lowest first; floors nest exactly, so that

    t = (x * limb 0 + constant 0) >> width 0,  t = (x * limb 1 + constant 1 + t) >> width 1,  ...

is floor((x * factor + constant) / 2^shift). Limbs are signed, which makes all but the highest one bit shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.graph.requantise.vector_program import Ints, Op, VectorStep


@dataclass(frozen=True, slots=True, eq=False)
class ScaledSum:
    """floor((sum x * factor + constant) / 2^shift), for S parameter sets: arrays [S] of Python integers.

    even: round ties (a sum of exactly k + 1/2) to even. The constant then rounds with one unit less than the half and
    contains only the even part of the zero point; `odd` (0 or 1) is added to the result.
    """

    factors: list[Ints]
    constant: Ints
    shift: Ints
    even: bool = False
    odd: int = 0

    def raise_shift(self, least: Ints | int) -> "ScaledSum":
        """Returns an equal expression whose shifts are at least `least`."""
        more = np.maximum(0, least - self.shift)
        # The half was lowered by one unit, which must be a unit of the finer scale.
        constant = ((self.constant + self.even) << more) - self.even
        return replace(self, factors=[f << more for f in self.factors], constant=constant, shift=self.shift + more)


@dataclass(frozen=True, slots=True)
class ProgramShape:
    """Form of the generated program.

    widths: bits of all limbs but the highest. clamp: bounds to which operand 0 is clamped first; None for no clamp.
    split: operand 0 is first split into its `split` low bits and the rest, each multiplied separately; 0 for no split.
    """

    widths: tuple[int, ...]
    clamp: tuple[int, int] | None = None
    split: int = 0


class _StepWriter:
    """Collects steps whose constants are arrays [S, 1]; omits steps that change nothing."""

    def __init__(self, operands: int) -> None:
        self.operands = operands
        self.steps: list[VectorStep] = []

    def step(self, op: Op, left: int, right: int | Ints) -> int:
        """Writes a step and returns the number of its value."""
        if not isinstance(right, int):
            right = right.reshape(-1, 1).astype(np.int64)
            if op not in ("max", "min") and (right == (op == "mul")).all():
                return left
        self.steps.append(VectorStep(op, left, right))
        return self.operands + len(self.steps) - 1

    def number(self, op: Op, left: int, right: int) -> int:
        return self.step(op, left, np.array([right]))

    def products(self, operands: Sequence[int], factors: Sequence[Ints]) -> int | None:
        """Writes the sum of operand * factor and returns its value number; None if all factors are 0."""
        total: int | None = None
        for operand, factor in zip(operands, factors, strict=True):
            if factor.any():
                part = self.step("mul", operand, factor)
                total = part if total is None else self.step("add", total, part)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """One limb: the number of the value of its products plus constant; None if the stage has only the constant."""

    value: int | None
    constant: Ints
    shift: Ints


def write_program(scaled: ScaledSum, shape: ProgramShape) -> list[VectorStep]:
    """Returns the steps that compute `scaled`; their constants are arrays [S, 1] or [1, 1].

    Whether the values fit 32 bits is not checked. Raises `OverflowError` if a constant does not fit 64 bits.
    """
    writer = _StepWriter(len(scaled.factors))
    scaled = scaled.raise_shift(sum(shape.widths))
    operands, factors = _operands(writer, scaled, shape)
    stages = _stages(writer, operands, factors, scaled, shape.widths)
    result = _run(writer, stages, None)
    if scaled.even:
        floor = writer.number("sll", writer.number("sra", result, 1), 1)
        result = _run(writer, stages, writer.step("sub", result, floor))
        result = writer.number("add", result, scaled.odd)
    return writer.steps


def _operands(writer: _StepWriter, scaled: ScaledSum, shape: ProgramShape) -> tuple[list[int], list[Ints]]:
    operands, factors = list(range(len(scaled.factors))), scaled.factors
    if shape.clamp is not None:
        operands[0] = writer.number("min", writer.number("max", operands[0], shape.clamp[0]), shape.clamp[1])
    if shape.split:
        high = writer.number("sra", operands[0], shape.split)
        low = writer.step("sub", operands[0], writer.number("sll", high, shape.split))
        operands, factors = [low, high], [factors[0], factors[0] << shape.split]
    return operands, factors


def _stages(
    writer: _StepWriter, operands: list[int], factors: list[Ints], scaled: ScaledSum, widths: tuple[int, ...]
) -> list[_Stage]:
    constant, shift = scaled.constant, scaled.shift
    stages: list[_Stage] = []
    for width in widths:
        half = 1 << (width - 1)
        limbs = [((f + half) & ((1 << width) - 1)) - half for f in factors]
        rest = constant & ((1 << width) - 1)
        stages.append(_stage(writer, operands, limbs, rest, np.array([width])))
        factors = [(f - limb) >> width for f, limb in zip(factors, limbs, strict=True)]
        constant, shift = constant >> width, shift - width
    if not any(f.any() for f in factors) and all(stage.value is None for stage in stages):
        return [_Stage(writer.step("add", writer.step("mul", 0, factors[0]), constant), constant, shift)]
    return [*stages, _stage(writer, operands, factors, constant, shift)]


def _stage(writer: _StepWriter, operands: list[int], limbs: list[Ints], constant: Ints, shift: Ints) -> _Stage:
    value = writer.products(operands, limbs)
    return _Stage(None if value is None else writer.step("add", value, constant), constant, shift)


def _run(writer: _StepWriter, stages: list[_Stage], carry: int | None) -> int:
    """Writes all stages and returns the last value number. `carry` is added in the lowest stage."""
    for stage in stages:
        if stage.value is None:
            # A constant alone is smaller than 2^width: its floor is 0.
            carry = None if carry is None else writer.step("add", carry, stage.constant)
        else:
            carry = stage.value if carry is None else writer.step("add", stage.value, carry)
        carry = None if carry is None else writer.step("sra", carry, stage.shift)
    assert carry is not None
    return carry
