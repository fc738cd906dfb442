"""Normal form of a requantisation program: its result as one floor of one scaled sum of the operands.

The steps are executed symbolically. Floors nest exactly: floor(floor(N / 2^a) / 2^b) is floor(N / 2^(a + b)), and
floor(N / 2^a) + k is floor((N + k * 2^a) / 2^a).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raptor.common.errors import VerifyError
from raptor.graph.requantise.vector_program import Ints, VectorStep, match_remainder


@dataclass(frozen=True, slots=True, eq=False)
class _SymbolicSum:
    """floor((sum of coefficient * variable + constant) / 2^shift), arrays [S, 1] of Python integers.

    Variables are numbers of values: operands, clamped operands, and values that are not expanded further.
    """

    coefficients: Mapping[int, Ints]
    constant: Ints
    shift: Ints

    def scaled(self, factor: Ints) -> "_SymbolicSum":
        return _SymbolicSum({v: c * factor for v, c in self.coefficients.items()}, self.constant * factor, self.shift)

    def plus(self, other: "_SymbolicSum") -> "_SymbolicSum":
        """Adds a form whose shift is 0."""
        sums = dict(self.coefficients)
        for variable, coefficient in other.coefficients.items():
            own = sums.get(variable, np.zeros_like(coefficient))
            sums[variable] = own + (coefficient << self.shift)
        return _SymbolicSum(sums, self.constant + (other.constant << self.shift), self.shift)


@dataclass(frozen=True, slots=True, eq=False)
class NormalForm:
    """A program's last value: floor((sum of factor * operand + constant + parity of `even`) / 2^shift).

    Operands are first clamped to `clamps`. Arrays: [S, 1] of Python integers. even: the form whose last bit is added,
    over the same operands; None for none.
    """

    factors: list[Ints]
    constant: Ints
    shift: Ints
    even: "NormalForm | None"
    clamps: list[tuple[int, int]]

    def select(self, chosen: Ints) -> "NormalForm":
        """Returns the form of the chosen parameter sets; `even` is not changed."""
        factors = [f[chosen] for f in self.factors]
        return NormalForm(factors, self.constant[chosen], self.shift[chosen], self.even, self.clamps)


class SymbolicExecution:
    """Symbolic execution of a program for `size` parameter sets; operands: proved range of each operand."""

    def __init__(self, steps: Sequence[VectorStep], operands: Sequence[tuple[int, int]], size: int) -> None:
        self.steps, self.inputs, self.size = steps, len(operands), size
        self.clamps = {i: (i, ends) for i, ends in enumerate(operands)}
        self.forms = [self._variable(i) for i in range(self.inputs)]
        for step in self.steps:
            self.forms.append(self._form(step))

    def _variable(self, number: int) -> _SymbolicSum:
        zero = np.zeros((self.size, 1), object)
        return _SymbolicSum({number: zero + 1}, zero, zero)

    def _whole(self, number: int) -> _SymbolicSum:
        """Returns a value as a sum without a floor; a value with a floor becomes a variable."""
        return self._variable(number) if self.forms[number].shift.any() else self.forms[number]

    def _form(self, step: VectorStep) -> _SymbolicSum:
        left, number = self.forms[step.left], len(self.forms)
        if isinstance(step.right, int):
            return self._sum(step.left, step.right, step)
        right = step.right.astype(object)
        match step.op:
            case "mul":
                return self._whole(step.left).scaled(right)
            case "sll":
                return self._whole(step.left).scaled(1 << right)
            case "sra":
                return _SymbolicSum(left.coefficients, left.constant, left.shift + right)
            case "add" | "sub":
                moved = right if step.op == "add" else -right
                return _SymbolicSum(left.coefficients, left.constant + (moved << left.shift), left.shift)
            case "max" | "min":
                self._clamp(step, number)
                return self._variable(number)

    def _sum(self, left: int, right: int, step: VectorStep) -> _SymbolicSum:
        floors = [bool(self.forms[v].shift.any()) for v in (left, right)]
        if step.op == "add" and floors[1]:
            left, right, floors = right, left, floors[::-1]
        remainder = match_remainder(self.steps, self.inputs, step) is not None
        # At most one term of a sum can keep its floor. A remainder is recognised by its two variables.
        fixed = self._whole(left) if floors[1] or remainder else self.forms[left]
        sign = np.array([[1 if step.op == "add" else -1]], object)
        return fixed.plus(self._whole(right).scaled(sign))

    def _clamp(self, step: VectorStep, number: int) -> None:
        assert not isinstance(step.right, int)
        bound = int(step.right.reshape(-1)[0])
        if step.left not in self.clamps or (step.right != bound).any():
            raise VerifyError("requantisation: a value that is no operand is clamped, or not by one number")
        operand, (low, high) = self.clamps[step.left]
        clamp = max if step.op == "max" else min
        self.clamps[number] = operand, (clamp(low, bound), clamp(high, bound))

    def to_normal_form(self, number: int, parity: bool) -> NormalForm:
        """Returns value `number` as a normal form. `parity`: the form may contain the parity of another value.

        Raises `VerifyError` if the value is not a scaled sum of clamped operands.
        """
        form = self.forms[number]
        used = {v: c for v, c in form.coefficients.items() if c.any()}
        even = self._parity(used) if parity else None
        chosen: dict[int, tuple[Ints, tuple[int, int]]] = {}
        for variable, coefficient in used.items():
            if variable not in self.clamps or self.clamps[variable][0] in chosen:
                raise VerifyError("requantisation: the recipe is no scaled sum of its operands")
            operand, ends = self.clamps[variable]
            chosen[operand] = coefficient, ends
        nothing = np.zeros((self.size, 1), object), (0, 0)
        both = [chosen.get(i, (nothing[0], self.clamps[i][1])) for i in range(self.inputs)]
        return NormalForm([f for f, _ in both], form.constant, form.shift, even, [ends for _, ends in both])

    def _parity(self, used: dict[int, Ints]) -> NormalForm | None:
        """Removes q - 2 * (q >> 1), the parity of a value q, from the variables; returns the form of q, or None."""
        for step in self.steps:
            bits = match_remainder(self.steps, self.inputs, step)
            if bits is None or (bits != 1).any():
                continue
            q, doubled = step.left, step.right
            assert isinstance(doubled, int)
            floor = self.steps[doubled - self.inputs].left
            if floor in used and q in used and (used[q] == 1).all() and (used[floor] == -2).all():
                del used[q], used[floor]
                return self.to_normal_form(q, parity=False)
        return None
