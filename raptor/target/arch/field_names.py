"""Fields of the architecture by path, such as `chip_config.core_config.rob_size`, or by a unique suffix of it."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.target.arch.pimsim_schema import ArchFile, field_model


def set_fields(raw: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Sets fields of an architecture file given as JSON objects. The schema checks the values later.

    Raises `UserError` for an unknown or ambiguous name, and for a field that is set twice.
    """
    done: dict[str, str] = {}
    for name, value in fields.items():
        path = find_field(name)
        if path in done:
            raise UserError(f"{spell_option('fields', name)}: the same field as {done[path]}")
        done[path] = name
        *sections, last = path.split(".")
        place = raw
        for section in sections:
            place = cast(dict[str, Any], place.setdefault(section, {}))
            if not isinstance(place, dict):  # pyright: ignore[reportUnnecessaryIsInstance] the file may hold anything
                raise UserError(f"{spell_option('fields', name)}: {section} of the architecture is no object")
        place[last] = list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value


def find_field(name: str) -> str:
    """Returns the path of the field of which `name` is a suffix. Raises `UserError` for none or several."""
    known = field_paths()
    found = [path for path in known if path == name or path.endswith(f".{name}")]
    if len(found) == 1 or name in found:
        return name if name in found else found[0]
    shown = spell_option("fields", name)
    if found:
        raise UserError(f"{shown}: several fields have this name: {', '.join(found)}")
    last = {path.rpartition(".")[2]: path for path in known}
    close = [last[n] for n in get_close_matches(name.rpartition(".")[2], last, 1)] + get_close_matches(name, known, 1)
    raise UserError(f"{shown}: the architecture has no such field{f'; did you mean {close[0]}?' if close else ''}")


@cache
def field_paths() -> tuple[str, ...]:
    """Returns the paths of all fields, in the order of the schema."""
    return tuple(_paths(ArchFile, ""))


def _paths(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name in model.model_fields:
        inner = field_model(model, name)
        yield from [f"{prefix}{name}"] if inner is None else _paths(inner, f"{prefix}{name}.")
