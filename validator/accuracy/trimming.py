"""Trims a program to a chip: sets a gain and a bias for each channel of a layer, from samples without labels.

Errors of cells scale and shift the sums of a channel in the same way for all inputs. So the sums on this chip are
compared with exact sums of the same samples, layer by layer, with the layers before already trimmed. Each core that
computes a part of a layer has cells, and so errors, of its own, and is trimmed by itself. The result is other
constants; instructions and crossbars stay. Joshi et al. 2020 (Nature Communications 11, 2473) adapt the
statistics of batch normalisation to a chip in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.output.files import ProbeList
from raptor.output.trim_files import TrimmedLayer, TrimmedPart
from validator.accuracy.labelled_data import LabelledData
from validator.accuracy.sample_scores import run_layer_tensors
from validator.accuracy.trim_fit import fit_trims
from validator.program.program import LoadedProgram
from validator.program.trim_constants import Trim, make_unit_trims, require_trim_table, reset_trim, set_trim

Floats = npt.NDArray[np.float64]


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
    values = [make_unit_trims(layer) for layer in table.layers]
    for k, layer in enumerate(table.layers):
        found = _sums(trimmed, [layer], data, numbers, workers)[0]
        values[k] = fit_trims(layer, found, wanted[k])
        errors.append(_errors(layer, list(zip(found, wanted[k], strict=True)), values[k]))
        trimmed = set_trim(trimmed, values)
        tick()
    return trimmed, errors


def _errors(layer: TrimmedLayer, pairs: Sequence[tuple[Floats, Floats]], values: Sequence[Trim]) -> LayerTrim:
    """Returns the errors of a layer from the sums of each part: those found, those wanted, and their trim."""
    trimmed = [
        np.floor((found * gains + biases) / (1 << layer.shift))
        for (found, _), (gains, biases) in zip(pairs, values, strict=True)
    ]
    power = sum(float((wanted**2).sum()) for _, wanted in pairs) or 1.0

    def relative(sums: Sequence[Floats]) -> float:
        off = sum(float(((own - wanted) ** 2).sum()) for own, (_, wanted) in zip(sums, pairs, strict=True))
        return float(np.sqrt(off / power))

    return LayerTrim(layer.sums.node, relative([found for found, _ in pairs]), relative(trimmed))


def _sums(
    program: LoadedProgram, layers: Sequence[TrimmedLayer], data: LabelledData, numbers: Sequence[int], workers: int
) -> list[list[Floats]]:
    """Returns the untrimmed sums of the parts of layers, each [samples, pixels, channels]."""
    watched = replace(program, layers=ProbeList(probes=tuple(layer.sums for layer in layers)))
    runs = run_layer_tensors(watched, data, numbers, workers)
    return [
        [_part_sums(layer, part, [run[layer.sums.tensor] for run in runs]) for part in layer.parts] for layer in layers
    ]


def _part_sums(layer: TrimmedLayer, part: TrimmedPart, runs: Sequence[npt.NDArray[Any]]) -> Floats:
    image, count = layer.sums.image, part.channels[1] - part.channels[0]
    regions = [layer.sums.tiles[number].region.index() for number in part.tiles]
    pixels = [image.to_pixels(sums) for sums in runs]
    rows = [np.concatenate([own[at].reshape(-1, count) for at in regions]) for own in pixels]
    return np.stack(rows).astype(np.float64)
