"""What the schemas of JSON files are made of: the first mistake ends the reading.

pydantic collects mistakes, a kilobyte each, and a file that somebody made can hold millions of them.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

T = TypeVar("T")
U = TypeVar("U")


Figure = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
"""A number of what a command writes: JSON has no infinity, and null stands for it."""

WallTimes = Annotated[
    Mapping[str, float],
    Field(description="wall time of each stage, s: the only field that differs between equal runs"),
]


def _entries(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _one_by_one(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """`FailFast` for objects, which pydantic has only for arrays."""
    each = {name: handler({name: entry})[name] for name, entry in _entries(value).items()}
    return each or handler(value)  # which is empty, or no object


# NOTE: an array of JSON is a list once the name check below has seen the object it stands in, and strict tuples take
# no lists. Whatever else a lax one takes, JSON does not have.
Items = Annotated[tuple[T, ...], Strict(False), FailFast()]
Pair = Annotated[tuple[T, U], Strict(False)]
Named = Annotated[Mapping[str, T], WrapValidator(_one_by_one)]


def _refuse_unknown(names: Collection[str], value: Any) -> Any:
    unknown = _entries(value).keys() - names
    if unknown:
        first = min(unknown)[:80]
        close = get_close_matches(first, names, 1)
        raise ValueError(f"no such field: {first!r}{f'; did you mean {close[0]}?' if close else ''}")
    return value


class Schema(BaseModel):
    """Strict: no conversions, no unknown names. Arrays are `Items` or `Pair`, objects by name are `Named`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, value: Any) -> Any:
        return _refuse_unknown(cls.model_fields.keys(), value)


class Known:
    """Base of dataclasses in a `Schema`, which forbids them unknown names too, but collects them."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        # NOTE: inside, because a class that two others hold is described once, without what stands around it.
        described = cast(dict[str, Any], handler.resolve_ref_schema(schema))
        check = partial(_refuse_unknown, cls.__annotations__.keys())
        described["schema"] = no_info_before_validator_function(check, described["schema"])
        return schema


def faults(error: ValidationError, most: int) -> Iterable[str]:
    """Where and what, of the first few."""
    return (
        f"{'.'.join(map(str, f['loc'])) or 'file'}: {f['msg'].removeprefix('Value error, ')}"
        for f in error.errors()[:most]
    )
