"""Parts of the schemas of JSON files: reading stops at the first mistake.

pydantic collects all mistakes, a kilobyte each, and a file from somewhere else can hold millions of them.
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
"""A number that a command writes: JSON has no infinity, so null stands for it."""

WallTimes = Annotated[
    Mapping[str, float],
    Field(description="wall time of each stage, s: the only field that differs between equal runs"),
]


def is_none(value: object) -> bool:
    """Tells whether a field of a schema has no value: it is left out then (`exclude_if`)."""
    return value is None


def _entries(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _one_by_one(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Stops at the first bad entry of an object, as `FailFast` does for arrays; pydantic has nothing for objects."""
    each = {name: handler({name: entry})[name] for name, entry in _entries(value).items()}
    return each or handler(value)  # the value is empty, or no object


# NOTE: the name check below turns arrays of JSON into lists, which strict tuples refuse. So these tuples are lax. The
# other types that a lax tuple accepts do not exist in JSON.
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
    """Base of all schemas. Strict: no conversions, no unknown names. Arrays are `Items` or `Pair`, objects `Named`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, value: Any) -> Any:
        return _refuse_unknown(cls.model_fields.keys(), value)


class Known:
    """Base of dataclasses inside a `Schema`: refuses unknown names at once, where pydantic would collect them."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        # NOTE: inside, because a class that two others hold is described once, without what stands around it.
        described = cast(dict[str, Any], handler.resolve_ref_schema(schema))
        check = partial(_refuse_unknown, cls.__annotations__.keys())
        described["schema"] = no_info_before_validator_function(check, described["schema"])
        described["strict"] = False  # made of an object of JSON; its fields are as strict as those of the `Schema`
        return schema


def faults(error: ValidationError, most: int) -> Iterable[str]:
    """Yields place and message of the first `most` mistakes."""
    return (
        f"{'.'.join(map(str, f['loc'])) or 'file'}: {f['msg'].removeprefix('Value error, ')}"
        for f in error.errors()[:most]
    )
