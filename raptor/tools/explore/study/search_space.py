"""The search space of a study: its parameters, and the conversion of points to options of `raptor.compile`."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

from raptor.common.errors import UserError
from raptor.common.option_spelling import flag_name
from raptor.common.options.arguments import parse_flag
from raptor.mapping.knobs import parse_knobs
from raptor.options import CompileKeywords, CompileOptions, collect_options, list_keywords
from raptor.target.arch.chip_links import parse_link
from raptor.target.arch.field_names import find_field
from raptor.target.device_file import load_device
from validator.crossbar.chip_settings import check_setting

ParameterValue = bool | int | float | str
STUDY_OPTIONS = {
    name: option
    for name, option in collect_options(CompileOptions).items()
    if option.studied and name in list_keywords(CompileKeywords)
}
"""Options of `raptor.compile` that a study file may set for all points, by keyword."""
FILE_OPTIONS = tuple(name for name, option in STUDY_OPTIONS.items() if option.is_file)
"""Options that may name a file, which is searched for in the folder of the study file first."""
TABLE_OPTIONS = ("fields", "knobs")
"""Options that are tables in the study file: a parameter is one of their entries, such as `fields.rob_size`."""
SPACE_TABLES = (*TABLE_OPTIONS, "crossbar", "components")
"""Tables of the search space. `crossbar` holds settings of crossbars, `components` values of a component file; both are
no options of `raptor.compile`."""
_VARIED = tuple(name for name, option in STUDY_OPTIONS.items() if option.texts is None)
"""Options with a single value, which may be parameters."""
_READ: Mapping[str, Callable[[Any], object]] = {"link": parse_link, "device": load_device}
"""Further checks of options that name a link or a device: they resolve the name."""


@dataclass(frozen=True, slots=True)
class StudyParameter:
    """A parameter of the search space: a list of `values`, or a range from `low` to `high`.

    `step`: distance of the numbers of the range; 0 for a continuous range. `is_log`: sampled on a logarithmic scale.
    """

    name: str
    values: tuple[ParameterValue, ...] = ()
    low: float = 0
    high: float = 0
    step: float = 0
    is_log: bool = False

    @property
    def is_integer(self) -> bool:
        return (
            not self.values and all(float(x).is_integer() for x in (self.low, self.high, self.step)) and self.step > 0
        )

    @property
    def grid_values(self) -> Sequence[ParameterValue]:
        """All values in order. Raises `UserError` for a continuous range."""
        if self.values:
            return self.values
        if not self.step:
            raise UserError(f"space.{self.name}: a grid needs a step")
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return [self._number(self.low + k * self.step) for k in range(count)]

    def _number(self, value: float) -> ParameterValue:
        return int(value) if self.is_integer else float(f"{value:.12g}")


def resolve_file(folder: Path, name: str) -> str:
    """Returns the path of the file `name` in the folder of the study file; if there is none (a preset), the name."""
    file = folder / name
    return str(file) if file.is_file() else name


def check_values(name: str, values: Sequence[ParameterValue], folder: Path) -> None:
    """Raises `UserError` for a name that is no parameter, and for a value that its option does not accept."""
    group, _, rest = name.partition(".")
    if group == "fields" and rest:
        find_field(rest)
        return
    if group == "crossbar" and rest:
        for value in values:
            check_setting(rest, str(value))
        return
    if group == "components" and rest:
        return  # checked with the component file, for each point
    if group != "knobs" and name not in _VARIED:
        raise UserError(
            f"{name}: no such parameter; expected one of: {', '.join(_VARIED)}, knobs.NAME, fields.NAME, "
            "crossbar.NAME, components.PART.NAME"
        )
    for value in values:
        if group == "knobs":
            parse_knobs({rest: value})
            continue
        found = STUDY_OPTIONS[name].check(
            name, resolve_file(folder, value) if name in FILE_OPTIONS and isinstance(value, str) else value
        )
        if name in _READ:
            _READ[name](found)


def enumerate_grid(parameters: Sequence[StudyParameter]) -> Iterator[Mapping[str, ParameterValue]]:
    """Yields all points of the grid; the last parameter varies fastest."""
    names = [p.name for p in parameters]
    yield from (dict(zip(names, values, strict=True)) for values in product(*(p.grid_values for p in parameters)))


def crossbar_settings(point: Mapping[str, ParameterValue]) -> dict[str, str]:
    """Returns the crossbar settings (`crossbar.NAME`) of a point, by name, as texts."""
    return {name.removeprefix("crossbar."): str(v) for name, v in point.items() if name.startswith("crossbar.")}


def merge_options(common: Mapping[str, Any], point: Mapping[str, ParameterValue]) -> dict[str, Any]:
    """Returns keywords of `raptor.compile`: the `common` ones, overridden by those of the point."""
    found = dict(common) | {group: dict(common.get(group, {})) for group in TABLE_OPTIONS}
    for name, value in point.items():
        group, _, rest = name.partition(".")
        if group in ("crossbar", "components"):
            continue
        if rest:
            found[group][rest] = value
        else:
            found[name] = value
    return {name: value for name, value in found.items() if name not in TABLE_OPTIONS or value}


def digest_values(*parts: Any) -> str:
    """Returns the SHA-256 of values as canonical JSON: sorted keys, no blanks."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def format_command(model: str, options: Mapping[str, Any], out: str = "out") -> str:
    """Returns the command that compiles a model with these options to a directory."""
    words = ["raptor", "compile", model] + ([] if out == "out" else ["-o", out])
    return shlex.join([*words, *to_command_line(options)])


def to_command_line(given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words of the command line for keyword arguments of `raptor.compile`."""
    for name, value in given.items():
        option, words = collect_options(CompileOptions)[name], flag_name(name).split()
        if option.check is parse_flag:
            yield from words if value else ()
        elif option.texts is not None:
            for text in option.texts.format_texts(value):
                yield from (*words, text)
        else:
            yield from (*words, "x".join(map(str, cast(list[Any], value))) if isinstance(value, list) else str(value))
