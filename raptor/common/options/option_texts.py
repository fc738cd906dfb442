"""Parses and formats repeatable options of the command line, such as `--dim height=224`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name as spelled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NamedValueFormat(Generic[T]):
    """Form of an option with texts `NAME=VALUE`.

    `read` parses a value, and raises `ValueError` for another form; `expected` describes the form in the error.
    `written` formats a value. `split_at_last`: the name ends at the last `=` of the text, otherwise at the first.
    """

    parse_value: Callable[[str], T]
    expected: str
    format_value: Callable[[Any], str] = str
    split_at_last: bool = False

    @property
    def metavar(self) -> str:
        """Placeholder of a text in `--help`, such as `NAME=SIZE`."""
        return self.expected.partition(",")[0]

    def parse(self, keyword: str, texts: Iterable[str]) -> dict[str, T]:
        """Returns the values by name. Raises `UserError` for a malformed text, and for a name that occurs twice."""
        found: dict[str, T] = {}
        for text in texts:
            key, value = self._entry(keyword, text)
            if key in found:
                raise UserError(f"{spelled(keyword)} {key}: given twice")
            found[key] = value
        return found

    def _entry(self, keyword: str, text: str) -> tuple[str, T]:
        key, equals, value = text.rpartition("=") if self.split_at_last else text.partition("=")
        try:
            if key and equals:
                return key, self.parse_value(value)
        except (ValueError, RecursionError):
            pass
        raise UserError(f"{spelled(keyword)} {text}: expected {self.expected}")

    def format_texts(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yields a text `NAME=VALUE` for each entry of `values`."""
        return (f"{key}={self.format_value(value)}" for key, value in values.items())


@dataclass(frozen=True, slots=True)
class NameListFormat:
    """Form of an option with texts `NAME,NAME`. `metavar`: its placeholder in `--help`."""

    metavar: str

    def parse(self, keyword: str, texts: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of all texts, in order."""
        return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())

    def format_texts(self, values: Sequence[str]) -> Iterator[str]:
        """Yields one text with all names."""
        yield ",".join(values)


def _size(text: str) -> int:
    """Parses an integer of at most nine digits; a dimension with more is refused (`ValueError`)."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        raise ValueError(text)
    return int(digits)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_size, text.split(",")))


def _joined(value: Any) -> str:
    return ",".join(map(str, cast(Sequence[Any], value))) if isinstance(value, Sequence) else json.dumps(value)


def _constant(value: Any) -> str:
    return value if isinstance(value, str) else _joined(value)


def _field(text: str) -> Any:
    return text if text.isalpha() and text not in ("true", "false", "null") else json.loads(text)


@dataclass(frozen=True, slots=True)
class StateFormat(NamedValueFormat[str]):
    """Form of states: texts `INPUT=OUTPUT`, or the single text `auto`."""

    def parse(self, keyword: str, texts: Iterable[str]) -> dict[str, str]:
        """Returns the output of each input, or `AUTOMATIC`."""
        given = list(texts)
        return dict(AUTOMATIC) if given == ["auto"] else NamedValueFormat[str].parse(self, keyword, given)

    def format_texts(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yields the texts of states."""
        return iter(("auto",)) if values == AUTOMATIC else NamedValueFormat[str].format_texts(self, values)


AUTOMATIC: Mapping[str, str] = {"auto": ""}
"""States that are recognised by the names of inputs and outputs."""
STATES = StateFormat(str, "INPUT=OUTPUT, such as h0=hn, or auto")
SHAPES = NamedValueFormat(_sizes, "NAME=SIZES, such as input=1,3,224,224", _joined, split_at_last=True)
DIMS = NamedValueFormat(_size, "NAME=SIZE, such as height=224", split_at_last=True)
CONSTANTS = NamedValueFormat(str, "NAME=VALUE, such as sr=16000", _constant)
"""Values stay texts here: the type of the input decides how they are parsed."""
FIELDS = NamedValueFormat(
    _field, "NAME=VALUE, such as rob_size=4, xbar_size=[128,128] or pipeline_mode=true", json.dumps
)
KNOBS = NamedValueFormat(float, "NAME=NUMBER, such as share=0.75")
WIDTHS = NamedValueFormat(_size, "NAME=BITS, such as conv1=4", split_at_last=True)
NAMES = NameListFormat("NAME,...")
OPERATORS = NameListFormat("OP,...")
