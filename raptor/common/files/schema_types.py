"""Base classes and field types of the JSON schemas. Validation stops at the first error.

pydantic itself collects all errors, a kilobyte each, and an untrusted file can have millions of them.
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


JsonNumber = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
"""A float in the JSON of a command. JSON has no infinity and no NaN, so these are written as null."""

WallTimes = Annotated[
    Mapping[str, float],
    Field(description="wall time of each stage, s: the only field that differs between equal runs"),
]


def is_none(value: object) -> bool:
    """Returns True for None: argument `exclude_if` of a field that is omitted without a value."""
    return value is None


def is_false(value: object) -> bool:
    """Checks whether a flag is False: with `exclude_if` of pydantic, files leave the flag out then."""
    return value is False


def is_empty(value: object) -> bool:
    """Returns True for an empty array: argument `exclude_if` of a field that is omitted then."""
    return value == ()


def _entries(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _one_by_one(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Validates the entries of an object one by one, and stops at the first error (`FailFast` is for arrays only)."""
    each = {name: handler({name: entry})[name] for name, entry in _entries(value).items()}
    return each or handler(value)  # the value is empty, or no object


# NOTE: the name check below turns arrays of JSON into lists, which strict tuples refuse. So these tuples are lax. The
# other types that a lax tuple accepts do not exist in JSON.
JsonArray = Annotated[tuple[T, ...], Strict(False), FailFast()]
JsonPair = Annotated[tuple[T, U], Strict(False)]
JsonObject = Annotated[Mapping[str, T], WrapValidator(_one_by_one)]


def _refuse_unknown(names: Collection[str], value: Any) -> Any:
    unknown = _entries(value).keys() - names
    if unknown:
        first = min(unknown)[:80]
        close = get_close_matches(first, names, 1)
        raise ValueError(f"no such field: {first!r}{f'; did you mean {close[0]}?' if close else ''}")
    return value


class StrictSchema(BaseModel):
    """Base of all schemas: strict types, no unknown fields.

    Arrays must be `JsonArray` or `Pair`, objects `JsonObject`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, value: Any) -> Any:
        return _refuse_unknown(cls.model_fields.keys(), value)


class StrictDataclass:
    """Base class of dataclasses in a `StrictSchema`: the first unknown field ends validation."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        # NOTE: a class that several fields use is described once, without validators around the description.
        described = cast(dict[str, Any], handler.resolve_ref_schema(schema))
        check = partial(_refuse_unknown, cls.__annotations__.keys())
        described["schema"] = no_info_before_validator_function(check, described["schema"])
        described["strict"] = False  # is made of a JSON object; its fields stay strict
        return schema


def format_errors(error: ValidationError, most: int) -> Iterable[str]:
    """Yields `location: message` for the first `most` errors."""
    return (
        f"{'.'.join(map(str, f['loc'])) or 'file'}: {f['msg'].removeprefix('Value error, ')}"
        for f in error.errors()[:most]
    )
