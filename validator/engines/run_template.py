"""Arrays that all runs of a program share, computed once: computing them takes most of the run of a small program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from raptor.output.files import TensorCoding, TensorProbe
from raptor.target.tensor_layout import Image, TensorRegion
from validator.program.coding import element_bytes
from validator.program.lookup_bounds import find_all_row_counts
from validator.program.program import Indices, LoadedProgram

T = TypeVar("T")
ALIGNMENT = 4
"""In an integer program, each local memory starts at a multiple of this many bytes, for aligned access."""


def cache_per_program(find: Callable[[LoadedProgram], T]) -> Callable[[LoadedProgram], T]:
    """Caches the result of a function for as long as the program lives."""
    known = WeakKeyDictionary[LoadedProgram, T]()

    @wraps(find)
    def call(program: LoadedProgram) -> T:
        if program not in known:
            known[program] = find(program)
        return known[program]

    return call


@dataclass(frozen=True, slots=True)
class RunTemplate:
    """Arrays of `validator.engines.machine.Machine` that all runs of a program share.

    Each run copies and changes `next_id`, and the program counters, which start from `first`.
    """

    words: npt.NDArray[np.int32]
    first: Indices
    rows: Indices
    next_id: Indices
    local_first: Indices
    local_size: Indices


@cache_per_program
def make_run_template(program: LoadedProgram) -> RunTemplate:
    """Returns the arrays that all runs of a program start from."""
    width, streams = program.memory.element_bytes, program.streams
    local_size = np.array([size // width for size in program.memory.local_bytes], np.int64)
    step = ALIGNMENT if program.has_integers else 1
    words = [np.ascontiguousarray(s).view("<i4").reshape(-1, 5) for s in streams]
    return RunTemplate(
        np.ascontiguousarray(np.concatenate(words)),
        np.cumsum([0, *map(len, streams)], dtype=np.int64),
        *find_all_row_counts(program),
        np.cumsum([0, *(-(-local_size // step) * step)], dtype=np.int64),
        local_size,
    )


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A tile of a tensor in a memory: its span there, and its index and shape in [rows, width, channels].

    `part`: counts elements, or bytes in an integer program.
    """

    part: slice
    index: tuple[slice, slice, slice]
    shape: tuple[int, int, int]


def make_pieces(
    image: Image, regions: Sequence[TensorRegion], starts: Sequence[int], coding: TensorCoding | None
) -> tuple[TensorPiece, ...]:
    """Returns the pieces of a tensor whose tiles start at `starts`."""
    step = element_bytes(coding)
    return tuple(
        [
            TensorPiece(slice(at, at + region.elements(image) * step), region.index(), region.shape(image))
            for region, at in zip(regions, starts, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class CaptureSpans:
    """Spans of local memory that a run copies, sorted by core and instruction, and the tensors that they make up.

    `first[core]`: first span of a core. Each span is copied to `offset` before instruction `pc`, counted over all
    streams. Addresses, sizes and offsets count elements, or bytes in an integer program.
    """

    pc: Indices
    first: Indices
    address: Indices
    size: Indices
    offset: Indices
    tensors: tuple[tuple[TensorProbe, tuple[TensorPiece, ...]], ...]


@cache_per_program
def make_empty_captures(program: LoadedProgram) -> CaptureSpans:
    """Returns empty captures, for a run that returns outputs only."""
    return _captures(program, ())


@cache_per_program
def make_captures(program: LoadedProgram) -> CaptureSpans:
    """Returns the captures for a run that also returns the tensors of layers.json."""
    return _captures(program, program.layers.probes if program.layers else ())


def _captures(program: LoadedProgram, probes: Sequence[TensorProbe]) -> CaptureSpans:
    first, width = make_run_template(program).first, program.memory.element_bytes
    tiles = [(tile, probe) for probe in probes for tile in probe.tiles]
    size = np.array([t.region.elements(p.image) * element_bytes(p.coding) for t, p in tiles], np.int64)
    offset = np.cumsum(size) - size
    core, pc = np.array([t.core for t, _ in tiles], np.int64), np.array([t.pc for t, _ in tiles], np.int64)
    address = np.array([t.address // width for t, _ in tiles], np.int64)
    order = np.lexsort((pc, core))
    starts: list[int] = offset.tolist()
    ends = list(accumulate([len(probe.tiles) for probe in probes], initial=0))
    pieces = [
        make_pieces(probe.image, [tile.region for tile in probe.tiles], starts[low:high], probe.coding)
        for probe, low, high in zip(probes, ends, ends[1:], strict=False)
    ]
    return CaptureSpans(
        (pc + first[core])[order],
        np.searchsorted(core[order], np.arange(len(first))).astype(np.int64),
        address[order],
        size[order],
        offset[order],
        tuple(zip(probes, pieces, strict=True)),
    )
