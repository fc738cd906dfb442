"""The dialects of RAPTOR as one table: the reader checks with it, and it generates xDSL dialects, the ODS source, docs.

Names are those of the thesis (listings 4.1 to 4.3) where it has the operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from raptor.common.mlir.syntax import MlirType, ResourceHandle, SymbolRef
from raptor.graph.ir import MapFunction
from raptor.pim.operations import Load, LoadRows, Receive, Repeat, Send, Store
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import OneResult, Operation, Pool, Vector

Kind: TypeAlias = Literal["i64", "f64", "string", "symbol", "i64s", "dictionary", "types", "list", "type", "resource"]
"""Kind of an attribute: an integer, a float, a string, a reference, `array<i64>`, a dictionary, an array of types,
an array, a type, or a `dense_resource`."""

_PYTHON: Mapping[Kind, type] = {
    "i64": int,
    "f64": float,
    "string": str,
    "symbol": SymbolRef,
    "i64s": np.ndarray,
    "dictionary": dict,
    "types": list,
    "list": list,
    "type": MlirType,
    "resource": ResourceHandle,
}


Count: TypeAlias = Literal["none", "one", "any"]


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of an operation: its kind, what it says, and whether it may be left out."""

    kind: Kind
    meaning: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class OpSpec:
    """An operation of a dialect.

    operands, results: how many it has, `none`, `one` or `any` number. values: what they are, memrefs or tensors.
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
    parent: str = "pim.core"
    values: Literal["memref", "tensor"] = "memref"

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
            if not isinstance(value, _PYTHON[spec.kind]) or isinstance(value, bool):
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


_SPAN = AttributeSpec("i64s", "first element and number of elements of a part of the buffer", optional=True)
_CHANNEL = {
    "channel": AttributeSpec("i64", "number of the channel, in the order in which all cores meet theirs"),
    "core": AttributeSpec("i64", "the other core"),
    "span": _SPAN,
}
_USE = {
    "form": AttributeSpec("symbol", "the form: parameters, and shapes of the operands"),
    "shift": AttributeSpec("i64", "number that is added to the matrices of the form", optional=True),
}
_NAME = AttributeSpec("string", "symbol")


def _form(dialect: str, slots: str, more: Mapping[str, AttributeSpec]) -> OpSpec:
    """Returns the operation that defines a form in a dialect. slots: what its slots are."""
    attributes = {
        "sym_name": _NAME,
        "kind": AttributeSpec("string", "the operation, such as apply_line"),
        "parameters": AttributeSpec("dictionary", "fields of the operation; a value is the number of its slot"),
        "slots": AttributeSpec("types", slots),
    }
    meaning = "parameters that many operations share: an operation on slots, which have shapes"
    return OpSpec(f"{dialect}.form", meaning, {**attributes, **more}, symbol=True, parent="builtin.module")


_PIM = (
    OpSpec(
        "pim.tensor",
        "a tensor of the ONNX model, which probes observe; its location is the ONNX node that makes it",
        {
            "sym_name": _NAME,
            "name": AttributeSpec("string", "name in the model"),
            "image": AttributeSpec("dictionary", "shape, and axis of the channels"),
            "parts": AttributeSpec("dictionary", "[parts, 6]: range of channels, of rows, and of columns or -1, -1"),
            "element": AttributeSpec("type", "type of an element on the chip"),
            "coding": AttributeSpec("dictionary", "how elements stand for values of the model", optional=True),
        },
        symbol=True,
        parent="builtin.module",
    ),
    _form(
        "pim",
        "memref of rows x width x channels of each operand, result, scratch",
        {"weight_bits": AttributeSpec("i64", "bits of a weight; 0: those of the target", optional=True)},
    ),
    OpSpec(
        "pim.core",
        "the program of a core",
        {
            "coreId": AttributeSpec("i64", "number of the core"),
            "localBytes": AttributeSpec("i64", "bytes of local memory in use, after allocate", optional=True),
        },
        region=True,
        parent="builtin.module",
    ),
    OpSpec(
        "pim.group",
        "an array group of the core: crossbars that hold one matrix; numbered in their order",
        {
            "layer": AttributeSpec("string", "key of the layer in the decision"),
            "matrix": AttributeSpec("dictionary", "the part of the layer's weights"),
            "weight_bits": AttributeSpec("i64", "bits of a weight; 0: those of the target", optional=True),
            "weights": AttributeSpec("resource", "handle of the values, which are in the ONNX model"),
        },
    ),
    OpSpec(
        "pim.alloc",
        "a buffer in local memory",
        {
            "name": AttributeSpec("string", "name in messages", optional=True),
            "address": AttributeSpec("i64", "byte address, after allocate", optional=True),
        },
        results="one",
    ),
    OpSpec(
        "pim.load",
        "loads from global memory",
        {"globalSrc": AttributeSpec("i64", "byte address"), "span": _SPAN},
        "one",
    ),
    OpSpec("pim.store", "stores in global memory", {"globalDst": AttributeSpec("i64", "byte address")}, "one"),
    OpSpec("pim.channel_send", "sends to another core, and waits for its receive", _CHANNEL, "one"),
    OpSpec("pim.channel_receive", "receives from another core", _CHANNEL, "one"),
    OpSpec(
        "pim.probe",
        "marks where a part of a tensor can be observed: after the step that writes it",
        {
            "tensor": AttributeSpec("symbol", "the tensor"),
            "part": AttributeSpec("i64", "number of its part"),
        },
        "one",
    ),
    OpSpec(
        "pim.state",
        "marks the buffer of a state: a sample reads it, and then overwrites it for the next",
        operands="one",
    ),
    OpSpec("pim.init", "ends the steps that run once after power-up; those after it run for each sample"),
    OpSpec("pim.halt", "ends the program of a core", terminator=True),
)


@cache
def pim_dialect() -> Mapping[str, OpSpec]:
    """Returns the operations of the dialect `pim` by name."""
    steps = (
        OpSpec(f"pim.{name}", _summary(kind, function), _USE, "any")
        for name, (kind, function) in step_classes().items()
    )
    return {spec.name: spec for spec in (*_PIM, *steps)}


_SPAT = (
    OpSpec(
        "spat.matrices",
        "the matrices of a layer that computes multiply with; their operations name them by their places",
        {
            "sym_name": _NAME,
            "layer": AttributeSpec("string", "key of the layer in the decision"),
            "matrices": AttributeSpec("list", "parts of the layer's weights"),
        },
        symbol=True,
        parent="builtin.module",
    ),
    _form("spat", "tensor of rows x width x channels of each operand, and of the result", {}),
    OpSpec(
        "spat.extract_slice",
        "a tile that no compute makes: a part of an input",
        {"name": AttributeSpec("string", "name of the tile")},
        results="one",
        parent="builtin.module",
        values="tensor",
    ),
    OpSpec(
        "spat.constant",
        "a constant operand",
        {
            "name": AttributeSpec("string", "name of the tile"),
            "handle": AttributeSpec("resource", "handle of the values, which come from the ONNX model"),
        },
        results="one",
        parent="builtin.module",
        values="tensor",
    ),
    OpSpec(
        "spat.compute",
        "work that fits one core: operations on tiles; operands are the tiles that it reads",
        {
            "number": AttributeSpec("i64", "number in the graph"),
            "op_type": AttributeSpec("string", "operator of the ONNX node, which is the location"),
            "layer": AttributeSpec("string", "key of the layer in the decision; empty without weights"),
            "matrices": AttributeSpec("symbol", "its matrices", optional=True),
            "core": AttributeSpec("i64", "core, or before place_cores virtual core"),
            "position": AttributeSpec("f64", "place of its rows in the image, from 0 (top) to 1 (bottom)"),
        },
        "any",
        "any",
        region=True,
        parent="builtin.module",
        values="tensor",
    ),
    OpSpec(
        "spat.fetch",
        "copies a tile to a core before its first use there, after schedule",
        {
            "number": AttributeSpec("i64", "number among the fetches"),
            "core": AttributeSpec("i64", "the core that gets the tile"),
        },
        "one",
        parent="builtin.module",
        values="tensor",
    ),
    OpSpec(
        "spat.yield",
        "names the tiles of a compute that others read",
        {},
        "any",
        terminator=True,
        parent="spat.compute",
        values="tensor",
    ),
)


@cache
def spat_classes() -> Mapping[str, tuple[type[Operation[Any]], str | None]]:
    """Returns the class of each operation of SpatialIR by its name, like `step_classes`."""
    shared = {name: found for name, found in step_classes().items() if found[0] not in (LoadRows, Repeat)}
    return shared | {"copy": (Copy, None), "take_rows": (TakeRows, None)}


@cache
def spat_dialect() -> Mapping[str, OpSpec]:
    """Returns the operations of the dialect `spat` by name."""
    attributes = {
        "form": AttributeSpec("symbol", "the form: parameters, and shapes of the operands"),
        "name": AttributeSpec("string", "name of the tile that it makes, or makes a part of"),
    }
    steps = (
        OpSpec(
            f"spat.{name}",
            _summary(kind, function),
            attributes,
            "any",
            "one",
            parent="spat.compute",
            values="tensor",
        )
        for name, (kind, function) in spat_classes().items()
    )
    return {spec.name: spec for spec in (*_SPAT, *steps)}


def all_dialects() -> Mapping[str, Mapping[str, OpSpec]]:
    """Returns the operations of each dialect, by name of the dialect."""
    return {"pim": pim_dialect(), "spat": spat_dialect()}


@cache
def _expected(name: str) -> tuple[Mapping[str, type], frozenset[str]]:
    """Returns the Python type of each attribute of an operation, and the names of those that it must have."""
    spec = find_spec(name)
    attributes: Mapping[str, AttributeSpec] = {} if spec is None else spec.attributes
    required = frozenset(each for each, attribute in attributes.items() if not attribute.optional)
    return {each: _PYTHON[attribute.kind] for each, attribute in attributes.items()}, required


@cache
def find_spec(name: str) -> OpSpec | None:
    """Returns the operation of a name, such as `pim.load`; None if no dialect has it."""
    return all_dialects().get(name.partition(".")[0], {}).get(name)


def _summary(kind: type, function: str | None) -> str:
    first = (kind.__doc__ or "").split("\n")[0].split(": ")[0].rstrip(".")
    return f"{first[0].lower()}{first[1:]}" + (f": {function}" if function else "")
