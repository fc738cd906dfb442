"""Trims a program to a chip: sets a gain and a bias for each channel of a layer, from samples without labels.

Errors of cells scale and shift the sums of a channel in the same way for all inputs. So the sums on this chip are
compared with exact sums of the same samples, layer by layer, with the layers before already trimmed. The result is
other constants; instructions and crossbars stay. Joshi et al. 2020 (Nature Communications 11, 2473) adapt the
statistics of batch normalisation to a chip in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.output.files import ProbeList, TrimmedLayer
from raptor.target.tensor_layout import Image
from validator.accuracy.labelled_data import LabelledData
from validator.accuracy.sample_scores import run_layer_tensors
from validator.program.program import LoadedProgram
from validator.program.trim_constants import require_trim_table, reset_trim, set_trim, unit_biases, unit_gains

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_GAIN_SPREAD = 0.1
"""Assumed standard deviation of the gains of channels. It says how far few samples can move a gain from 1."""


@dataclass(frozen=True, slots=True)
class LayerTrim:
    """Root mean square error of the sums of a layer, relative to that of the exact sums.

    `before`, `after`: without and with its own trim; layers before it are trimmed in both.
    """

    node: str
    before: float
    after: float


def trim_program(
    program: LoadedProgram,
    data: LabelledData,
    numbers: Sequence[int],
    workers: int,
    tick: Callable[[], None] = lambda: None,
) -> tuple[LoadedProgram, list[LayerTrim]]:
    """Returns the program with gains and biases for its crossbars, and the errors of each layer.

    `numbers`: of the samples that are used. `tick` is called after each layer.

    An earlier trim is replaced. Raises `UserError` if the program is not trimmable.
    """
    table = require_trim_table(program)
    trimmed = reset_trim(program)
    exact = replace(trimmed, crossbars=None, products=None)
    errors: list[LayerTrim] = []
    wanted = _sums(exact, table.layers, data, numbers, workers)
    values = [(unit_gains(layer), unit_biases(layer)) for layer in table.layers]
    for k, layer in enumerate(table.layers):
        found = _sums(trimmed, [layer], data, numbers, workers)[0]
        values[k] = fit_trim(layer, found, wanted[k])
        errors.append(_errors(layer, found, wanted[k], values[k]))
        trimmed = set_trim(trimmed, values)
        tick()
    return trimmed, errors


def _errors(layer: TrimmedLayer, found: Floats, wanted: Floats, values: tuple[Ints, Ints]) -> LayerTrim:
    gains, biases = values
    after = np.floor((found * gains + biases) / (1 << layer.shift))
    size = float((wanted**2).mean()) or 1.0
    before, left = (float(np.sqrt(((sums - wanted) ** 2).mean() / size)) for sums in (found, after))
    return LayerTrim(layer.sums.node, before, left)


def _sums(
    program: LoadedProgram, layers: Sequence[TrimmedLayer], data: LabelledData, numbers: Sequence[int], workers: int
) -> list[Floats]:
    """Returns the untrimmed sums of layers, each [samples x pixels, channels]."""
    watched = replace(program, layers=ProbeList(probes=tuple(layer.sums for layer in layers)))
    runs = run_layer_tensors(watched, data, numbers, workers)
    return [np.concatenate([_by_channel(layer.sums.image, run[layer.sums.tensor]) for run in runs]) for layer in layers]


def _by_channel(image: Image, sums: npt.NDArray[Any]) -> Floats:
    return np.moveaxis(sums, image.channel_axis, -1).reshape(-1, image.channels).astype(np.float64)


def fit_trim(layer: TrimmedLayer, found: Floats, wanted: Floats) -> tuple[Ints, Ints]:
    """Returns gains and biases [channels] that bring sums `found` near `wanted`, both [observations, channels].

    A gain is the least squares solution, drawn to 1 by as much as the noise of the observations makes it uncertain; the
    bias makes the means equal. Equal sums give exactly a gain of 1 and a bias of 0.
    """
    mean_found, mean_wanted = found.mean(axis=0), wanted.mean(axis=0)
    x, y = found - mean_found, wanted - mean_wanted
    power, both = (x * x).sum(axis=0), (x * y).sum(axis=0)
    free = np.where(power > 0, both / np.where(power > 0, power, 1.0), 1.0)
    noise = ((y - free * x) ** 2).sum(axis=0) / max(1, len(x) - 2)
    pull = noise / _GAIN_SPREAD**2
    gain = np.where(power + pull > 0, (both + pull) / np.where(power + pull > 0, power + pull, 1.0), 1.0)
    unit = 1 << layer.shift
    gains = np.clip(np.rint(gain * unit), 1, layer.most_gain).astype(np.int64)
    biases = np.rint(mean_wanted * unit - mean_found * gains) + unit // 2
    return gains, np.clip(biases, -layer.most_bias, layer.most_bias).astype(np.int64)
