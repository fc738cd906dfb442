"""Registry of back ends (entry points of the group `raptor.devices`), and `raptor.device.open`."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from raptor.common.entry_points import find_entry_points, load_entry_point
from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import argument_error, parse_flag, parse_optional_integer
from raptor.common.options.option_values import parse_xbar
from raptor.device.back_end import BackEnd, DeviceInfo
from raptor.device.device import Device
from raptor.device.errors import DeviceError
from raptor.device.usage_statistics import OperationCosts
from raptor.target import arch as architectures
from raptor.target.arch import Target
from raptor.target.device_file import load_device

BACKEND_GROUP = "raptor.devices"
DEFAULT_COSTS = "reram-puma"
"""Default device file for modelled costs."""
DEFAULT_CROSSBARS = 64
ANALOG = "analog"
"""The back end whose results also depend on the device file."""
BackEndFactory = Callable[..., BackEnd]
"""Function that makes a back end from the requested properties (a `DeviceInfo`) and its own options."""


def open(
    back_end: str = "numpy",
    *,
    xbar: int | tuple[int, int] | str | None = None,
    crossbars: int | None = None,
    device: str | Path = DEFAULT_COSTS,
    arch: str | Path | None = None,
    refuse_worn: bool = False,
    **options: Any,
) -> Device:
    """Opens a device.

    `back_end` is `numpy` (float32), `integer`, `analog` (with the slices, converters and errors of `device`), `socket`
    (a driver in another process), or the name of an entry point of the group `raptor.devices`. An address may follow a
    colon: `socket:/run/board/socket`.

    `xbar` is rows and columns of weights of a crossbar (one number for a square), and `crossbars` their number. A
    hardware driver knows both; then they must equal its values.

    Modelled costs: `device` is a device file or preset (`reram-puma`, `reram-verify`, `pcm-occ`, `sram`), and `arch` an
    architecture file or preset, which gives the time of a product if the device file does not. With `refuse_worn`, a
    write beyond the endurance raises `WornError`.

    `options` are passed to the back end. Raises `UserError` for bad arguments, and `DeviceError` if there is no device.
    """
    name, _, address = _text("back_end", back_end).partition(":")
    if address:
        options["address"] = address
    file, chip = load_device(device), architectures.load(arch)
    size = None if xbar is None else parse_xbar("xbar", xbar)
    wished = _wished(name, chip, size, parse_optional_integer("crossbars", crossbars, 1, 2**20))
    if name == ANALOG:
        options = {"device_file": file, "arch": chip, **options}
    made = _make(name, wished, options)
    _check(made.info, size, crossbars)
    costs = OperationCosts(file, _target(arch, made.info), made.info.cells_per_weight)
    return Device(made, costs, refuse_worn=parse_flag("refuse_worn", refuse_worn))


def back_ends() -> Mapping[str, BackEndFactory]:
    """Returns the factories of all back ends by name: RAPTOR's own, and entry points of installed packages."""
    from raptor.device.backends.ideal_crossbars import IntegerCrossbars, NumpyCrossbars
    from raptor.device.backends.socket_client import open_socket

    ours: dict[str, BackEndFactory] = {"numpy": NumpyCrossbars, "integer": IntegerCrossbars}
    ours |= {ANALOG: _analog, "socket": open_socket}
    return {name: _late(point) for name, point in find_entry_points(BACKEND_GROUP).items()} | ours


def _late(point: EntryPoint) -> BackEndFactory:
    return lambda *args, **options: load_entry_point("back end", point, DeviceError)(*args, **options)


def _analog(*args: Any, **options: Any) -> BackEnd:
    from raptor.device.backends.analog_crossbars import AnalogCrossbars  # it imports numba

    return AnalogCrossbars(*args, **options)


def _make(name: str, wished: DeviceInfo, options: Mapping[str, Any]) -> BackEnd:
    known = back_ends()
    if name not in known:
        raise UserError(f"{spell_option('back_end', name)}: expected one of: {', '.join(known)}")
    try:
        return known[name](wished, **options)
    except TypeError as e:
        raise UserError(f"back end {name!r}: {e}") from e


def _wished(name: str, chip: Target, xbar: tuple[int, int] | None, crossbars: int | None) -> DeviceInfo:
    """Returns the requested properties, with defaults from the architecture."""
    from raptor import __version__

    return DeviceInfo(
        back_end=name,
        version=__version__,
        xbar=xbar or (chip.xbar_rows, max(1, chip.outputs_per_xbar)),
        crossbars=crossbars or DEFAULT_CROSSBARS,
        dtype="int8" if name in ("integer", ANALOG) else "float32",
        weight_bits=8,
        cell_bits=min(8, chip.cell_bits),
    )


def _check(info: DeviceInfo, xbar: tuple[int, int] | None, crossbars: int | None) -> None:
    if xbar is not None and xbar != tuple(info.xbar):
        raise DeviceError(
            f"{spell_option('xbar')}: {xbar}, but the crossbars of {info.back_end} are {tuple(info.xbar)}"
        )
    if crossbars is not None and crossbars != info.crossbars:
        raise DeviceError(f"{spell_option('crossbars', crossbars)}: {info.back_end} has {info.crossbars}")


def _target(arch: str | Path | None, info: DeviceInfo) -> Target:
    """Returns the architecture with crossbars of the device's size in cells."""
    rows, cols = info.xbar
    return architectures.load(arch, xbar=(rows, cols * info.cells_per_weight), cell_bits=info.cell_bits)


def _text(keyword: str, value: object) -> str:
    if not isinstance(value, str):
        raise argument_error(keyword, value, "the name of a back end")
    return value
