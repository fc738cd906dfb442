"""Gains and biases of a trimmable program, in its table and among its constants."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import TrimmedLayer, TrimTable
from validator.program.program import LoadedProgram

Ints = npt.NDArray[np.int64]


def require_trim_table(program: LoadedProgram) -> TrimTable:
    """Returns the table of a trimmable program. Raises `UserError` for other programs."""
    if program.trim is None or not program.trim.layers:
        raise UserError(f"{program.folder}: no layer can be trimmed; compile the model with --trimmable")
    return program.trim


def unit_gains(layer: TrimmedLayer) -> Ints:
    """Returns the gains with which nothing is trimmed, [channels]."""
    return np.full(len(layer.gains), 1 << layer.shift, np.int64)


def unit_biases(layer: TrimmedLayer) -> Ints:
    """Returns the biases with which nothing is trimmed, [channels]: they round."""
    return np.full(len(layer.biases), 1 << (layer.shift - 1), np.int64)


def reset_trim(program: LoadedProgram) -> LoadedProgram:
    """Returns a trimmable program with the gains and biases as it was compiled, with which nothing is trimmed."""
    table = require_trim_table(program)
    found = set_trim(program, [(unit_gains(layer), unit_biases(layer)) for layer in table.layers])
    return replace(found, trim=found.trim and found.trim.model_copy(update={"chip": None, "samples": 0}))


def set_trim(program: LoadedProgram, values: Sequence[tuple[Ints, Ints]]) -> LoadedProgram:
    """Returns the program with other gains and biases, for each layer of its table, in its constants and its table."""
    table = require_trim_table(program)
    constants = program.constants.copy()
    for layer, (gains, biases) in zip(table.layers, values, strict=True):
        for part, place, size, content in _spans(program, layer):
            chosen = (gains if part == "gain" else biases)[slice(*place)]
            constants[content] = _to_bytes(chosen, size)
    layers = tuple(
        layer.model_copy(update={"gains": tuple(g.tolist()), "biases": tuple(b.tolist())})
        for layer, (g, b) in zip(table.layers, values, strict=True)
    )
    return replace(program, constants=constants, trim=table.model_copy(update={"layers": layers}))


def _spans(program: LoadedProgram, layer: TrimmedLayer) -> Iterator[tuple[str, tuple[int, int], int, slice]]:
    """Yields kind, channels, bytes of an element and place among the constants of each table of gains and biases."""
    base = program.memory.constants.address
    for place in layer.constants:
        count = place.channels[1] - place.channels[0]
        for kind, address, size in (("gain", place.gain, place.gain_bytes), ("bias", place.bias, 4)):
            yield kind, place.channels, size, slice(address - base, address - base + count * size)


def _to_bytes(values: Ints, size: int) -> npt.NDArray[np.uint8]:
    return values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :size].ravel()


def check_trim_table(program: LoadedProgram) -> None:
    """Raises `UserError` unless gains and biases are among the constants, which hold what the table says."""
    for layer in program.trim.layers if program.trim else ():
        what, channels = f"{files.TRIM}, layer {layer.sums.node!r}", layer.sums.image.channels
        if not len(layer.gains) == len(layer.biases) == channels:
            raise UserError(f"{what}: {len(layer.gains)} gains and {len(layer.biases)} biases of {channels} channels")
        if max(layer.gains) > layer.most_gain or max(map(abs, layer.biases)) > layer.most_bias:
            raise UserError(f"{what}: a gain is above {layer.most_gain}, or a bias above {layer.most_bias}")
        cover = np.zeros(channels, np.int64)
        for kind, (first, end), size, content in _spans(program, layer):
            if not 0 <= first < end <= channels or content.start < 0 or content.stop > len(program.constants):
                raise UserError(f"{what}: the {kind}s of channels {first} to {end} are not among the constants")
            wanted = np.array((layer.gains if kind == "gain" else layer.biases)[first:end], np.int64)
            if not np.array_equal(program.constants[content], _to_bytes(wanted, size)):
                raise UserError(f"{what}: the constants hold other {kind}s; trim the program again")
            cover[first:end] += kind == "gain"
        if not cover.all():
            raise UserError(f"{what}: channel {int(np.argmin(cover))} has no gain")
