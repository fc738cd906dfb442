"""The element types that each operator of the Graph takes and returns."""

from collections.abc import Callable, Mapping, Sequence

from raptor.target.chip_elements import MODELLED_FLOAT, ElementType, integer_type

Signature = str
"""Class name of an operator of the Graph, or the function name of an element-wise `Map`."""

Rule = Callable[[Sequence[ElementType], ElementType], bool]
"""Predicate: whether operands of these element types can give a result of this type."""


def _alike(sources: Sequence[ElementType], result: ElementType) -> bool:
    return all(source == result for source in sources)


def _floats(sources: Sequence[ElementType], result: ElementType) -> bool:
    return result.kind == "float" and _alike(sources, result)


def _integers(sources: Sequence[ElementType], result: ElementType) -> bool:
    return all(element.kind == "int" for element in (*sources, result))


def _product(sources: Sequence[ElementType], result: ElementType) -> bool:
    """Accepts floats, or integers of one width with a result of any width."""
    return _floats(sources, result) or (_integers(sources, result) and len(set(sources)) <= 1)


def _lookup(sources: Sequence[ElementType], result: ElementType) -> bool:
    return _integers(sources, result) and sources[0].bits <= 8


def _to_float(sources: Sequence[ElementType], result: ElementType) -> bool:
    return sources[0].kind == "int" and result.kind == "float"


def _to_integer(sources: Sequence[ElementType], result: ElementType) -> bool:
    return sources[0].kind == "float" and result.kind == "int"


def _take(sources: Sequence[ElementType], result: ElementType) -> bool:
    """Accepts indices that a register can be loaded from: 32-bit integers, or the floats of a float program."""
    modelled = sources[0] == MODELLED_FLOAT
    return modelled == (result == MODELLED_FLOAT) and (modelled or sources[0] == integer_type(32))


_RULES: Mapping[Signature, Rule] = {
    "Filter": _product,
    "Dot": _product,
    "Stencil": _product,
    "mul": _product,
    "add": _alike,
    "sub": _alike,
    "max": _alike,
    "relu": _alike,
    "float": _to_float,
    "round": _to_integer,
    "Pool": _alike,
    "Concat": _alike,
    "Move": _alike,
    "Take": _take,
    "Rename": _alike,
    "ConstantTensor": _alike,
    "Requantise": _integers,
    "Bound": _integers,
    "Lookup": _lookup,
}
"""Rule of each signature; operators without an entry take and return floats."""


def find_type_fault(signature: Signature, sources: Sequence[ElementType], result: ElementType) -> str | None:
    """Returns an error message if the operator does not accept these operand and result types; None if it does."""
    if _RULES.get(signature, _floats)(sources, result):
        return None
    given = ", ".join(map(str, sources)) or "nothing"
    return f"{signature} makes no {result} of {given}"
