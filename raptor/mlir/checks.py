"""Checks that the readers of all dialects share: of a module's header, of operations, and of their parameters."""

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from raptor.common.mlir.reader import RESOURCES, MlirOp
from raptor.common.mlir.syntax import MlirError, MlirType
from raptor.mlir.dialect import OpSpec, find_spec
from raptor.mlir.pim_writer import VERSION
from raptor.mlir.records import RecordDecoder, element_of
from raptor.spatial.operations import ChannelPiece, Gather
from raptor.target.chip_elements import ElementType

MOST_ELEMENTS = 2**26
"""Most elements of a buffer, and entries of the table of a window, that are read."""
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions of computing a property of an operation with wrong parameters."""


def check_header(module: MlirOp, dialect: str) -> tuple[str, str, bool]:
    """Returns the pass, the digest, and whether floats are those that the target models. Raises `MlirError`."""
    if any(op.name == "func.func" for op in module.regions[0]):
        raise MlirError(module.position, "is no program; a model of the dialect onnx is compiled as an ONNX file is")
    if RESOURCES in module.attributes:
        raise MlirError(module.position, "values of resources are not read: weights come from the model")

    def get(name: str, kind: type) -> Any:
        value = module.attributes.get(f"{dialect}.{name}")
        if not isinstance(value, kind):
            raise MlirError(module.position, f"the module does not say {dialect}.{name}: it is no module of RAPTOR")
        return value

    version = get("version", int)
    if version != VERSION:
        raise MlirError(module.position, f"version {version} of the dialect: this RAPTOR reads version {VERSION}")
    floats = get("floats", str)
    if floats not in ("modelled", "float32"):
        raise MlirError(module.position, f"{dialect}.floats is {floats!r}: expected modelled or float32")
    return get("pass", str), get("source", str), floats == "modelled"


def check_op(op: MlirOp, checked: set[tuple[Any, ...]]) -> None:
    """Checks an operation with the table of its dialect. checked: what was found right before."""
    name, results, operands, attributes, given, made, _, position, regions = op
    shape, key = (name, len(results), len(made), len(operands), len(given), len(regions)), (name, id(attributes))
    known = shape in checked  # nearly all operations have a shape that was checked before, and many their attributes
    if known and key in checked:
        return
    spec = find_spec(name)
    if spec is None:
        raise MlirError(position, f"{name}: no such operation")
    fault = spec.fault(attributes) or (None if known else _shape_fault(op, spec))
    if fault is not None:
        raise MlirError(position, fault)
    checked.add(key)
    checked.add(shape)


def _shape_fault(op: MlirOp, spec: OpSpec) -> str | None:
    """Returns which number of results, operands or regions is wrong; None if none is."""
    count = len(op.operands)
    if len(op.results) != len(op.result_types) or not spec.accepts(spec.results, len(op.results)):
        return f"{op.name} has {len(op.results)} results instead of {spec.results}"
    if count != len(op.operand_types):
        return f"{op.name} has {count} operands, but {len(op.operand_types)} types of them"
    if not spec.accepts(spec.operands, count):
        return f"{op.name} has {count} operands"
    if len(op.regions) != spec.region:
        return f"{op.name} has {len(op.regions)} regions instead of {int(spec.region)}"
    return None


def check_symbol(op: MlirOp, *names: Container[str]) -> str:
    """Returns the symbol that an operation defines. names: those that are known. Raises `MlirError` for one of them."""
    name: str = op.attributes["sym_name"]
    if any(name in known for known in names):
        raise MlirError(op.position, f"{op.name}: the symbol {name} is defined twice")
    return name


def read_shape(op: MlirOp, type_: Any, kind: str, *, modelled: bool) -> tuple[int, int, int, ElementType]:
    """Returns rows, width, channels and element type of a memref or tensor, as `kind` says. Raises `MlirError`."""
    if not isinstance(type_, MlirType) or type_.kind != kind or len(type_.shape) != 3:
        raise MlirError(op.position, f"{op.name}: {type_} is no {kind} of rows x width x channels")
    rows, width, channels = type_.shape
    if not 0 < rows * width * channels <= MOST_ELEMENTS:
        raise MlirError(op.position, f"{op.name}: {type_} has no element, or more than {MOST_ELEMENTS}")
    return rows, width, channels, read_element(op, type_.element, modelled=modelled)


def read_element(op: MlirOp, name: str, *, modelled: bool) -> ElementType:
    """Returns the element type of a name. Raises `MlirError` for other types."""
    try:
        return element_of(name, modelled=modelled)
    except ValueError as e:
        raise MlirError(op.position, f"{op.name}: {e}") from None


def find_node(op: MlirOp) -> str:
    """Returns the ONNX node of an operation, which its location names."""
    if op.location is None:
        hint = "mlir-opt keeps them with --mlir-print-debuginfo"
        raise MlirError(op.position, f'{op.name}: no ONNX node as location, loc("NODE"); {hint}')
    return op.location


def decode_operation(known: tuple[type[Any], str | None], parameters: Any, slots: Sequence[Any], modelled: bool) -> Any:
    """Returns an operation on slots. known: its class, and its function if it has several. Raises `ValueError`."""
    kind, function = known
    decoder = RecordDecoder(modelled, slots)
    if kind is Gather:
        return _gather(decoder, parameters)
    given = decoder.fields(parameters, kind, without="function" if function else "")
    return kind(**given, **({"function": function} if function else {}))


def _gather(decoder: RecordDecoder, parameters: Any) -> Gather[Any]:
    """Returns a `Gather`, whose pieces are rows (slot, source, target, channels)."""
    if not isinstance(parameters, dict) or parameters.keys() != {"result", "pieces"}:
        raise ValueError("a gather has the fields result and pieces")
    pieces = decoder.decode(parameters["pieces"], np.ndarray[Any, np.dtype[np.int64]])
    if pieces.ndim != 2 or pieces.shape[1] != 4:
        raise ValueError("pieces: rows of four numbers expected")
    result = decoder.slot(parameters["result"])
    return Gather(result, tuple(ChannelPiece(decoder.slot(slot), *rest) for slot, *rest in pieces.tolist()))


def check_window(window: Any) -> None:
    """Raises `ValueError` for a window whose table is too large to make, or has dimensions that do not match."""
    if window is None:
        return
    if hasattr(window, "kernel"):
        sizes = window.in_dims, window.out_dims, window.kernel, window.strides, window.pads, window.dilations
        if len({len(each) for each in sizes}) != 1 or min(map(min, (*sizes[:4], sizes[5], (window.batch,)))) < 1:
            raise ValueError("window: sizes of one length, and from 1 on, are expected")
        if not 0 < window.in_pixels <= MOST_ELEMENTS:
            raise ValueError(f"window: more than {MOST_ELEMENTS} input pixels")
    if not 0 < window.out_pixels * window.tap_count <= MOST_ELEMENTS:
        raise ValueError(f"window: no entry, or more than {MOST_ELEMENTS}")
