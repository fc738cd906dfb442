"""Reads architecture files like pimsim-nn, and notes fields that it ignores and values that make no sense."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from raptor.common.errors import UserError
from raptor.target import arch as architectures
from raptor.target.arch import ArchFile, read_arch
from raptor.target.arch.schema import field_model
from validator.checks.subject import Chip

_SMALLEST_LAYOUT = (1, 1)


def read_chip(source: str | Path) -> Chip:
    """Reads an architecture file or preset. Raises `UserError` if it cannot be read or is not a JSON object."""
    if str(source) in architectures.presets():
        return chip_of(architectures.load(str(source)).file, str(source))
    return examine(read_arch(Path(source)), str(source))


def chip_of(file: ArchFile, path: str) -> Chip:
    """Makes the chip of an architecture that follows the schema, so that no field is unknown or impossible."""
    return Chip(path, file, named=frozenset(_names(file.model_dump(exclude_unset=True))))


def examine(raw: Mapping[str, Any], path: str) -> Chip:
    """Makes a chip of the fields that follow the schema, and notes the others as unknown or impossible.

    Raises `UserError` if it is not an architecture file at all.
    """
    unknown = tuple(_unknown(raw, ArchFile, ""))
    kept = _known(raw, ArchFile)
    impossible: list[tuple[str, str]] = []
    for _ in range(len(ArchFile.model_fields) + 200):
        try:
            return Chip(path, ArchFile.model_validate(kept), unknown, tuple(impossible), frozenset(_names(kept)))
        except ValidationError as e:
            for fault in e.errors():
                name = ".".join(str(part) for part in fault["loc"] if isinstance(part, str))
                impossible.append((name, f"{fault['msg'].lower()}, found {fault['input']!r:.40}"))
                _drop(kept, fault["loc"])
    raise UserError(f"architecture {path}: not an architecture file")


def _unknown(raw: Mapping[str, Any], model: type[BaseModel], where: str) -> Iterator[tuple[str, str]]:
    """Yields the names of fields that the schema lacks, each with the field that was perhaps meant, or ''."""
    for name, value in raw.items():
        if name not in model.model_fields:
            close = get_close_matches(name, model.model_fields, 1, 0.6)
            yield where + name, close[0] if close else ""
        elif isinstance(value, dict) and (inner := field_model(model, name)):
            yield from _unknown(cast(dict[str, Any], value), inner, f"{where}{name}.")


def _known(raw: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in raw.items():
        inner = field_model(model, name)
        if name in model.model_fields:
            kept[name] = _known(cast(dict[str, Any], value), inner) if inner and isinstance(value, dict) else value
    return kept


def _drop(raw: dict[str, Any], where: tuple[int | str, ...]) -> None:
    """Removes a wrong field, so that its default is used. A wrong layout becomes 1 x 1, a missing object empty."""
    names = [part for part in where if isinstance(part, str)]
    for name in names[:-1]:
        raw = cast(dict[str, Any], raw.setdefault(name, {}))
    if names[-1] in raw and names[-1] != "layout":
        del raw[names[-1]]
    elif names[-1] == "layout":
        raw["layout"] = _SMALLEST_LAYOUT
    else:
        raw[names[-1]] = {}


def _names(value: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for name, inner in value.items():
        yield where + name
        if isinstance(inner, dict):
            yield from _names(cast(dict[str, Any], inner), f"{where}{name}.")
