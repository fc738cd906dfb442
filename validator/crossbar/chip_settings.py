"""Settings of a chip by name, as users write them: `adc_bits=8`. They override the device file."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args

from raptor.common.errors import UserError
from raptor.target.arch import Target
from raptor.target.cell_models import (
    ENCODINGS,
    INPUT_CODINGS,
    MOST_ADC_BITS,
    Adc,
    AdcRange,
    AdcScope,
    CellModel,
    ConductanceSpread,
    IdleCells,
    ReadOut,
    SliceLevels,
)
from raptor.target.device_file import DeviceFile
from validator.crossbar.chip_parameters import ChipSetup, Compensation

_BITS = tuple(map(str, range(1, 9)))
_IDEAL = CellModel(off=0.0, on=1.0)


@dataclass(frozen=True, slots=True)
class ChipSetting:
    """A setting: its meaning, and a function that applies a value to a setup.

    `values`: allowed texts; if empty, a number is expected. `low`, `high`: its range. `whole`: it has no fraction.
    """

    meaning: str
    apply: Callable[[ChipSetup, Any], ChipSetup]
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = math.inf
    whole: bool = False

    def parse(self, name: str, text: str) -> Any:
        """Returns the value of a text. Raises `UserError` for a text that is not allowed."""
        if self.values:
            if text not in self.values:
                raise UserError(f"{name}={text}: expected one of {', '.join(self.values)}")
            return text
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            raise UserError(f"{name}={text}: expected a {'whole ' if self.whole else ''}number") from None
        if not self.low <= value <= self.high or math.isinf(value):
            most = f"{self.high:g}" if math.isfinite(self.high) else "any finite number"
            raise UserError(f"{name}={text}: expected {self.low:g} to {most}")
        return value


def _field(name: str, change: Callable[[Any], Any] = lambda value: value) -> Callable[[ChipSetup, Any], ChipSetup]:
    return lambda setup, value: replace(setup, **{name: change(value)})


def _adc(name: str) -> Callable[[ChipSetup, Any], ChipSetup]:
    def apply(setup: ChipSetup, value: Any) -> ChipSetup:
        if setup.adc is None and name != "bits":
            raise UserError(f"adc_{name}={value}: converters are ideal; say adc_bits, or take a device file that does")
        base = setup.adc or Adc(bits=1)
        return replace(setup, adc=base.model_copy(update={name: value}))

    return apply


def _cells(change: Callable[[CellModel, Any], Mapping[str, Any]]) -> Callable[[ChipSetup, Any], ChipSetup]:
    def apply(setup: ChipSetup, value: Any) -> ChipSetup:
        cells = setup.cells or _IDEAL
        return replace(setup, cells=cells.model_copy(update=dict(change(cells, value))))

    return apply


def _constant(cells: CellModel, share: float) -> ConductanceSpread:
    """Returns a spread that is a constant share of the range of conductances."""
    return ConductanceSpread(polynomial=(share * (cells.on - cells.off),))


def _wires(cells: CellModel, ohm: float) -> Mapping[str, Any]:
    if cells is _IDEAL or cells.unit != "uS":
        raise UserError(f"wire_ohm={ohm:g}: needs a device file with conductances in uS")
    return {"wire_ohm": ohm}


CHIP_SETTINGS: dict[str, ChipSetting] = {
    "encoding": ChipSetting("weights as levels of cells", _field("encoding"), ENCODINGS),
    "levels": ChipSetting("range of a slice with fewer bits than a cell", _field("levels"), get_args(SliceLevels)),
    "inputs": ChipSetting("signed inputs as steps", _field("inputs"), INPUT_CODINGS),
    "cell_bits": ChipSetting("bits of a cell", _field("cell_bits", int), _BITS),
    "dac_bits": ChipSetting("bits of a step of the input", _field("dac_bits", int), _BITS),
    "rows_at_once": ChipSetting("rows driven at the same time", _field("rows_at_once"), low=1, high=2**20, whole=True),
    "lossless_rows": ChipSetting(
        "drive fewer rows at once in layers whose converters lose something",
        _field("lossless_rows", "yes".__eq__),
        ("yes", "no"),
    ),
    "adc_bits": ChipSetting("bits of a converter", _adc("bits"), low=1, high=MOST_ADC_BITS, whole=True),
    "adc_range": ChipSetting("what the codes reach over", _adc("range"), get_args(AdcRange)),
    "adc_scope": ChipSetting("what shares a calibrated range", _adc("scope"), get_args(AdcScope)),
    "adc_noise": ChipSetting("standard deviation of a conversion, in its steps", _adc("noise_lsb")),
    "programming_noise": ChipSetting(
        "standard deviation of a written cell, share of the range of conductances",
        _cells(lambda cells, share: {"programming": (_constant(cells, share),)}),
    ),
    "read_noise": ChipSetting(
        "standard deviation of a read of a cell, share of the range of conductances",
        _cells(lambda cells, share: {"read": _constant(cells, share), "flicker": None}),
    ),
    "stuck_off": ChipSetting("share of cells stuck at off", _cells(lambda _, share: {"stuck_off": share}), high=1),
    "stuck_on": ChipSetting("share of cells stuck at on", _cells(lambda _, share: {"stuck_on": share}), high=1),
    "wire_ohm": ChipSetting("resistance of the wire between two cells", _cells(_wires)),
    "idle": ChipSetting("cells of weights that are 0", _cells(lambda _, idle: {"idle": idle}), get_args(IdleCells)),
    "seconds": ChipSetting("time since programming", _field("seconds")),
    "compensation": ChipSetting("what shares a factor against drift", _field("compensation"), get_args(Compensation)),
    "cut_weights": ChipSetting(
        "largest weight that is stored, share of the largest of its matrix", _field("cut"), low=0.01, high=1
    ),
    "seed": ChipSetting("seed of the chip", _field("seed"), high=2**62, whole=True),
}
"""Settings by name, in the order in which they are applied."""


def make_setup(
    kind: Literal["sliced", "noisy"], target: Target, device: DeviceFile | None, given: Mapping[str, str]
) -> ChipSetup:
    """Returns the setup of a chip: settings, else the device file, else the architecture file, else ideal."""
    converters, read_out = target.core.xbar.converters, device.read_out if device else ReadOut()
    setup = ChipSetup(
        kind=kind,
        encoding=read_out.encoding,
        inputs=read_out.inputs,
        levels=read_out.levels,
        cell_bits=read_out.cell_bits or min(target.cell_bits, 8),
        dac_bits=read_out.dac_bits or min(converters.dac_bits, 8),
        rows_at_once=read_out.rows_at_once or target.rows_at_once,
        xbar=(target.xbar_rows, target.xbar_cols),
        adc=read_out.adc,
        cells=device.cells if device else None,
    )
    return apply_settings(setup, given)


def apply_settings(setup: ChipSetup, given: Mapping[str, str]) -> ChipSetup:
    """Returns a setup with changed settings. Raises `UserError` for settings that are invalid or have no effect."""
    _check_names(given)
    for name in (name for name in CHIP_SETTINGS if name in given):
        if setup.kind == "sliced" and name in _NOISES:
            raise UserError(f"{name}={given[name]}: a sliced crossbar has no noise; take --crossbar noisy")
        setup = CHIP_SETTINGS[name].apply(setup, CHIP_SETTINGS[name].parse(name, given[name]))
    if setup.is_signed and setup.adc is not None and setup.adc.bits < 2:
        raise UserError(f"adc_bits={setup.adc.bits}: converters of differences need at least 2 bits, one is the sign")
    if setup.cells is not None and setup.cells.idle == "unformed" and not setup.is_signed and setup.kind == "noisy":
        raise UserError(
            f"idle=unformed: encoding {setup.encoding} has no pairs of cells that cancel out; take "
            "encoding=differential_analog, or idle=programmed"
        )
    return setup


def parse_settings(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Splits texts NAME=VALUE. Raises `UserError` for other texts, unknown names and repeated names."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{option} {text}: expected NAME=VALUE, such as adc_bits=8")
        if name in found:
            raise UserError(f"{option} {text}: {name} is given twice")
        found[name] = value
    _check_names(found)
    return found


def check_setting(name: str, text: str) -> None:
    """Raises `UserError` for an unknown setting, and for a value that the setting cannot have."""
    _check_names({name: text})
    CHIP_SETTINGS[name].parse(name, text)


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in CHIP_SETTINGS:
            close = get_close_matches(name, CHIP_SETTINGS, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(CHIP_SETTINGS)}"
            raise UserError(f"{name}: no setting of a crossbar{hint}")


_NOISES = frozenset(CHIP_SETTINGS) - {
    *("encoding", "levels", "inputs", "cell_bits", "dac_bits", "rows_at_once", "lossless_rows"),
    *("adc_bits", "adc_range", "adc_scope", "cut_weights"),
}
"""Settings that have no effect on a sliced crossbar."""
