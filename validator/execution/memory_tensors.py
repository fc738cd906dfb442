"""Tensors of the model in the memories of a machine: inputs are written there, outputs and states are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output.files import ResidentState, TensorCoding, TensorPlace
from raptor.target.tensor_layout import Floats, Image, TensorRegion
from validator.engines import machine
from validator.engines.machine import Machine
from validator.engines.run_template import CaptureSpans, TensorPiece, make_pieces
from validator.program.coding import decode, elements_from_bytes, elements_to_bytes, encode
from validator.program.program import Bytes, Values

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ChipElements:
    """A tensor in its representation on the chip: float32, or int64 for integers, with its coding if it has one."""

    values: Array
    coding: TensorCoding | None
    what: str

    def decode(self) -> Array:
        """Returns the values in the model's type. Raises `UserError` for an element that represents no value."""
        return self.values if self.coding is None else decode(self.values, self.coding, self.what)


def write_input(state: Machine, place: TensorPlace, array: Array) -> None:
    """Encodes an input and writes it into global memory. Raises `UserError` for a wrong shape or value."""
    what = f"input {place.name!r}"
    if array.shape != place.shape:
        raise UserError(f"{what}: expected shape {list(place.shape)}, got {list(array.shape)}")
    pixels = _to_pixels(place.image, encode(array, place.coding, what) if place.coding else _rounded(array))
    for tile in place.tiles:
        elements = pixels[tile.region.index()]
        content = elements_to_bytes(elements, place.coding) if place.coding and state.written else elements.ravel()
        start = tile.address // state.element_bytes
        part = slice(start, start + content.size)
        state.memory[part], state.owners[part] = content, machine.SHARED
        if state.written is not None:
            state.written.memory[part] = 1


def _to_pixels(image: Image, elements: Array) -> Array:
    return image.to_pixels(cast(Any, elements))


def _rounded(array: Array) -> Floats:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def read_output(state: Machine, place: TensorPlace) -> ChipElements:
    """Returns an output from global memory."""
    regions = [tile.region for tile in place.tiles]
    starts = [tile.address // state.element_bytes for tile in place.tiles]
    pieces = make_pieces(place.image, regions, starts, place.coding)
    found = _assemble(f"output {place.name!r}", place.image, pieces, place.coding, _global(state))
    return replace(found, values=found.values.reshape(place.shape))


def read_state(state: Machine, place: ResidentState) -> ChipElements:
    """Returns a state from local memories. Raises `UserError` if two cores hold different values of one part."""
    what, source = f"state {place.output!r}", (state.local, None if state.written is None else state.written.local)
    known: dict[TensorRegion, tuple[int, bytes]] = {}
    pieces: list[TensorPiece] = []
    for tile in place.tiles:
        start = int(state.local_first[tile.core]) + tile.address // state.element_bytes
        (piece,) = make_pieces(place.image, [tile.region], [start], place.coding)
        held = state.local[piece.part].tobytes()
        core, first = known.setdefault(tile.region, (tile.core, held))
        if first != held:
            raise UserError(f"{what}: cores {core} and {tile.core} hold different values of {tile.region}")
        pieces.append(piece)
    found = _assemble(what, place.image, pieces, place.coding, source)
    return replace(found, values=found.values.reshape(place.shape))


def _global(state: Machine) -> tuple[Values, Bytes | None]:
    return state.memory, None if state.written is None else state.written.memory


def read_captured(state: Machine, captures: CaptureSpans) -> dict[str, ChipElements]:
    """Returns the tensors that a run has copied from local memories, by name."""
    source = state.probes.captured, None if state.written is None else state.written.captured
    return {
        probe.tensor: _assemble(f"tensor {probe.tensor!r}", probe.image, pieces, probe.coding, source)
        for probe, pieces in captures.tensors
    }


def _assemble(
    what: str,
    image: Image,
    pieces: Sequence[TensorPiece],
    coding: TensorCoding | None,
    source: tuple[Values, Bytes | None],
) -> ChipElements:
    """Assembles a tensor in its image shape from its pieces in a memory."""
    kind = np.float32 if coding is None or coding.kind == "float" else np.int64
    pixels = np.full((image.rows, image.width, image.channels), np.nan if kind is np.float32 else 0, kind)
    content, written = source
    for piece in pieces:
        elements = content[piece.part]
        if coding is not None and written is not None:
            elements = _read(what, elements, written, piece.part, coding)
        pixels[piece.index] = elements.reshape(piece.shape)
    return ChipElements(np.ascontiguousarray(image.from_pixels(cast(Any, pixels))), coding, what)


def _read(what: str, content: Values, written: Bytes, part: slice, coding: TensorCoding) -> Array:
    """Returns elements from bytes. Raises `UserError` for bytes never written, which integers cannot show."""
    missing = np.flatnonzero(written[part] == 0)
    if len(missing):
        raise UserError(
            f"{what}: the program has not written {len(missing)} of its bytes, the first at {part.start + missing[0]}"
        )
    return elements_from_bytes(content.astype(np.uint8, copy=False), coding, what)
