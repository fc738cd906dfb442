"""Runs a loaded program: inputs in ONNX shapes in, outputs in ONNX shapes out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output.files import Probe, TensorPlace
from raptor.target.layout import Floats, Image, Region
from validator import engine as compiled
from validator import machine, reference
from validator.inputs import named_arrays
from validator.machine import Machine, Stop
from validator.options import Engine, Schedule
from validator.program import Program

UNLIMITED = 2**62
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a run: outputs by name in ONNX shapes, probed tensors (float32) by name in their image shapes."""

    outputs: dict[str, Floats]
    probes: dict[str, Floats]
    instructions: int


def run(
    program: Program,
    inputs: Mapping[str, Array],
    *,
    engine: Engine = "numba",
    schedule: Schedule = "block",
    probes: bool = False,
    max_steps: int = UNLIMITED,
) -> Result:
    """Executes `program`; with `probes`, also captures the tensors of layers.json.

    Raises `UserError` for inputs that do not fit, `ProgramError` for an instruction without meaning or after about
    `max_steps` instructions, `DeadlockError` when no core can go on.
    """
    wanted = program.layers.probes if probes and program.layers else ()
    state = prepare(program, inputs, wanted)
    execute(state, engine=engine, schedule=schedule, max_steps=max_steps)
    return Result(
        outputs={place.name: _unpack(program, state, place) for place in program.memory.outputs},
        probes=_captured(state, wanted),
        instructions=state.executed,
    )


def prepare(program: Program, inputs: Mapping[str, Array], probes: Sequence[Probe] = ()) -> Machine:
    """Returns the machine at start: constants and inputs are in global memory."""
    tiles = [tile for probe in probes for tile in probe.tiles]
    sizes = [tile.region.elements(probe.image) for probe in probes for tile in probe.tiles]
    arrays = named_arrays(program.memory.inputs, inputs)
    for place in program.memory.inputs:
        if place.name not in arrays:
            raise UserError(f"input {place.name!r} is missing")
    state = machine.create(program, tiles, sizes)
    for place in program.memory.inputs:
        _pack(program, state, place, arrays[place.name])
    return state


def execute(state: Machine, *, engine: Engine, schedule: Schedule, max_steps: int = UNLIMITED) -> None:
    """Runs a prepared machine to its end, or raises as `run` does."""
    execute_ = compiled.execute if engine == "numba" else reference.execute
    fault = execute_(state, block=schedule == "block", max_steps=max_steps)
    if fault.stop is not Stop.DONE:
        raise machine.explain(state, fault)


def _pack(program: Program, state: Machine, place: TensorPlace, array: Array) -> None:
    if array.shape != place.shape:
        raise UserError(f"input {place.name!r}: expected shape {list(place.shape)}, got {list(array.shape)}")
    pixels = place.image.to_pixels(_rounded(array))
    for tile in place.tiles:
        start = tile.address // program.memory.element_bytes
        content = pixels[tile.region.index()]
        state.memory[start : start + content.size] = content.ravel()
        state.owners[start : start + content.size] = machine.SHARED


def _rounded(array: Array) -> Floats:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def _unpack(program: Program, state: Machine, place: TensorPlace) -> Floats:
    regions = [tile.region for tile in place.tiles]
    starts = [tile.address // program.memory.element_bytes for tile in place.tiles]
    return _gather(place.image, regions, starts, state.memory).reshape(place.shape)


def _captured(state: Machine, probes: Sequence[Probe]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    start = 0
    for probe in probes:
        regions = [tile.region for tile in probe.tiles]
        sizes = [region.elements(probe.image) for region in regions]
        starts = list(accumulate(sizes[:-1], initial=start))
        found[probe.tensor] = _gather(probe.image, regions, starts, state.probes.captured)
        start += sum(sizes)
    return found


def _gather(image: Image, regions: Sequence[Region], starts: Sequence[int], source: Floats) -> Floats:
    """Assembles a tensor in its image shape from the tiles that start at `starts`."""
    pixels = np.full((image.rows, image.width, image.channels), np.nan, np.float32)
    for region, start in zip(regions, starts, strict=True):
        content = source[start : start + region.elements(image)]
        tile = content.reshape(region.row_count, region.width(image), region.channel_count)
        pixels[region.index()] = tile
    return np.ascontiguousarray(image.from_pixels(pixels))
