"""Reader of MLIR's attributes and types: a text, and the place in it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from raptor.common.mlir.syntax import (
    UNIT,
    MlirError,
    MlirType,
    ResourceHandle,
    SymbolRef,
    TensorValue,
    element_dtype,
    is_list,
    parse_type,
    tensor_shape,
    unquote,
)

MOST_NESTED = 32
"""Deepest nesting of attributes and regions that is read."""
MOST_EQUAL = 2**26
"""Most elements of a constant that is written as one value."""
STRING = r'"(?:[^"\\\n]|\\.)*"'

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_TOKEN = re.compile(
    rf"(?P<string>{STRING})"
    r"|(?P<float>-?\d+\.\d*(?:[eE][-+]?\d+)?)"
    r"|(?P<bits>0x[0-9A-Fa-f]{1,16}\b)"
    r"|(?P<integer>-?\d+(?![\w.]))"
    r"|(?P<value>%[\w$.-]+(?:#\d+)?)"
    r'|(?P<symbol>@(?:[\w$.-]+|"(?:[^"\\\n]|\\.)*"))'
    r"|(?P<alias>#[\w.]+)"
    r"|(?P<label>\^\w+)"
    r"|(?P<word>[A-Za-z_][\w$.]*)"
    r"|(?P<mark>->|\{-#|#-\}|[][{}()<>:,=?!*+-])"
)
_WHOLE_TYPE = re.compile(r"\w*(?:<[^<>\n]*>)?")


@dataclass(slots=True)
class AttributeReader:
    """Reads a text from `at` on. depth: of the attributes and regions around it."""

    text: str
    at: int = 0
    depth: int = 0

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
            case "bits":
                return self._typed(self._float_of_bits(found), "f")
            case "symbol":
                return SymbolRef(self._unquoted(found) if text[1] == '"' else text[1:])
            case _:
                return self._by_word(found)

    def _by_word(self, found: re.Match[str]) -> Any:
        """Reads the attribute whose first token, a keyword or a bracket, is `found`; any other token begins a type."""
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
            case "dense":
                return self._dense()
            case "(":
                return self._function_type(found.start())
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
            if type_.kind not in ("scalar", "other") or not re.match(rf"[su]?{kind}\d", type_.element):
                self.fail(f"{type_} is no type of {value}", at)
        return value

    def _float_of_bits(self, found: re.Match[str]) -> float:
        """Returns a float that is written as its bits, as MLIR does with those that are not finite."""
        size = (len(found[0]) - 2) // 2
        if size not in (4, 8):
            self.fail(f"{found[0]} has not the bits of f32 or f64", found.start())
        return float(np.array(int(found[0], 16), f"<u{size}").view(f"<f{size}"))

    def _function_type(self, start: int) -> MlirType:
        self.sequence(")", self.type)
        self.expect("->")
        if self.take("("):
            self.sequence(")", self.type)
        else:
            self.type()
        return MlirType("other", (), self.text[start : self.at])

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

    def _dense(self) -> TensorValue:
        """Reads the values of a tensor: their bytes as hexadecimal digits, nested lists, or one value for all."""
        self.expect("<")
        start, content, values = self.at, None, None
        if self.peek('"'):
            content = self._hexadecimal()
        elif not self.peek(">"):
            values = self.attribute()
        self.expect(">")
        self.expect(":")
        shape, element = tensor_shape(self.type())
        if shape is None:
            self.fail("dense<...> has no tensor of a known shape", start)
        try:
            if values is not None or content is None:
                content = np.array([] if values is None else values, element_dtype(element)).tobytes()
                wrong = values is not None and is_list(values) and np.shape(values) != shape
            else:
                wrong = False
            count, size = int(np.prod(shape, dtype=object)), element_dtype(element).itemsize
        except (ValueError, TypeError, OverflowError) as e:
            self.fail(f"dense<...>: {e}", start)
        if len(content) == size and count <= MOST_EQUAL:
            content *= count
        if wrong or len(content) != count * size:
            self.fail(f"dense<...>: values do not fill {count} elements of {element}", start)
        return TensorValue(shape, element, content)

    def _hexadecimal(self) -> bytes:
        """Reads a string of bytes as hexadecimal digits, which may be too long for a regular expression."""
        self.expect('"0x')
        end = self.text.find('"', self.at)
        try:
            content = bytes.fromhex(self.text[self.at : max(end, self.at)])
        except ValueError:
            self.fail("a string of hexadecimal digits is wrong")
        self.at = end + 1
        return content

    def type(self) -> MlirType:
        self.skip()
        start = self.at
        end = _WHOLE_TYPE.match(self.text, start)
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
