"""Faster construction of frozen dataclasses; a compilation makes hundreds of thousands of them."""

from dataclasses import MISSING, fields
from types import MemberDescriptorType
from typing import Any, TypeVar

C = TypeVar("C", bound=type[Any])


def quickly_made(cls: C) -> C:
    """Class decorator: gives a frozen slotted dataclass an `__init__` that sets slots directly, in half the time.

    The usual `__init__` of a frozen dataclass looks up each slot by name. Only for plain fields: no factories, no
    keyword-only fields, no `__post_init__`; raises `TypeError` for others.
    """
    all_fields = fields(cls)
    plain = all(f.init and not f.kw_only and f.default_factory is MISSING for f in all_fields)
    slots = {f.name: getattr(cls, f.name, None) for f in all_fields}
    if (
        not plain
        or hasattr(cls, "__post_init__")
        or not all(isinstance(s, MemberDescriptorType) for s in slots.values())
    ):
        raise TypeError(f"{cls.__qualname__}: a slotted dataclass of plain fields is expected")
    lines = [f"def __init__(self, {', '.join(slots)}):", *(f"    _set_{name}(self, {name})" for name in slots)]
    namespace: dict[str, Any] = {f"_set_{name}": getattr(cls, name).__set__ for name in slots}
    # NOTE: the text consists of names of fields only, as in `dataclasses` itself.
    exec("\n".join(lines), namespace)
    made, usual = namespace["__init__"], cls.__init__
    made.__qualname__, made.__module__ = usual.__qualname__, cls.__module__
    made.__defaults__, made.__annotations__ = usual.__defaults__, usual.__annotations__
    cls.__init__ = made
    return cls
