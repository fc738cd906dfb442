"""Trims an output directory to a simulated chip or to a device, and writes the result as another output directory."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.output import files
from raptor.output.variant_writer import write_variant
from raptor.target.arch import read_stored_target
from raptor.target.cell_models import Adc
from raptor.target.device_file import load_device
from validator.accuracy.labelled_data import LabelledData, read_labelled_data
from validator.accuracy.sample_scores import default_workers
from validator.accuracy.trimming import LayerTrim, trim_program
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.chip_settings import make_setup
from validator.execution.converter_calibration import calibrate_converters
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.program.segment_list import require_one_segment
from validator.program.trim_constants import reset_trim

if TYPE_CHECKING:
    from raptor.device import Device

_CALIBRATION_SAMPLES = 16
"""Samples that set the ranges of calibrated converters of a simulated chip, as `raptor accuracy` takes."""


@dataclass(frozen=True, slots=True, eq=False)
class TrimmedProgram:
    """A program with other gains and biases. `layers`: errors of the sums of each layer, in the order of computation.

    `chip`: what it is trimmed for. `samples`: number of inputs that were used.
    """

    source: Path
    program: LoadedProgram
    layers: tuple[LayerTrim, ...]
    chip: str
    samples: int

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes an output directory that differs from the source in its constants, `trim.json` and manifest.

        `force`: replace an output directory. Raises `UserError` if the folder may not be replaced or written.
        """
        target = arguments.parse_path("folder", folder)
        assert self.program.trim is not None, "it is trimmed"
        table = self.program.trim.model_copy(update={"chip": self.chip, "samples": self.samples})
        constants = io.BytesIO()
        np.save(constants, self.program.constants)
        contents = {files.CONSTANTS: constants.getvalue(), files.TRIM: file_access.model_to_json(table)}
        return write_variant(
            self.source, self.program.manifest, contents, target, force=arguments.parse_flag("force", force)
        )


def trim(
    folder: str | Path,
    *,
    data: str | Path,
    cells: str | Path | None = None,
    chip: int = 0,
    settings: Mapping[str, object] | None = None,
    device: "Device | str | None" = None,
    samples: int | None = None,
) -> TrimmedProgram:
    """Trims the program of an output directory that was compiled with `trimmable`.

    `data`: inputs, as for `raptor accuracy`; labels are not read. `cells`: device file or preset of a simulated chip,
    `chip` its seed, `settings` as for `raptor accuracy --with`. `device`: real crossbars in their place, an open device
    or its name. A program that is repaired for a chip needs neither: its chip is trimmed. `samples`: number of inputs
    to use, by default all. Raises `UserError` for invalid input, and `DeviceError` if a device fails.
    """
    source, file = arguments.parse_path("folder", folder), arguments.parse_path("data", data)
    seed = arguments.parse_integer("chip", chip, 0)
    count = arguments.parse_optional_integer("samples", samples, 1)
    given = arguments.parse_dict(
        "settings", {} if settings is None else settings, "settings by name, such as {'adc_bits': 8}"
    )
    require_one_segment(source, "a trim")
    program = reset_trim(load_output(source))
    read = read_labelled_data(file, program.memory.inputs, count, states=program.state_inputs)
    if cells is None and device is None and program.repair is not None and not given:
        return _trim_on(source, program, read, program.repair.table.chip, default_workers())
    if (cells is None) == (device is None):
        raise UserError(f"say {spell_option('cells')} for a simulated chip, or {spell_option('device')} for a real one")
    if device is not None and (given or seed):
        raise UserError(f"{spell_option('device')}: a device has no settings and no seed of a simulated chip")
    if cells is not None:
        return _trim_simulated(source, program, read, cells, seed, given)
    from raptor.device.program_execution import DeviceWriter  # devices are loaded where one is used

    assert device is not None, "checked above"
    with DeviceWriter(device) as chips:
        name = device if isinstance(device, str) else f"device {device.info.back_end}"
        return _trim_on(source, program.write_to_device(chips), read, name, 1)


def _trim_simulated(
    source: Path,
    program: LoadedProgram,
    read: LabelledData,
    cells: str | Path,
    seed: int,
    settings: Mapping[str, object],
) -> TrimmedProgram:
    if "seed" in settings:
        raise UserError(f"seed={settings['seed']}: say {spell_option('chip', settings['seed'])}")
    device = load_device(cells)
    given = {name: f"{value}" for name, value in settings.items()} | {"seed": f"{seed}"}
    setup = make_setup("noisy", read_stored_target(program.folder, files.ARCH), device, given)
    made = program_crossbars(program, setup)
    if (setup.adc or Adc(bits=1)).range == "calibrated":
        made = calibrate_converters(made, map(read.list_steps, range(min(_CALIBRATION_SAMPLES, read.count))))
    return _trim_on(source, made, read, f"{device.name}, chip {seed}", default_workers())


def _trim_on(source: Path, program: LoadedProgram, read: LabelledData, chip: str, workers: int) -> TrimmedProgram:
    trimmed, layers = trim_program(program, read, range(read.count), workers)
    return TrimmedProgram(source, replace(trimmed, crossbars=None, products=None), tuple(layers), chip, read.count)


def describe(trimmed: TrimmedProgram) -> Sequence[str]:
    """Returns lines of text: the error of the sums of each layer before and after, relative to the sums."""
    width = max(len(layer.node) for layer in trimmed.layers)
    head = f"{'layer':{width}}  error of sums  trimmed"
    rows = (f"{layer.node:{width}}  {layer.before:13.1%}  {layer.after:7.1%}" for layer in trimmed.layers)
    return [head, *rows]
