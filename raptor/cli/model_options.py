"""Options about the model and the crossbar, shared by `compile` and `inspect`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from raptor.cli import completion
from raptor.common.errors import UserError
from raptor.common.options import ISA

T = TypeVar("T")

Model = Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)]
Xbar = Annotated[
    str | None,
    typer.Option(metavar="N|RxC", help="Crossbar size: 128, or 128x256 (rows x columns).", show_default="128x128"),
]
XbarsPerCore = Annotated[int | None, typer.Option(min=1, help="Crossbars of a core.", show_default="64")]
Bits = Annotated[int, typer.Option(min=1, max=32, help="Bits of an activation and of a weight.")]
CellBits = Annotated[int | None, typer.Option(min=1, help="Bits of a crossbar cell.", show_default="8")]
Arch = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PRESET",
        help="Architecture file of pimsim-nn, or preset.",
        show_default="bench",
        autocompletion=completion.presets,
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZES", help="Shape of an input, such as input=1,3,224,224. Repeatable."),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZE", help="Size of all dimensions of that name, such as height=224. Repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Makes an input a constant: sr=16000, flag=true, scale=1.5,2. Repeatable.",
    ),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Field of the architecture: rob_size=4, matrix_config.adc_count=16. Repeatable."
    ),
]
Knob = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="Number of the mapping rows: share=0.75, products=2. Repeatable."),
]
InstructionSet = Annotated[
    str,
    typer.Option(
        "--isa",
        metavar="extended|base",
        help=f"{ISA}; base: only instructions that pimsim-nn runs.",
        autocompletion=completion.isas,
    ),
]
Host = Annotated[bool, typer.Option("--host", help="Run on the host what the chip cannot compute, in onnxruntime.")]
HostOps = Annotated[
    list[str] | None, typer.Option(metavar="OP,...", help="Operators that run on the host. Repeatable.")
]
HostNodes = Annotated[
    list[str] | None, typer.Option(metavar="NAME,...", help="Nodes that run on the host. Repeatable.")
]


def read_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns names that are separated by commas."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def read_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Parses `input=1,3,224,224`: the name of an input and its sizes."""
    return _by_name("--shape", map(_parse_shape, texts))


def read_dims(texts: Iterable[str]) -> dict[str, int]:
    """Parses `height=224`: the name of dimensions and their size."""
    return _by_name("--dim", map(_parse_dim, texts))


def read_constants(texts: Iterable[str]) -> dict[str, str]:
    """Parses `sr=16000`: the name of an input and its value, a text until the type of the input is known."""
    return _by_name("--set", map(_parse_constant, texts))


def read_fields(texts: Iterable[str]) -> dict[str, Any]:
    """Parses `rob_size=4`: the name of a field of the architecture and its value, as JSON writes it."""
    return _by_name("--field", map(_parse_field, texts))


def read_widths(texts: Iterable[str]) -> dict[str, int]:
    """Parses `conv1=4`: the name of a layer and the bits of its weights."""
    return _by_name("--layer", map(_parse_width, texts))


def read_knobs(texts: Iterable[str]) -> dict[str, float]:
    """Parses `share=0.75`: the name of a number of the mapping and its value."""
    return _by_name("--knob", map(_parse_knob, texts))


def read_budget(text: str) -> dict[str, float]:
    """Parses `latency=0.7`: a goal and a share of it."""
    name, _, value = text.partition("=")
    try:
        return {name: float(value)}
    except ValueError:
        raise UserError(f"--budget {text}: expected GOAL=SHARE, such as latency=0.7") from None


def _by_name(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise UserError(f"{option} {name}: given twice")
        found[name] = value
    return found


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    sizes = dims.split(",")
    if not name or not all(map(_is_size, sizes)):
        raise UserError(f"--shape {text}: expected NAME=SIZES, such as input=1,3,224,224")
    return name, tuple(int(s) for s in sizes)


def _parse_dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not _is_size(size):
        raise UserError(f"--dim {text}: expected NAME=SIZE, such as height=224")
    return name, int(size)


def _parse_constant(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(f"--set {text}: expected NAME=VALUE, such as sr=16000")
    return name, value


_LITERALS = ("true", "false", "null")


def _parse_field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        if name:
            return name, value if value.isalpha() and value not in _LITERALS else json.loads(value)
    except (json.JSONDecodeError, RecursionError):
        pass
    raise UserError(
        f"--field {text}: expected NAME=VALUE, such as rob_size=4, xbar_size=[128,128] or pipeline_mode=true"
    )


def _parse_knob(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        if name:
            return name, float(value)
    except ValueError:
        pass
    raise UserError(f"--knob {text}: expected NAME=NUMBER, such as share=0.75")


def _parse_width(text: str) -> tuple[str, int]:
    name, _, bits = text.rpartition("=")
    if not name or not _is_size(bits):
        raise UserError(f"--layer {text}: expected NAME=BITS, such as conv1=4")
    return name, int(bits)


def _is_size(text: str) -> bool:
    """Tells whether a text is a number of at most nine digits; no tensor has more elements."""
    return text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 10
