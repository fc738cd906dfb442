"""Parses an architecture file by its schema, into the description of the chip or a list of all mistakes.

Callers decide what a mistake means. The compiler refuses the file, the simulator ignores unknown fields as pimsim-nn
does, and the checks report all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, cast

from pydantic import BaseModel, ValidationError

from raptor.target.arch.pimsim_file import ChipDescription
from raptor.target.arch.pimsim_schema import ArchFile, field_model

_KINDS: dict[str, Literal["unknown", "missing"]] = {"extra_forbidden": "unknown", "missing": "missing"}
_SMALLEST_LAYOUT = (1, 1)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A wrong field of an architecture file.

    `place`: names of the sections and of the field; numbers are places in a list. `kind`: the schema has no such field
    (`unknown`), the file lacks it (`missing`), or its value is wrong (`value`). `found`: what the file holds there.
    """

    place: tuple[str | int, ...]
    kind: Literal["unknown", "missing", "value"]
    message: str
    found: object

    @property
    def name(self) -> str:
        """The place with dots."""
        return ".".join(map(str, self.place))

    @property
    def meant(self) -> str:
        """The known field of the same section with the closest spelling; empty for none."""
        section: type[BaseModel] | None = ArchFile
        for part in self.place[:-1]:
            section = field_model(section, str(part)) if section else None
        close = get_close_matches(str(self.place[-1]), section.model_fields if section else (), 1)
        return close[0] if close else ""


def parse_arch(raw: dict[str, Any]) -> tuple[ChipDescription | None, tuple[FieldProblem, ...]]:
    """Returns (description, no problems) of a valid file, else (None, all problems)."""
    try:
        return ChipDescription(ArchFile.model_validate(raw)), ()
    except ValidationError as e:
        problems = (FieldProblem(f["loc"], _KINDS.get(f["type"], "value"), f["msg"], f["input"]) for f in e.errors())
        return None, tuple(problems)


def drop_wrong_fields(raw: dict[str, Any], problems: Iterable[FieldProblem]) -> None:
    """Removes wrong fields, so that they get their defaults.

    A layout, which has no default, becomes 1 x 1. A missing section becomes empty. Links with a mistake are left out.
    """
    for problem in problems:
        *sections, last = [part for part in problem.place if isinstance(part, str)]
        inner = raw
        for name in sections:
            inner = cast(dict[str, Any], inner[name])
        if "chips" in sections and problem.kind != "unknown":
            raw["chips"] = None
        elif last == "layout":
            inner[last] = _SMALLEST_LAYOUT
        elif problem.kind == "missing":
            inner[last] = {}
        else:
            inner.pop(last, None)
