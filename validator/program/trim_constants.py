"""Gains and biases of a trimmable program, in its table and among its constants."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.trim_files import TrimmedLayer, TrimmedPart, TrimTable
from validator.program.program import LoadedProgram

Ints = npt.NDArray[np.int64]
Trim = tuple[Ints, Ints]
"""Gains and biases [channels] of a part of a layer."""


def require_trim_table(program: LoadedProgram) -> TrimTable:
    """Returns the table of a trimmable program. Raises `UserError` for other programs."""
    if program.trim is None or not program.trim.layers:
        raise UserError(f"{program.folder}: no layer can be trimmed; compile the model with --trimmable")
    return program.trim


def make_unit_trim(layer: TrimmedLayer, part: TrimmedPart) -> Trim:
    """Returns the gains and biases with which nothing is trimmed. The biases round."""
    channels = part.channels[1] - part.channels[0]
    return np.full(channels, 1 << layer.shift, np.int64), np.full(channels, 1 << (layer.shift - 1), np.int64)


def make_unit_trims(layer: TrimmedLayer) -> list[Trim]:
    """Returns gains and biases with which nothing is trimmed, for each part of a layer."""
    return [make_unit_trim(layer, part) for part in layer.parts]


def reset_trim(program: LoadedProgram) -> LoadedProgram:
    """Returns a trimmable program with the gains and biases as it was compiled, with which nothing is trimmed."""
    table = require_trim_table(program)
    found = set_trim(program, [make_unit_trims(layer) for layer in table.layers])
    return replace(found, trim=found.trim and found.trim.model_copy(update={"chip": None, "samples": 0}))


def set_trim(program: LoadedProgram, values: Sequence[Sequence[Trim]]) -> LoadedProgram:
    """Returns the program with other gains and biases, in its constants and its table.

    `values`: for each layer of the table, those of each part.
    """
    table = require_trim_table(program)
    constants = program.constants.copy()
    layers: list[TrimmedLayer] = []
    for layer, trims in zip(table.layers, values, strict=True):
        parts: list[TrimmedPart] = []
        for part, (gains, biases) in zip(layer.parts, trims, strict=True):
            changed = part.model_copy(update={"gains": tuple(gains.tolist()), "biases": tuple(biases.tolist())})
            for _, content, stored in _contents(program, changed):
                constants[content] = stored
            parts.append(changed)
        layers.append(layer.model_copy(update={"parts": tuple(parts)}))
    return replace(program, constants=constants, trim=table.model_copy(update={"layers": tuple(layers)}))


def _contents(program: LoadedProgram, part: TrimmedPart) -> Iterator[tuple[str, slice, npt.NDArray[np.uint8]]]:
    """Yields "gain" and "bias", each with its place among the constants, and the bytes that the table says."""
    base = program.memory.constants.address
    for kind, address, size, values in (
        ("gain", part.gain, part.gain_bytes, part.gains),
        ("bias", part.bias, 4, part.biases),
    ):
        yield kind, slice(address - base, address - base + len(values) * size), _to_bytes(values, size)


def _to_bytes(values: Sequence[int], size: int) -> npt.NDArray[np.uint8]:
    return np.array(values, "<i8").view(np.uint8).reshape(-1, 8)[:, :size].ravel()


def check_trim_table(program: LoadedProgram) -> None:
    """Raises `UserError` unless gains and biases are among the constants, which hold what the table says."""
    for layer in program.trim.layers if program.trim else ():
        what = f"{files.TRIM}, layer {layer.sums.node!r}"
        for part in layer.parts:
            _check_part(program, layer, part, what)
        tiles = sorted(number for part in layer.parts for number in part.tiles)
        if tiles != [*range(len(layer.sums.tiles))]:
            missing = min({*range(len(layer.sums.tiles))} - {*tiles}, default=None)
            raise UserError(f"{what}: {'a tile has two gains' if missing is None else f'tile {missing} has no gain'}")


def _check_part(program: LoadedProgram, layer: TrimmedLayer, part: TrimmedPart, what: str) -> None:
    (first, end), tiles = part.channels, layer.sums.tiles
    where = f"channels {first} to {end}"
    if not len(part.gains) == len(part.biases) == end - first > 0:
        raise UserError(f"{what}: {len(part.gains)} gains and {len(part.biases)} biases of {where}")
    if max(part.gains) > layer.most_gain or max(map(abs, part.biases)) > layer.most_bias:
        raise UserError(f"{what}: a gain is above {layer.most_gain}, or a bias above {layer.most_bias}")
    for number in part.tiles:
        if number >= len(tiles) or tiles[number].channels != part.channels:
            raise UserError(f"{what}: tile {number} has no {where}, whose gains it is said to have")
    for kind, content, wanted in _contents(program, part):
        if content.start < 0 or content.stop > len(program.constants):
            raise UserError(f"{what}: the {kind}s of {where} are not among the constants")
        if not np.array_equal(program.constants[content], wanted):
            raise UserError(f"{what}: the constants hold other {kind}s; trim the program again")
