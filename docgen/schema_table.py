"""Formats a pydantic model or a dataclass as a Markdown table of names, types, defaults and meanings."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from docgen.markdown import format_code, format_table


@dataclass(frozen=True, slots=True)
class _Column:
    """A field: its name, its type with all annotations, its default and its meaning."""

    name: str
    annotation: Any
    default: str
    meaning: str


def format_model(model: type[Any], *, level: int = 2) -> str:
    """Returns a section for a model, followed by sections for the models of its fields, each once."""
    return "\n".join(_one(m, level if m is model else level + 1) for m in find_nested_models(model))


def find_nested_models(model: type[Any]) -> list[type[Any]]:
    """Returns the model and all models of its fields, recursively, each once and in order of the fields."""
    found = {model: None}
    for column in _columns(model):
        for inner in _models(column.annotation):
            found |= dict.fromkeys(find_nested_models(inner))
    return list(found)


def _columns(model: type[Any]) -> list[_Column]:
    return _of_schema(model) if issubclass(model, BaseModel) else _of_dataclass(model)


def _of_schema(model: type[BaseModel]) -> list[_Column]:
    known = model.model_fields
    return [_Column(name, f.annotation, _default(f), f.description or "") for name, f in known.items()]


def _of_dataclass(model: Any) -> list[_Column]:
    hints = get_type_hints(model, include_extras=True)
    return [_Column(f.name, hints[f.name], _plain_default(f), _meaning(hints[f.name])) for f in fields(model)]


def _meaning(annotation: Any) -> str:
    """Returns the description of pydantic's `Field` in an annotation."""
    found = (d.description for d in getattr(annotation, "__metadata__", ()) if isinstance(d, FieldInfo))
    return next(filter(None, found), "")


def _is_model(annotation: Any) -> bool:
    return get_origin(annotation) is None and (_is_a(annotation, BaseModel) or _is_dataclass(annotation))


def _is_dataclass(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(cast(Any, annotation))


def _is_a(annotation: Any, kind: type) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _models(annotation: Any) -> Iterator[type[Any]]:
    if _is_model(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _one(model: type[Any], level: int) -> str:
    rows = [(format_code(c.name), _name(c.annotation), c.default, c.meaning) for c in _columns(model)]
    text = inspect.cleandoc(model.__doc__ or "")
    return f"{'#' * level} {model.__name__}\n\n{text}\n\n{format_table(('field', 'type', 'default', 'meaning'), rows)}"


_PLAIN = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "NoneType": "null"}


def _name(annotation: Any) -> str:
    """Formats a type in words: `list of TilePlace`, `2 x integer`."""
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
    if _is_a(annotation, StrEnum):
        return " or ".join(annotation)
    name = str(getattr(annotation, "__name__", annotation))
    if _is_model(annotation):
        return f"[{name}](#{name.lower()})"
    return _PLAIN.get(name, name)


def _plain_default(field: Field[Any]) -> str:
    value = field.default_factory() if field.default_factory is not MISSING else field.default
    return "" if value is MISSING else format_code(to_json(value).decode())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    if isinstance(field.default, BaseModel):
        return "its own"
    return format_code(to_json(field.default).decode())
