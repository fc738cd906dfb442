"""Options of the compiler with their choices and ranges; shared by the command line and the Python API."""

from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from raptor.common.arguments import (
    MOST,
    OneOf,
    by_name,
    fault,
    path,
    whole,
)

Objective = Literal["latency", "throughput", "energy"]
StreamFormat = Literal["json", "pim", "both"]
WeightFormat = Literal["json", "npz"]
Isa = Literal["extended", "base"]
Requant = Literal["exact", "short", "instruction"]
Strategy = Literal["rows", "raptor", "pixelwise"]
Scheme = Literal["s8s8", "u8s8", "pow2"]
Cuts = Literal["best", "first-fit", "each-layer"]

Goal = Literal["latency", "throughput", "energy", "writes"]

GOAL: OneOf[Goal] = OneOf("optimize", get_args(Goal))
OBJECTIVE: OneOf[Objective] = OneOf("optimize", get_args(Objective))
STREAM_FORMAT: OneOf[StreamFormat] = OneOf("stream_format", get_args(StreamFormat))
WEIGHT_FORMAT: OneOf[WeightFormat] = OneOf("weight_format", get_args(WeightFormat))
ISA: OneOf[Isa] = OneOf("isa", get_args(Isa))
REQUANT: OneOf[Requant] = OneOf("requant", get_args(Requant))
SCHEME: OneOf[Scheme] = OneOf("scheme", get_args(Scheme))
CUTS: OneOf[Cuts] = OneOf("cuts", get_args(Cuts))
STRATEGY: OneOf[Strategy] = OneOf("mapping", get_args(Strategy))

DEFAULT_STRATEGY: Strategy = "rows"
"""Default mapping strategy, whose programs run hundreds of times faster than those of the reference, `raptor`."""

DEFAULT_DEVICE = "reram-puma"
"""Default device preset for crossbar writes of rounds; all its values name their source."""

MOST_BITS = 32
_MOST_LINES = 2**16 - 1
_LONGEST_NAME = 100
_XBAR = "a size such as 128, or 128x256 (rows x columns)"
_SHAPE = "(1, 3, 224, 224)"


def parse_xbar(value: object) -> tuple[int, int] | None:
    """Returns rows and columns of a crossbar from `128`, `"128x256"` or `(128, 256)`; one number stands for both."""
    if value is None:
        return None
    sizes = _sizes(value)
    if sizes is None or not all(0 < size <= _MOST_LINES for size in sizes):
        raise fault("xbar", value, _XBAR)
    return sizes[0], sizes[-1]


def _sizes(value: object) -> tuple[int, ...] | None:
    """Returns one or two numbers; None for a value of another form."""
    if isinstance(value, str):
        parts = value.lower().split("x")
        valid = len(parts) <= 2 and all(p.isascii() and p.isdigit() and len(p) < 6 for p in parts)
        return tuple(map(int, parts)) if valid else None
    if not isinstance(value, tuple | list):
        return (whole("xbar", value, 1, _MOST_LINES, expected=_XBAR),)
    parts = cast(Sequence[object], value)
    return tuple(whole("xbar", p, 1, _MOST_LINES, expected=_XBAR) for p in parts) if len(parts) == 2 else None


def parse_mapping(value: object) -> str:
    """Returns the name of a strategy, or the path of a stored mapping."""
    expected = f"a file, or one of: {', '.join(STRATEGY.names)}"
    mapping = path("mapping", value, expected=expected)
    if str(mapping) not in STRATEGY.names and not mapping.is_file():
        raise fault("mapping", mapping, expected)
    return str(mapping)


def parse_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Returns shapes by name of the input. The front end checks whether they fit the model."""
    shapes = {} if value is None else by_name("shapes", value, f"sizes by input, such as {{'input': {_SHAPE}}}")
    return {name: _shape(name, sizes) for name, sizes in shapes.items()}


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    expected = f"sizes such as {_SHAPE} for input '{name[:_LONGEST_NAME]}'"
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Sequence):
        raise fault("shapes", sizes, expected)
    return tuple(whole("shapes", size, -MOST, expected=expected) for size in cast(Sequence[object], sizes))


def parse_dims(value: object) -> dict[str, int]:
    """Returns sizes by name of the dimension."""
    dims = {} if value is None else by_name("dims", value, "sizes by name of the dimension, such as {'height': 224}")
    return {key: whole("dims", size, 1, expected=f"a size for '{key[:_LONGEST_NAME]}'") for key, size in dims.items()}


def parse_widths(value: object) -> dict[str, int]:
    """Returns bits of weights by name of the layer."""
    layers = {} if value is None else by_name("layers", value, "bits by name of the layer, such as {'conv1': 4}")
    return {
        name: whole("layers", bits, 1, expected=f"bits for '{name[:_LONGEST_NAME]}'") for name, bits in layers.items()
    }


def parse_named(keyword: str, value: object) -> dict[str, Any]:
    """Returns values by name of the input. The front end checks whether they fit the model."""
    return {} if value is None else by_name(keyword, value, "values by name of the input, such as {'sr': 16000}")


def parse_names(keyword: str, value: object) -> tuple[str, ...]:
    """Returns a sequence of names, such as names of nodes, as a tuple."""
    expected = "a sequence of names, such as ('TopK', 'NonMaxSuppression')"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise fault(keyword, value, expected)
    names = tuple(cast(Sequence[object], value))
    for name in names:
        if not isinstance(name, str):
            raise fault(keyword, name, expected)
    return cast(tuple[str, ...], names)
