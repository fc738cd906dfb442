"""Values of options: choices, defaults, and parsers that return a typed value or raise `UserError`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from raptor.common.options.arguments import MAX_INTEGER, OneOf, argument_error, parse_dict, parse_integer, parse_path
from raptor.common.options.option_texts import AUTOMATIC

Objective = Literal["latency", "throughput", "energy"]
StreamFormat = Literal["json", "pim", "both"]
DumpFormat = Literal["text", "mlir"]
WeightFormat = Literal["json", "npz"]
IsaName = Literal["extended", "base"]
ConstantsLoad = Literal["reloaded", "resident"]
Requant = Literal["exact", "short", "instruction"]
StrategyName = Literal["rows", "raptor", "pixelwise"]
QuantisationScheme = Literal["s8s8", "u8s8", "pow2"]
CutMethod = Literal["best", "first-fit", "each-layer"]

SearchGoal = Literal["latency", "throughput", "energy", "writes"]

GOAL: OneOf[SearchGoal] = OneOf("optimize", get_args(SearchGoal))
OBJECTIVE: OneOf[Objective] = OneOf("optimize", get_args(Objective))
STREAM_FORMAT: OneOf[StreamFormat] = OneOf("stream_format", get_args(StreamFormat))
DUMP_FORMAT: OneOf[DumpFormat] = OneOf("dump_format", get_args(DumpFormat))
WEIGHT_FORMAT: OneOf[WeightFormat] = OneOf("weight_format", get_args(WeightFormat))
ISA: OneOf[IsaName] = OneOf("isa", get_args(IsaName))
CONSTANTS_LOAD: OneOf[ConstantsLoad] = OneOf("constants_load", get_args(ConstantsLoad))
REQUANT: OneOf[Requant] = OneOf("requant", get_args(Requant))
SCHEME: OneOf[QuantisationScheme] = OneOf("scheme", get_args(QuantisationScheme))
CUTS: OneOf[CutMethod] = OneOf("cuts", get_args(CutMethod))
STRATEGY: OneOf[StrategyName] = OneOf("mapping", get_args(StrategyName))

DEFAULT_STRATEGY: StrategyName = "rows"
"""Default mapping strategy. Its programs run hundreds of times faster than programs by the reference, `raptor`."""

DEFAULT_DEVICE = "reram-puma"
"""Default device preset for the cost of crossbar writes in rounds; each of its values has a source."""

MOST_STAGES = 8
"""Largest number of samples that a chip works on at once."""
SEARCHED_STAGES = 6
"""Largest number of samples at once that a search for throughput tries if no option says how many."""
MAX_BITS = 32
_MOST_LINES = 2**16 - 1
_LONGEST_NAME = 100
_XBAR = "a size such as 128, or 128x256 (rows x columns)"
_SHAPE = "(1, 3, 224, 224)"


def parse_xbar(keyword: str, value: object) -> tuple[int, int]:
    """Parses a crossbar size: `128` (a square), `"128x256"` or `(128, 256)`. Returns rows and columns."""
    sizes = _sizes(keyword, value)
    if sizes is None or not all(0 < size <= _MOST_LINES for size in sizes):
        raise argument_error(keyword, value, _XBAR)
    return sizes[0], sizes[-1]


def _sizes(keyword: str, value: object) -> tuple[int, ...] | None:
    """Parses one or two numbers; returns None for a value of another form."""
    if isinstance(value, str):
        parts = value.lower().split("x")
        valid = len(parts) <= 2 and all(p.isascii() and p.isdigit() and len(p) < 6 for p in parts)
        return tuple(map(int, parts)) if valid else None
    if not isinstance(value, tuple | list):
        return (parse_integer(keyword, value, 1, _MOST_LINES, expected=_XBAR),)
    parts = cast(Sequence[object], value)
    return tuple(parse_integer(keyword, p, 1, _MOST_LINES, expected=_XBAR) for p in parts) if len(parts) == 2 else None


def parse_arch_source(keyword: str, value: object) -> str | Path:
    """Returns the name of a preset, or the path of an architecture file, which need not exist."""
    found = parse_path(keyword, value, expected="a preset, or the path of an architecture file")
    return value if isinstance(value, str) else found


def parse_mapping(keyword: str, value: object) -> str:
    """Returns the name of a strategy, or the path of a stored mapping, which must exist."""
    expected = f"a file, or one of: {', '.join(STRATEGY.choices)}"
    found = parse_path(keyword, value, expected=expected)
    if str(found) not in STRATEGY.choices and not found.is_file():
        raise argument_error(keyword, found, expected)
    return str(found)


def parse_shapes(keyword: str, value: object) -> dict[str, tuple[int, ...]]:
    """Returns shapes by name of the input. The front end checks later that they fit the model."""
    shapes = parse_dict(keyword, value, f"sizes by input, such as {{'input': {_SHAPE}}}")
    return {name: _shape(keyword, name, sizes) for name, sizes in shapes.items()}


def _shape(keyword: str, name: str, sizes: Any) -> tuple[int, ...]:
    expected = f"sizes such as {_SHAPE} for input '{name[:_LONGEST_NAME]}'"
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Sequence):
        raise argument_error(keyword, sizes, expected)
    return tuple(
        parse_integer(keyword, size, -MAX_INTEGER, expected=expected) for size in cast(Sequence[object], sizes)
    )


def parse_dims(keyword: str, value: object) -> dict[str, int]:
    """Returns sizes by name of the symbolic dimension."""
    dims = parse_dict(keyword, value, "sizes by name of the dimension, such as {'height': 224}")
    return {
        key: parse_integer(keyword, size, 1, expected=f"a size for '{key[:_LONGEST_NAME]}'")
        for key, size in dims.items()
    }


def parse_widths(keyword: str, value: object) -> dict[str, int]:
    """Returns the bits of a weight, by name of the layer."""
    layers = parse_dict(keyword, value, "bits by name of the layer, such as {'conv1': 4}")
    return {
        name: parse_integer(keyword, bits, 1, expected=f"bits for '{name[:_LONGEST_NAME]}'")
        for name, bits in layers.items()
    }


def parse_values_by_name(keyword: str, value: object) -> dict[str, Any]:
    """Returns values by name (of an input, a field or a knob). Their user checks them later."""
    return parse_dict(keyword, value, "values by name of the input, such as {'sr': 16000}")


def parse_states(keyword: str, value: object) -> dict[str, str]:
    """Returns the output of the model that is the next value of each input; `AUTOMATIC` for the text "auto"."""
    if isinstance(value, str) and value == "auto":
        return dict(AUTOMATIC)
    expected = "outputs by input, such as {'h0': 'hn'}, or 'auto'"
    found = parse_dict(keyword, value, expected)
    if not all(isinstance(output, str) for output in found.values()):
        raise argument_error(keyword, value, expected)
    return cast(dict[str, str], found)


def parse_names(keyword: str, value: object) -> tuple[str, ...]:
    """Returns a sequence of names (of nodes or operators) as a tuple."""
    expected = "a sequence of names, such as ('TopK', 'NonMaxSuppression')"
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise argument_error(keyword, value, expected)
    names = tuple(cast(Sequence[object], value))
    for name in names:
        if not isinstance(name, str):
            raise argument_error(keyword, name, expected)
    return cast(tuple[str, ...], names)
