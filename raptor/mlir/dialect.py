"""The dialects of RAPTOR as one table: the reader checks with it, and it generates xDSL dialects, the ODS source, docs.

Names are those of the thesis (listings 4.1 to 4.3) where it has the operation.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from raptor.common.mlir.syntax import MlirType, ResourceHandle, SymbolRef
from raptor.graph.ir import MapFunction
from raptor.pim.operations import Load, LoadRows, Receive, Repeat, Send, Store
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import OneResult, Operation, Pool, Vector


@dataclass(frozen=True, slots=True)
class AttributeKind:
    """A kind of attributes: its class in `raptor.common.mlir.syntax`, its constraint in TableGen, its class in xDSL.

    xdsl: `Attribute` for any.
    """

    python: type
    tablegen: str
    xdsl: str


KINDS: Mapping[str, AttributeKind] = {
    "i64": AttributeKind(int, "I64Attr", "IntegerAttr"),
    "f64": AttributeKind(float, "F64Attr", "FloatAttr"),
    "string": AttributeKind(str, "StrAttr", "StringAttr"),
    "symbol": AttributeKind(SymbolRef, "FlatSymbolRefAttr", "SymbolRefAttr"),
    "i64s": AttributeKind(np.ndarray, "DenseI64ArrayAttr", "DenseArrayBase"),
    "dictionary": AttributeKind(dict, "DictionaryAttr", "DictionaryAttr"),
    "types": AttributeKind(list, "TypeArrayAttr", "ArrayAttr"),
    "list": AttributeKind(list, "ArrayAttr", "ArrayAttr"),
    "type": AttributeKind(MlirType, "TypeAttr", "Attribute"),
    "resource": AttributeKind(ResourceHandle, "ElementsAttr", "DenseResourceAttr"),
}
"""Kinds of attributes by name: `i64s` is `array<i64>`, `types` an array of types, `list` any array."""

Count: TypeAlias = Literal["none", "one", "any"]


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of an operation: its kind, what it says, and whether it may be left out."""

    kind: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OpSpec:
    """An operation of a dialect.

    operands, results: how many it has, `none`, `one` or `any` number.
    symbol: True if `sym_name` is a symbol of the module. region: True for one region. terminator: ends a region.
    parent: the operation in whose region it stands.
    """

    name: str
    meaning: str
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict[str, AttributeSpec])
    operands: Count = "none"
    results: Count = "none"
    symbol: bool = False
    region: bool = False
    terminator: bool = False
    parent: str = "builtin.module"

    @property
    def values(self) -> Literal["memref", "tensor"]:
        """Type of its operands and results."""
        return "memref" if self.name.startswith("pim.") else "tensor"

    @staticmethod
    def accepts(count: Count, number: int) -> bool:
        """True if there may be this number of operands or results."""
        return count == "any" or number == int(count == "one")

    @property
    def class_name(self) -> str:
        """Name of the operation's class in Python and C++: PimApplyLine for pim.apply_line."""
        return "".join(word.capitalize() for word in self.name.replace(".", "_").split("_"))

    def fault(self, attributes: Mapping[str, Any]) -> str | None:
        """Returns what is wrong with the attributes of such an operation; None if nothing is."""
        kinds, required = _expected(self.name)
        for name, value in attributes.items():  # nearly all attributes are right, and there are many
            if type(value) is not kinds.get(name) or (type(value) is np.ndarray and value.dtype.kind != "i"):
                break
        else:
            if required <= attributes.keys():
                return None
        return self._described(attributes)

    def _described(self, attributes: Mapping[str, Any]) -> str | None:
        for name, value in attributes.items():
            spec = self.attributes.get(name)
            if spec is None:
                return f"{self.name} has no attribute {name}"
            if not isinstance(value, KINDS[spec.kind].python) or isinstance(value, bool):
                return f"{self.name}: {name} is no {spec.kind}"
            if spec.kind == "i64s" and value.dtype != np.int64:
                return f"{self.name}: {name} is no array of integers"
        missing = (name for name, spec in self.attributes.items() if not spec.optional and name not in attributes)
        return next((f"{self.name}: {name} is missing" for name in missing), None)


_TRANSFERS = (Load, Store, Send, Receive)
_SPATIAL = (Copy, TakeRows)


def _operation_classes() -> list[type[Operation[Any]]]:
    """Returns all operations of SpatialIR and PimIR by name, so that one that is added needs no entry here."""
    found, left = list[type[Operation[Any]]](), list[type[Operation[Any]]]([Operation])
    while left:
        inner: list[type[Operation[Any]]] = left.pop().__subclasses__()
        left += inner
        found += [kind for kind in inner if kind is not OneResult and kind.__module__.startswith("raptor.")]
    return sorted(found, key=lambda kind: kind.__name__)


@cache
def step_classes() -> Mapping[str, tuple[type[Operation[Any]], str | None]]:
    """Returns the class of each operation of PimIR by its name in the text, and its function, if it has several."""
    found: dict[str, tuple[type[Operation[Any]], str | None]] = {}
    for kind in _operation_classes():
        if kind in (*_TRANSFERS, *_SPATIAL):
            continue
        if kind is Vector:
            found |= {f"v{name}": (Vector, name) for name in get_args(MapFunction)}
        elif kind is Pool:
            found |= {"pool_max": (Pool, "max"), "pool_sum": (Pool, "sum")}
        else:
            words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)
            found[words[1:]] = kind, None
    return found


_TABLE = """\
pim.tensor symbol: a tensor of the ONNX model, which probes observe; its location is the ONNX node that makes it
  sym_name string: symbol
  name string: name in the model
  image dictionary: shape, and axis of the channels
  parts dictionary: [parts, 6]: range of channels, of rows, and of columns or -1, -1
  element type: type of an element on the chip
  coding? dictionary: how elements stand for values of the model
pim.form symbol: parameters that many operations share: an operation on slots, which have shapes
  sym_name string: symbol
  kind string: the operation, such as apply_line
  parameters dictionary: fields of the operation; a value is the number of its slot
  slots types: memref of rows x width x channels of each operand, result, scratch
  weight_bits? i64: bits of a weight; 0: those of the target
pim.core region: the program of a core
  coreId i64: number of the core
  localBytes? i64: bytes of local memory in use, after allocate
pim.group in=pim.core: an array group of the core: crossbars that hold one matrix; numbered in their order
  layer string: key of the layer in the decision
  matrix dictionary: the part of the layer's weights
  weight_bits? i64: bits of a weight; 0: those of the target
  weights resource: handle of the values, which are in the ONNX model
pim.alloc results=one in=pim.core: a buffer in local memory
  name? string: name in messages
  address? i64: byte address, after allocate
pim.load operands=one in=pim.core: loads from global memory
  globalSrc i64: byte address
  span? i64s: first element and number of elements of a part of the buffer
pim.store operands=one in=pim.core: stores in global memory
  globalDst i64: byte address
pim.channel_send operands=one in=pim.core: sends to another core, and waits for its receive
  channel i64: number of the channel, in the order in which all cores meet theirs
  core i64: the other core
  span? i64s: first element and number of elements of a part of the buffer
pim.channel_receive operands=one in=pim.core: receives from another core
  channel i64: number of the channel, in the order in which all cores meet theirs
  core i64: the other core
  span? i64s: first element and number of elements of a part of the buffer
pim.probe operands=one in=pim.core: marks where a part of a tensor can be observed: after the step that writes it
  tensor symbol: the tensor
  part i64: number of its part
pim.state operands=one in=pim.core: marks the buffer of a state: a sample reads it, and then overwrites it for the next
pim.init in=pim.core: ends the steps that run once after power-up; those after it run for each sample
pim.halt terminator in=pim.core: ends the program of a core
pim.* operands=any in=pim.core: an operation with a form
  form symbol: the form: parameters, and shapes of the operands
  shift? i64: number that is added to the matrices of the form
spat.matrices symbol: the matrices of a layer that computes multiply with; their operations name them by their places
  sym_name string: symbol
  layer string: key of the layer in the decision
  matrices list: parts of the layer's weights
spat.form symbol: parameters that many operations share: an operation on slots, which have shapes
  sym_name string: symbol
  kind string: the operation, such as apply_line
  parameters dictionary: fields of the operation; a value is the number of its slot
  slots types: tensor of rows x width x channels of each operand, and of the result
spat.extract_slice results=one: a tile that no compute makes: a part of an input
  name string: name of the tile
spat.constant results=one: a constant operand
  name string: name of the tile
  handle resource: handle of the values, which come from the ONNX model
spat.compute operands=any results=any region: work that fits one core; its operands are the tiles that it reads
  number i64: number in the graph
  op_type string: operator of the ONNX node, which is the location
  layer string: key of the layer in the decision; empty without weights
  matrices? symbol: its matrices
  core i64: core, or before place_cores virtual core
  position f64: place of its rows in the image, from 0 (top) to 1 (bottom)
spat.fetch operands=one: copies a tile to a core before its first use there, after schedule
  number i64: number among the fetches
  core i64: the core that gets the tile
spat.yield operands=any terminator in=spat.compute: names the tiles of a compute that others read
spat.* operands=any results=one in=spat.compute: an operation with a form
  form symbol: the form: parameters, and shapes of the operands
  name string: name of the tile that it makes, or makes a part of
"""
"""Operations with their properties, meaning and attributes. `?`: may be left out. `in`: the operation in whose region
they stand, else a module. `pim.*`, `spat.*`: every operation with a form."""


@cache
def spat_classes() -> Mapping[str, tuple[type[Operation[Any]], str | None]]:
    """Returns the class of each operation of SpatialIR by its name, like `step_classes`."""
    shared = {name: found for name, found in step_classes().items() if found[0] not in (LoadRows, Repeat)}
    return shared | {"copy": (Copy, None), "take_rows": (TakeRows, None)}


@cache
def all_dialects() -> Mapping[str, Mapping[str, OpSpec]]:
    """Returns the operations of each dialect, by name of the dialect."""
    return {"pim": _dialect("pim", step_classes()), "spat": _dialect("spat", spat_classes())}


def _dialect(name: str, classes: Mapping[str, tuple[type[Operation[Any]], str | None]]) -> Mapping[str, OpSpec]:
    listed = {spec.name: spec for spec in _listed() if spec.name.startswith(f"{name}.")}
    common = listed.pop(f"{name}.*")
    for step, (kind, function) in classes.items():
        full = f"{name}.{step}"
        listed[full] = replace(common, name=full, meaning=_summary(kind, function))
    return listed


def _listed() -> Iterator[OpSpec]:
    """Yields the operations of the table."""
    for entry in re.split(r"\n(?! )", _TABLE.rstrip()):
        first, *rest = entry.split("\n")
        head, meaning = first.split(": ", 1)
        name, *words = head.split()
        properties: dict[str, Any] = {key: value or True for key, _, value in (word.partition("=") for word in words)}
        attributes: dict[str, AttributeSpec] = {}
        for line in rest:
            (key, kind), what = line.split(": ", 1)[0].split(), line.split(": ", 1)[1]
            attributes[key.rstrip("?")] = AttributeSpec(kind, what, optional=key.endswith("?"))
        yield OpSpec(name, meaning, attributes, parent=properties.pop("in", "builtin.module"), **properties)


@cache
def _expected(name: str) -> tuple[Mapping[str, type], frozenset[str]]:
    """Returns the Python type of each attribute of an operation, and the names of those that it must have."""
    spec = find_spec(name)
    attributes: Mapping[str, AttributeSpec] = {} if spec is None else spec.attributes
    required = frozenset(each for each, attribute in attributes.items() if not attribute.optional)
    return {each: KINDS[attribute.kind].python for each, attribute in attributes.items()}, required


@cache
def find_spec(name: str) -> OpSpec | None:
    """Returns the operation of a name, such as `pim.load`; None if no dialect has it."""
    return all_dialects().get(name.partition(".")[0], {}).get(name)


def _summary(kind: type, function: str | None) -> str:
    first = (kind.__doc__ or "").split("\n")[0].split(": ")[0].rstrip(".")
    return f"{first[0].lower()}{first[1:]}" + (f": {function}" if function else "")
