"""The study file (TOML): models, space, objectives, limits, and how it runs. docs/how-to/explore.md describes every
key."""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonArray, JsonObject, StrictSchema, format_errors
from raptor.tools.explore.study.metrics import METRICS, Direction, MetricLimit, MetricNeed, parse_limit
from raptor.tools.explore.study.search_space import (
    SPACE_TABLES,
    STUDY_OPTIONS,
    ParameterValue,
    StudyParameter,
    check_values,
    enumerate_grid,
)
from validator.options import CrossbarKind

_LIMIT_BYTES = 2**20
_NAME = re.compile(r"\w[\w .()+-]*")
_MOST_NAME_BYTES = 100
_STORAGE = r"^(sqlite:///|postgresql\+psycopg://).+"
_RANGE = {"min", "max", "step", "log"}
_MOST_POINTS = 10**6

_COMPONENT_SIZES = ("arch", "cores", "xbar", "xbars_per_core", "cell_bits", "chips", "link")
"""Options that a component file takes the place of."""

TomlNumber = int | float


def _checked_name(name: str) -> str:
    """Returns the name of a study if it is valid: it becomes part of names of files next to the database."""
    size = len(name.encode(errors="replace"))
    if _NAME.fullmatch(name) and size <= _MOST_NAME_BYTES:
        return name
    what = f"{name[:40]!r}{' ...' if len(name) > 40 else ''}"
    if size > _MOST_NAME_BYTES:
        raise ValueError(f"{what} has {size} bytes, a name has at most {_MOST_NAME_BYTES}")
    raise ValueError(f"{what}: a name begins with a letter or digit, then come these, spaces, or some of . _ - + ( )")


class StudyPart(StrictSchema):
    """Table `study`."""

    name: Annotated[str, AfterValidator(_checked_name)]
    models: Annotated[JsonArray[str], Field(min_length=1)]
    sampler: Literal["grid", "random", "nsga2", "tpe"] = "nsga2"
    trials: Annotated[int, Field(ge=1, le=10**6)] = 100
    batch: Annotated[int, Field(ge=1, le=10**4)] = 16
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    storage: Annotated[str, Field(pattern=_STORAGE)] = ""
    mapping: Literal["anew", "fixed"] = "anew"
    components: str | None = None

    @model_validator(mode="after")
    def _has_a_storage(self) -> "StudyPart":
        return self if self.storage else self.model_copy(update={"storage": f"sqlite:///{self.name}.db"})


class RunPart(StrictSchema):
    """Table `run`: processes and limits. They do not change the results of points that succeed."""

    workers: Annotated[int, Field(ge=1, le=1024)] = 2
    scheduler: str = ""
    timeout_s: Annotated[TomlNumber, Field(gt=0, le=10**7, allow_inf_nan=False)] = 600
    memory_mb: Annotated[int, Field(ge=512, le=2**30)] = 8000


class AccuracyPart(StrictSchema):
    """Table `accuracy`: data for the metrics of accuracy, and the crossbars on which programs run."""

    data: Annotated[JsonArray[str], Field(min_length=1)]
    crossbar: CrossbarKind | None = None
    cells: str | None = None
    settings: Annotated[dict[str, int | float | str], Field(default_factory=dict)]
    chips: Annotated[int, Field(ge=1, le=1000)] = 1
    samples: Annotated[int, Field(ge=1)] | None = None
    calibration: Annotated[int, Field(ge=1)] = 16


class RangePart(StrictSchema):
    """A range of numbers."""

    min: Annotated[TomlNumber, Field(allow_inf_nan=False)]
    max: Annotated[TomlNumber, Field(allow_inf_nan=False)]
    step: Annotated[TomlNumber, Field(gt=0, allow_inf_nan=False)] | None = None
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> "RangePart":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.log and (self.min <= 0 or self.step is not None):
            raise ValueError("log needs a min above 0, and no step")
        return self


class StudyFile(StrictSchema):
    """The whole file."""

    study: StudyPart
    run: RunPart = RunPart()
    accuracy: AccuracyPart | None = None
    options: Annotated[dict[str, Any], Field(default_factory=dict)]
    space: Annotated[dict[str, Any], Field(min_length=1)]
    objectives: Annotated[JsonObject[Direction], Field(min_length=1)]
    constraints: Annotated[JsonObject[str], Field(default_factory=dict)]

    @field_validator("objectives", "constraints", "options")
    @classmethod
    def _are_known(cls, value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
        what, known = ("option", STUDY_OPTIONS) if info.field_name == "options" else ("figure", METRICS)
        for name in value:
            if name not in known:
                raise ValueError(f"no such {what}: {name[:80]!r}; expected some of: {', '.join(known)}")
        return value


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file that a study names: its name in the study file, its path, and the SHA-256 of its bytes."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class StudyModel(HashedFile):
    """A model of a study. `data`: its labelled data; None if no accuracy is measured."""

    data: HashedFile | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A checked study. `folder`: of the study file; `space`: parameters in the order of the file."""

    file: StudyFile
    folder: Path
    models: tuple[StudyModel, ...]
    space: tuple[StudyParameter, ...]
    limits: tuple[MetricLimit, ...]

    @property
    def name(self) -> str:
        return self.file.study.name

    @property
    def objectives(self) -> Mapping[str, Direction]:
        return self.file.objectives

    @property
    def storage(self) -> str:
        """URL of the database. A path of SQLite is relative to the folder of the study file."""
        url = self.file.study.storage
        kind, slashes, path = url.partition(":///")
        return f"{kind}{slashes}{self.folder / path}" if kind == "sqlite" else url

    def requires(self, need: MetricNeed) -> bool:
        """Returns True if an objective or a constraint of the study has this requirement."""
        return any(METRICS[name].requires == need for name in (*self.objectives, *self.file.constraints))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the trials, as JSON values; `trials` is left out, because a study may be extended."""
        study = self.file.study
        return {
            "models": [m.sha256 for m in self.models],
            "sampler": study.sampler,
            "batch": study.batch,
            "seed": study.seed,
            "mapping": study.mapping,
            "options": self.file.options,
            "space": self.file.space,
            "objectives": dict(self.file.objectives),
            "constraints": dict(self.file.constraints),
        } | self._accuracy

    @property
    def _accuracy(self) -> dict[str, Any]:
        if self.file.accuracy is None:
            return {}
        return {"accuracy": self.file.accuracy.model_dump() | {"data": [m.data.sha256 for m in self.models if m.data]}}


def read_study(path: Path) -> Study:
    """Reads and checks a study file. Raises `UserError` with file and key for the first mistakes."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_LIMIT_BYTES + 1)
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from e
    if len(content) > _LIMIT_BYTES:
        raise UserError(f"{path}: more than the {_LIMIT_BYTES} bytes expected of a study file")
    try:
        raw = tomllib.loads(content.decode())
        file = StudyFile.model_validate(raw)
        return _study(file, path.parent)
    except ValidationError as e:
        raise UserError("\n".join([f"study {path}:", *(f"  {text}" for text in format_errors(e, 10))])) from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise UserError(f"study {path}: not TOML: {e}") from e
    except UserError as e:
        raise UserError(f"study {path}: {e}") from e


def _study(file: StudyFile, folder: Path) -> Study:
    space = tuple(_parameters(file.space, "", folder))
    limits: list[MetricLimit] = []
    for name, text in file.constraints.items():
        try:
            limits.append(parse_limit(name, text))
        except ValueError as e:
            raise UserError(f"constraints.{name}: {e}") from e
    _check(file, space)
    data = list(_data(file, folder)) or [None] * len(file.study.models)
    files = [_file("study.models", name, folder) for name in file.study.models]
    models = tuple(StudyModel(f.name, f.path, f.sha256, given) for f, given in zip(files, data, strict=True))
    return Study(file, folder, models, space, tuple(limits))


def _data(file: StudyFile, folder: Path) -> Iterator[HashedFile]:
    """Yields the data of each model. Raises `UserError` for a wrong number of files, and for missing or unused data."""
    needed = [n for n in (*file.objectives, *file.constraints) if METRICS[n].requires == "accuracy"]
    part = file.accuracy
    if part is None:
        if needed:
            raise UserError(f"{needed[0]}: needs data: a table 'accuracy' with a key 'data'")
        return
    if not needed:
        raise UserError("accuracy: no objective and no limit is a figure of accuracy: top1, top5, agreement")
    if len(part.data) not in (1, len(file.study.models)):
        raise UserError(f"accuracy.data: expected 1 file, or one for each of {len(file.study.models)} models")
    names = part.data if len(part.data) > 1 else part.data * len(file.study.models)
    yield from (_file("accuracy.data", name, folder) for name in names)


def _check(file: StudyFile, space: tuple[StudyParameter, ...]) -> None:
    """Raises `UserError` for parts that contradict each other."""
    shared = sorted({p.name for p in space} & set(file.options))
    if shared:
        raise UserError(f"space.{shared[0]}: also among the options that all points share; name it once")
    if file.study.sampler == "grid":
        count = sum(1 for _ in zip(enumerate_grid(space), range(_MOST_POINTS + 1), strict=False))
        if count > _MOST_POINTS:
            raise UserError(f"space: a grid of more than {_MOST_POINTS} points")
    if file.accuracy is None or file.accuracy.crossbar not in ("sliced", "noisy"):
        analog = [p.name for p in space if p.name.startswith("crossbar.")]
        if analog:
            raise UserError(f"space.{analog[0]}: needs accuracy.crossbar 'sliced' or 'noisy'")
    _check_components(file, space)
    others = [p.name for p in space if not p.name.startswith(("fields.", "crossbar."))]
    if file.study.mapping == "fixed" and others:
        raise UserError(
            f"space.{others[0]}: with study.mapping 'fixed' the programs are compiled once, for the options of all "
            "points, so that only fields of the architecture and settings of crossbars can vary"
        )


def _check_components(file: StudyFile, space: tuple[StudyParameter, ...]) -> None:
    """Raises `UserError` for components without a component file, and for sizes that the file has, too."""
    varied = [p.name for p in space if p.name.startswith("components.")]
    if file.study.components is None:
        if varied:
            raise UserError(f"space.{varied[0]}: needs study.components, a component file or 'example'")
        return
    sizes = [name for name in (*file.options, *(p.name for p in space)) if name in _COMPONENT_SIZES]
    if sizes:
        raise UserError(f"{sizes[0]}: study.components says it; vary components.PART.NAME instead")


def _file(key: str, name: str, folder: Path) -> HashedFile:
    path = folder / name
    try:
        with path.open("rb") as stream:
            return HashedFile(name, path, hashlib.file_digest(stream, "sha256").hexdigest())
    except OSError as e:
        raise UserError(f"{key}: {name}: {e.strerror or e}") from e


def _parameters(table: Mapping[str, Any], prefix: str, folder: Path) -> Iterator[StudyParameter]:
    """Yields the parameters of the table `space`, also those of nested tables (`TABLES`). `prefix`: of their names."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and not _RANGE & value.keys() and name.partition(".")[0] in SPACE_TABLES:
            yield from _parameters(cast(dict[str, Any], value), f"{name}.", folder)
        else:
            yield _parameter(name, value, folder)


def _parameter(name: str, value: Any, folder: Path) -> StudyParameter:
    if isinstance(value, dict):
        return _range(name, cast(dict[str, Any], value), folder)
    given = cast(list[Any], value) if isinstance(value, list) else [value]
    values = tuple(_value(name, v) for v in given)
    if not values or len(set(map(repr, values))) < len(values):
        raise UserError(f"space.{name}: expected some different values")
    _check_space(name, values, folder)
    return StudyParameter(name, values)


def _range(name: str, value: dict[str, Any], folder: Path) -> StudyParameter:
    try:
        found = RangePart.model_validate(value)
    except ValidationError as e:
        raise UserError(f"space.{name}.{next(iter(format_errors(e, 1)))}") from e
    whole = isinstance(found.min, int) and isinstance(found.max, int)
    step = found.step if found.step is not None else 1 if whole else 0
    parameter = StudyParameter(name, (), found.min, found.max, step, found.log)
    ends: tuple[ParameterValue, ...] = (
        (int(found.min), int(found.max)) if parameter.is_integer else (found.min, found.max)
    )
    _check_space(name, ends, folder)
    return parameter


def _value(name: str, value: Any) -> ParameterValue:
    """Returns a value of a parameter. A crossbar size of two numbers becomes a text such as `64x128`."""
    if name == "xbar" and isinstance(value, list):
        return "x".join(map(str, cast(list[Any], value)))
    if not isinstance(value, bool | int | float | str):
        raise UserError(f"space.{name}: expected numbers, texts, true or false, got {value!r:.80}")
    return value


def _check_space(name: str, values: tuple[ParameterValue, ...], folder: Path) -> None:
    try:
        check_values(name, values, folder)
    except UserError as e:
        raise UserError(f"space: {e}") from e
