"""Reader of MLIR text in the generic form: every operation as `"name"(operands) {attributes} : types loc(...)`.

It reads what RAPTOR writes, and what mlir-opt and xDSL print of it: properties in `<{...}>`, aliases of locations,
modules as `module attributes {...}`. Lines of operations without regions, nearly all of a program, are matched by one
regular expression; the rest by recursive descent. Attributes and types that occur again are parsed once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raptor.common.errors import UserError
from raptor.common.mlir.attribute_reader import MOST_NESTED, STRING, AttributeReader
from raptor.common.mlir.syntax import MlirType, SymbolRef, parse_type, unquote

MOST_BYTES = 2**31
"""Size of the largest file that is read."""
_BYTECODE = b"ML\xefR"
MOST_RESULTS = 10_000
"""Most results of an operation that are read."""
ARGUMENTS, RESOURCES = "^", "{-#"
"""Name of an operation whose results are the arguments of its region, and of the values of resources in a module."""

_FLAT = rf'\{{[^{{}}"\n]*(?:{STRING}[^{{}}"\n]*)*\}}'
_LOC = rf"loc\((?:{STRING}|#\w+|unknown)\)"
_LINE = re.compile(
    rf'\s*(?:%(\w+) = )?("[\w.]+")\((|%[\w#]+(?:, %[\w#]+)*)\) ?(<{_FLAT}>)? ?({_FLAT})? ?: '
    rf"\(([^()\n]*)\) -> ([\w<>]+|\(\))(?: ({_LOC}))?[ \t]*(?=\n)"
)
_ENTRY = re.compile(
    r'(\w+) = (?:(-?\d{1,18}) : i64|@(\w+)|"([^"\\]*)"|array<i64: (-?\d{1,18}(?:, -?\d{1,18})*)>)(?:, |\}>?$)'
)
_ALIAS = re.compile(r"^(#\w+) = loc\((.*)\)[ \t]*$", re.MULTILINE)


class MlirOp(NamedTuple):
    """An operation: its name, results and operands by name, attributes, types, location and place in the text.

    location: the text in `loc("...")`, or None if it is none of an ONNX node. regions: the operations of each region.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: dict[str, Any]
    operand_types: tuple[MlirType, ...]
    result_types: tuple[MlirType, ...]
    location: str | None
    position: int
    regions: tuple[tuple["MlirOp", ...], ...] = ()


def read_module(text: str) -> MlirOp:
    """Returns the module of a text. Raises `MlirError` at the first place that is wrong."""
    return _Reader(text).module()


def read_text(path: Path, label: str) -> str:
    """Returns the text of a file; label: what messages call it. Raises `UserError` if it is too large or no text."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as e:
        raise UserError(f"{label}: {e.strerror or e}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{label}: more than {MOST_BYTES} bytes")
    if content.startswith(_BYTECODE):
        raise UserError(f"{label}: is bytecode; mlir-opt --mlir-print-debuginfo makes text of it")
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        raise UserError(f"{label}: line {line}: is no UTF-8") from None


def line_of(text: str, position: int) -> int:
    """Returns the number of the line of a character, from 1."""
    return text.count("\n", 0, position) + 1


@dataclass(slots=True)
class _Reader(AttributeReader):
    """Reads the operations of a text. The caches are by text."""

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
        for found in re.compile(rf"{STRING}|[()\n]").finditer(self.text, start):
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
            self._resources(op.attributes)
        if self.at < len(self.text):
            self.fail(f"expected the end instead of {self._shown()}")
        if len(op.regions) != 1:
            self.fail("a module has one region", start)
        return op

    def _resources(self, attributes: dict[str, Any]) -> None:
        """Reads the values of resources as an attribute of the module, without the alignment before their bytes."""

        def value() -> None:
            found = self.token("word", "string")
            key = self._unquoted(found) if found.lastgroup == "string" else found[0]
            self.expect(":")
            values[key] = self._hexadecimal()[4:]

        values = dict[str, bytes]()
        for mark in ("{-#", "dialect_resources", ":", "{", "builtin", ":", "{"):
            self.expect(mark)
        self.sequence("}", value)
        for mark in ("}", "#-}"):
            self.expect(mark)
        self.skip()
        attributes[RESOURCES] = values

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
        before: tuple[MlirOp, ...] = ()
        if self.peek("^"):
            start = self.token("label").start()
            arguments = dict(self.sequence(")", self._argument) if self.take("(") else [])
            self.expect(":")
            if arguments:
                before = (MlirOp(ARGUMENTS, tuple(arguments), (), {}, (), tuple(arguments.values()), None, start),)
        return (*before, *self._operations())

    def _argument(self) -> tuple[str, MlirType]:
        name = self.token("value")[0][1:]
        self.expect(":")
        type_ = self.type()
        self._trailing_location()
        return name, type_


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
    found = re.match(rf"({STRING})(?=$|\()", inside)
    try:
        return unquote(found[1]) if found else None
    except (ValueError, KeyError):
        return None
