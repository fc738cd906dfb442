"""Reader of MLIR text in the generic form: every operation as `"name"(operands) {attributes} : types loc(...)`.

It reads what RAPTOR writes, and what mlir-opt and xDSL print of it: properties in `<{...}>`, aliases of locations,
modules as `module attributes {...}`. Lines of operations without regions, nearly all of a program, are matched by one
regular expression; the rest by recursive descent. Attributes and types that occur again are parsed once.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np

from raptor.mlir.syntax import (
    UNIT,
    Attributes,
    MlirError,
    MlirType,
    ResourceHandle,
    SymbolRef,
    parse_type,
    unquote,
)

MOST_RESULTS = 10_000
"""Most results of an operation that are read."""
MOST_NESTED = 32
"""Deepest nesting of attributes and regions that is read."""

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_FLAT = rf'\{{[^{{}}"\n]*(?:{_STRING}[^{{}}"\n]*)*\}}'
_LOC = rf"loc\((?:{_STRING}|#\w+|unknown)\)"
_LINE = re.compile(
    rf'\s*(?:%(\w+) = )?("[\w.]+")\((|%[\w#]+(?:, %[\w#]+)*)\) ?(<{_FLAT}>)? ?({_FLAT})? ?: '
    rf"\(([^()\n]*)\) -> ([\w<>]+|\(\))(?: ({_LOC}))?[ \t]*(?=\n)"
)
_ENTRY = re.compile(
    r'(\w+) = (?:(-?\d{1,18}) : i64|@(\w+)|"([^"\\]*)"|array<i64: (-?\d{1,18}(?:, -?\d{1,18})*)>)(?:, |\}>?$)'
)
_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})"
    r"|(?P<float>-?\d+\.\d*(?:[eE][-+]?\d+)?)"
    r"|(?P<integer>-?\d+(?![\w.]))"
    r"|(?P<value>%[\w$.-]+(?:#\d+)?)"
    r'|(?P<symbol>@(?:[\w$.-]+|"(?:[^"\\\n]|\\.)*"))'
    r"|(?P<alias>#[\w.]+)"
    r"|(?P<label>\^\w+)"
    r"|(?P<word>[A-Za-z_][\w$.]*)"
    r"|(?P<mark>->|\{-#|#-\}|[][{}()<>:,=?!*+-])"
)
_ALIAS = re.compile(r"^(#\w+) = loc\((.*)\)[ \t]*$", re.MULTILINE)


class MlirOp(NamedTuple):
    """An operation: its name, results and operands by name, attributes, types, location and place in the text.

    location: the text in `loc("...")`, or None if it is none of an ONNX node. regions: the operations of each region.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: Attributes
    operand_types: tuple[MlirType, ...]
    result_types: tuple[MlirType, ...]
    location: str | None
    position: int
    regions: tuple[tuple["MlirOp", ...], ...] = ()


def read_module(text: str) -> MlirOp:
    """Returns the module of a text. Raises `MlirError` at the first place that is wrong."""
    return _Reader(text).module()


def line_of(text: str, position: int) -> int:
    """Returns the number of the line of a character, from 1."""
    return text.count("\n", 0, position) + 1


@dataclass(slots=True)
class _Reader:
    """Reads a text from `at` on. The caches are by text."""

    text: str
    at: int = 0
    depth: int = 0
    aliases: dict[str, str | None] = field(default_factory=dict[str, str | None])
    attributes: dict[tuple[str, str], dict[str, Any] | None] = field(
        default_factory=dict[tuple[str, str], dict[str, Any] | None]
    )
    types: dict[str, tuple[MlirType, ...]] = field(default_factory=dict[str, tuple[MlirType, ...]])
    locations: dict[str, str | None] = field(default_factory=dict[str, str | None])

    def __post_init__(self) -> None:
        self.text += "\n"
        for found in _ALIAS.finditer(self.text):
            self.aliases[found[1]] = _named(found[2])

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        raise MlirError(self.at if at is None else at, message)

    # Tokens

    def skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None, "matches nothing, too"
        self.at = found.end()

    def peek(self, mark: str) -> bool:
        self.skip()
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Skips a mark or word if it comes next. Returns whether it did."""
        if not self.peek(mark):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self.fail(f"expected {mark} instead of {self._shown()}")

    def _shown(self) -> str:
        rest = self.text[self.at : self.at + 30].split("\n")[0]
        return rest or "the end of the line"

    def token(self, *kinds: str) -> re.Match[str]:
        self.skip()
        found = _TOKEN.match(self.text, self.at)
        if found is None or (kinds and found.lastgroup not in kinds):
            self.fail(f"expected {' or '.join(kinds) or 'an attribute'} instead of {self._shown()}")
        self.at = found.end()
        return found

    def string(self) -> str:
        return self._unquoted(self.token("string"))

    def _unquoted(self, found: re.Match[str]) -> str:
        literal = found[0] if found[0][0] == '"' else found[0][1:]
        try:
            return unquote(literal)
        except (ValueError, KeyError):
            self.fail("a string is not UTF-8", found.start())

    def sequence(self, end: str, item: Callable[[], Any]) -> list[Any]:
        """Reads items between commas up to a closing mark."""
        items: list[Any] = []
        if self.take(end):
            return items
        while True:
            items.append(item())
            if self.take(end):
                return items
            self.expect(",")

    # Attributes and types

    def attribute(self) -> Any:
        self.depth += 1
        if self.depth > MOST_NESTED:
            self.fail(f"attributes are nested more than {MOST_NESTED} deep")
        value = self._attribute()
        self.depth -= 1
        return value

    def _attribute(self) -> Any:
        found = self.token()
        kind, text = found.lastgroup, found[0]
        match kind:
            case "string":
                return self._unquoted(found)
            case "integer":
                return self._typed(self._integer(found), "i")
            case "float":
                return self._typed(self._float(found), "f")
            case "symbol":
                return SymbolRef(self._unquoted(found) if text[1] == '"' else text[1:])
            case _:
                return self._by_word(found)

    def _by_word(self, found: re.Match[str]) -> Any:
        """Reads an attribute that begins with a word or a mark."""
        match found[0]:
            case "{":
                return self.dictionary()
            case "[":
                return self.sequence("]", self.attribute)
            case "true" | "false" as text:
                return text == "true"
            case "unit":
                return UNIT
            case "array":
                return self._array()
            case "dense_resource":
                return self._resource()
            case _:
                self.at = found.start()
                return self.type()

    def _integer(self, found: re.Match[str]) -> int:
        if len(found[0]) > 20 or not -(2**63) <= int(found[0]) < 2**63:
            self.fail(f"{found[0][:20]}... has more than 64 bits", found.start())
        return int(found[0])

    def _float(self, found: re.Match[str]) -> float:
        value = float(found[0])
        if not np.isfinite(value):
            self.fail(f"{found[0][:20]} is no finite float64", found.start())
        return value

    def _typed(self, value: Any, kind: str) -> Any:
        if self.take(":"):
            at, type_ = self.at, self.type()
            if type_.kind != "scalar" or not (type_.element.startswith(kind)):
                self.fail(f"{type_} is no type of {value}", at)
        return value

    def _array(self) -> Any:
        self.expect("<")
        at, element = self.at, self.type()
        if element.element not in ("i32", "i64", "f64"):
            self.fail(f"array of {element}: expected i32, i64 or f64", at)
        if self.take(">"):
            return np.zeros(0, np.float64 if element.element == "f64" else np.int64)
        self.expect(":")
        start = self.at
        end = self.text.find(">", start)
        inside = self.text[start : end if end >= 0 else start]
        try:
            if element.element == "f64":
                values = np.array([float(each) for each in inside.split(",")])
                fine = bool(np.isfinite(values).all())
            else:
                values = np.array([int(each) for each in inside.split(",")], np.int64)
                fine = True
        except (ValueError, OverflowError):
            values, fine = np.zeros(0), False
        if not fine or "_" in inside:
            self.fail(f"array<{element}: ...> has an entry that is no {element}", start)
        self.at = end + 1
        return values

    def _resource(self) -> ResourceHandle:
        self.expect("<")
        found = self.token("string", "word")
        key = self._unquoted(found) if found.lastgroup == "string" else found[0]
        self.expect(">")
        self.expect(":")
        return ResourceHandle(key, self.type())

    def type(self) -> MlirType:
        self.skip()
        start = self.at
        end = re.compile(r"[\w]*(?:<[^<>\n]*>)?").match(self.text, start)
        type_ = parse_type(end[0]) if end else None
        if end is None or type_ is None:
            self.fail(f"expected a type or an attribute instead of {self._shown()}", start)
        self.at = end.end()
        return type_

    def dictionary(self) -> dict[str, Any]:
        """Reads entries up to `}`, after `{`."""
        entries: dict[str, Any] = {}

        def entry() -> None:
            found = self.token("word", "string")
            key = self._unquoted(found) if found.lastgroup == "string" else found[0]
            if key in entries:
                self.fail(f"{key} is given twice", found.start())
            entries[key] = self.attribute() if self.take("=") else UNIT

        self.sequence("}", entry)
        return entries

    def _flat(self, properties: str | None, attributes: str | None, start: int) -> dict[str, Any]:
        """Returns the attributes of a line, which are parsed only if the same text has not been before."""
        key = properties or "", attributes or ""
        found = self.attributes.get(key)
        if found is None and (properties is None or attributes is None):
            found = self.attributes[key] = _simple_entries(properties or attributes or "")
        if found is None:
            found = dict[str, Any]()
            for text, opening in ((properties, 2), (attributes, 1)):
                if text:
                    before, self.at = self.at, self.text.index(text, start) + opening
                    self._add(found, self.dictionary())
                    self.at = before
            self.attributes[key] = found
        return found

    def _add(self, found: dict[str, Any], more: dict[str, Any]) -> None:
        for name in more.keys() & found.keys():
            self.fail(f"{name} is given twice")
        found |= more

    def _types(self, text: str, at: int) -> tuple[MlirType, ...]:
        known = self.types.get(text)
        if known is None:
            parts = text.split(", ") if text and text != "()" else []
            made = [parse_type(part) for part in parts]
            for part, type_ in zip(parts, made, strict=True):
                if type_ is None:
                    self.fail(f"{part} is no type that RAPTOR reads", at)
            known = tuple([type_ for type_ in made if type_ is not None])
            self.types[text] = known
        return known

    # Locations

    def _location(self, text: str | None) -> str | None:
        """Returns the name in `loc(...)`."""
        if text is None:
            return None
        if text not in self.locations:
            inside = text[4:-1]
            self.locations[text] = self.aliases.get(inside) if inside[0] == "#" else _named(inside)
        return self.locations[text]

    def _trailing_location(self) -> str | None:
        if not self.peek("loc("):
            return None
        start, depth = self.at, 0
        for found in re.compile(rf"{_STRING}|[()\n]").finditer(self.text, start):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if found[0] == ")" and not depth:
                self.at = found.end()
                return self._location(self.text[start : self.at])
            if found[0] == "\n":
                break
        self.fail("loc( is not closed")

    # Operations

    def module(self) -> MlirOp:
        while self.peek("#"):
            self._skip_line()
        start = self.at
        if self.take("module"):
            op = self._custom_module(start)
        elif self.peek('"builtin.module"'):
            op = self._operation()
        else:
            self.fail(f"expected a module instead of {self._shown()}")
        while self.peek("#"):
            self._skip_line()
        if self.peek("{-#"):
            self.fail("values of resources are not read: weights come from the model")
        if self.at < len(self.text):
            self.fail(f"expected the end instead of {self._shown()}")
        if len(op.regions) != 1:
            self.fail("a module has one region", start)
        return op

    def _skip_line(self) -> None:
        if _ALIAS.match(self.text, self.at) is None:
            self.fail("an alias other than of a location is not read")
        self.at = self.text.index("\n", self.at)

    def _custom_module(self, start: int) -> MlirOp:
        attributes: dict[str, Any] = {}
        if self.peek("@"):
            found = self.token("symbol")
            attributes["sym_name"] = self._unquoted(found) if found[0][1] == '"' else found[0][1:]
        if self.take("attributes"):
            self.expect("{")
            self._add(attributes, self.dictionary())
        self.expect("{")
        ops = tuple(self._operations())
        location = self._trailing_location()
        return MlirOp("builtin.module", (), (), attributes, (), (), location, start, (ops,))

    def _operations(self) -> Iterator[MlirOp]:
        """Yields operations up to `}`."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            self.fail(f"regions are nested more than {MOST_NESTED} deep")
        match, text = _LINE.match, self.text
        while True:
            found = match(text, self.at)
            if found is not None:
                yield self._line(found)
                continue
            if self.take("}"):
                self.depth -= 1
                return
            yield self._operation()

    def _line(self, found: re.Match[str]) -> MlirOp:
        result, name, operands, properties, attributes, given, made, location = found.groups()
        start = found.start(2)
        op = MlirOp(
            name[1:-1],
            (result,) if result else (),
            tuple(operands[1:].split(", %")) if operands else (),
            self._flat(properties, attributes, start),
            self._types(given, start),
            self._types(made, start),
            self._location(location),
            start,
        )
        self.at = found.end()
        return op

    def _operation(self) -> MlirOp:
        self.skip()
        start = self.at
        results: list[str] = []
        while self.peek("%"):
            name = self.token("value")[0][1:]
            many = int(self.token("integer")[0]) if self.take(":") else None
            if many is not None and not 0 < many <= MOST_RESULTS:
                self.fail(f"{many} results of an operation")
            results += [name] if many is None else [f"{name}#{k}" for k in range(many)]
            if not self.take(","):
                self.expect("=")
                break
        if not self.peek('"'):
            self.fail(f'expected an operation in the generic form, "dialect.name"(...), instead of {self._shown()}')
        name = self.string()
        self.expect("(")
        operands = self.sequence(")", lambda: self.token("value")[0][1:])
        attributes: dict[str, Any] = {}
        if self.take("<{"):
            attributes = self.dictionary()
            self.expect(">")
        regions: list[tuple[MlirOp, ...]] = self.sequence(")", self._region) if self.take("({") else []
        if self.take("{"):
            self._add(attributes, self.dictionary())
        self.expect(":")
        self.expect("(")
        given = self.sequence(")", self.type)
        self.expect("->")
        made = self.sequence(")", self.type) if self.take("(") else [self.type()]
        location = self._trailing_location()
        types = tuple(given), tuple(made)
        return MlirOp(name, tuple(results), tuple(operands), attributes, *types, location, start, tuple(regions))

    def _region(self) -> tuple[MlirOp, ...]:
        """Reads a region; `{` of the first one is taken already."""
        self.take("{")
        if self.peek("^"):
            self.token("label")
            if self.take("("):
                self.expect(")")
            self.expect(":")
        return tuple(self._operations())


def _simple_entries(text: str) -> dict[str, Any] | None:
    """Returns the entries of a dictionary of integers, symbols and plain strings; None for any other one."""
    at, end, found = 2 if text.startswith("<") else 1, len(text), dict[str, Any]()
    while at < end:
        match = _ENTRY.match(text, at)
        if match is None or match[1] in found:
            return None
        name, integer, symbol, plain, numbers = match.groups()
        if integer is not None:
            found[name] = int(integer)
        elif symbol is not None:
            found[name] = SymbolRef(symbol)
        elif plain is not None:
            found[name] = plain
        else:
            found[name] = np.array(numbers.split(","), np.int64)
        at = match.end()
    return found


def _named(inside: str) -> str | None:
    """Returns the name of a location, from the text in its parentheses; None for a place in a file, and others."""
    found = re.match(rf"({_STRING})(?=$|\()", inside)
    try:
        return unquote(found[1]) if found else None
    except (ValueError, KeyError):
        return None
