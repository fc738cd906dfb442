"""Parses Einsum equations."""

from collections.abc import Sequence

from raptor.frontend.import_refusal import ImportRefusal

Names = tuple[str, ...]


def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[Names], Names]:
    """Returns the dimension names of each operand, and of the result; an ellipsis expands to several names.

    Raises `ImportRefusal` if the equation does not fit the operands' `ranks`.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ImportRefusal(f"equation '{equation}' is for {len(terms)} operands, not {len(ranks)}")
    operands = [_names(term, rank, equation) for term, rank in zip(terms, ranks, strict=True)]
    if arrow:
        return operands, _result(right, operands)
    return operands, _implicit(operands)


def _names(term: str, rank: int, equation: str) -> Names:
    before, dots, behind = term.partition("...")
    hidden = rank - len(before) - len(behind)
    if hidden < 0 or (hidden and not dots):
        raise ImportRefusal(f"equation '{equation}': '{term}' does not name {rank} dimensions")
    # Numbered from the last: broadcasting aligns dimensions at the right.
    return (*before, *(f"...{i}" for i in range(hidden, 0, -1)), *behind)


def _hidden(operands: Sequence[Names]) -> Names:
    """Returns the dimension names of the longest ellipsis."""
    return max((tuple(n for n in names if n.startswith("...")) for names in operands), key=len)


def _result(term: str, operands: Sequence[Names]) -> Names:
    before, dots, behind = term.partition("...")
    return (*before, *(_hidden(operands) if dots else ()), *behind)


def _implicit(operands: Sequence[Names]) -> Names:
    """Returns the result's names without an arrow: the ellipsis, then names that occur once, in alphabetical order."""
    every = [n for names in operands for n in names if not n.startswith("...")]
    return (*_hidden(operands), *sorted(n for n in every if every.count(n) == 1))
