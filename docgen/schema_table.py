"""A pydantic model as a table: names, types, defaults, meanings."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from docgen.markdown import code, table


def section(model: type[BaseModel], *, level: int = 2) -> str:
    """The model under its name, then those of its fields, each once."""
    return "\n".join(_one(m, level if m is model else level + 1) for m in nested(model))


def nested(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model and those it consists of, each once, in the order of their fields."""
    found = {model: None}
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            found |= dict.fromkeys(nested(inner))
    return list(found)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _one(model: type[BaseModel], level: int) -> str:
    rows = [(code(name), _type(f), _default(f), f.description or "") for name, f in model.model_fields.items()]
    text = inspect.cleandoc(model.__doc__ or "")
    return f"{'#' * level} {model.__name__}\n\n{text}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def _type(field: FieldInfo) -> str:
    return _name(field.annotation)


_PLAIN = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "NoneType": "null"}


def _name(annotation: Any) -> str:
    """A type in words: `list of TilePlace`, `2 integers`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _name(arguments[0])
    if origin is tuple:
        return (
            f"list of {_name(arguments[0])}" if Ellipsis in arguments else f"{len(arguments)} x {_name(arguments[0])}"
        )
    if origin in (dict, Mapping):
        return f"object of {_name(arguments[1])}"
    if origin is not None:
        return " or ".join(_name(a) if isinstance(a, type) or get_origin(a) else str(a) for a in arguments)
    name = str(getattr(annotation, "__name__", annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{name}](#{name.lower()})"
    return _PLAIN.get(name, name)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    if isinstance(field.default, BaseModel):
        return "its own"
    return code(to_json(field.default).decode())
