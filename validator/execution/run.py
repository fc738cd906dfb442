"""Runs a loaded program: from inputs to outputs, both in ONNX shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output.files import TensorCoding, TensorPlace
from raptor.target.tensor_layout import Floats, Image
from validator.engines import compiled_engine as compiled
from validator.engines import machine, reference_engine
from validator.engines.machine import EngineStop, Machine
from validator.engines.run_template import CaptureSpans, TensorPiece, make_captures, make_empty_captures, make_pieces
from validator.errors import IdError
from validator.execution.inputs import check_named_arrays
from validator.execution.resident_memory import LocalContent, power_up, resident_content
from validator.options import Engine, Schedule
from validator.program.coding import decode, elements_from_bytes, elements_to_bytes, encode
from validator.program.lookup_bounds import describe_token
from validator.program.program import Bytes, LoadedProgram, Values

UNLIMITED = 2**62
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


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results of a run, keyed by name: outputs in ONNX shapes, probed tensors in their image shapes.

    Values are in the model's types. `output_elements` and `probe_elements`: the same tensors in their representation on
    the chip: float32, or int64 for integers in integer programs. `after`: local memory as the next sample finds it;
    None if nothing is resident.
    """

    outputs: dict[str, Array]
    probes: dict[str, Array]
    output_elements: dict[str, Array]
    probe_elements: dict[str, Array]
    instructions: int
    after: LocalContent | None = None


def run_program(
    program: LoadedProgram,
    inputs: Mapping[str, Array],
    *,
    engine: Engine = "auto",
    schedule: Schedule = "block",
    probes: bool = False,
    max_steps: int = UNLIMITED,
    sample: int = 0,
    before: LocalContent | None = None,
) -> RunResult:
    """Executes `program`; with `probes`, also captures the tensors of layers.json.

    `sample`: number of the input, which selects the noise of crossbars. `before`: local memory as the sample before
    left it (`RunResult.after`); None after power-up.

    Raises `UserError` for invalid inputs, `ProgramError` for an undefined operation or after about `max_steps`
    instructions, `DeadlockError` when no core can continue.
    """
    captures = make_captures(program) if probes else make_empty_captures(program)
    state = prepare_machine(program, inputs, captures, sample=sample, before=before)
    try:
        execute_machine(state, engine=engine, schedule=schedule, max_steps=max_steps)
    except IdError as e:
        raise IdError(e.core, e.pc, e.instruction, f"{describe_token(program, e.core, e.pc)}{e.reason}") from None
    outputs = {place.name: _unpack(state, place) for place in program.memory.outputs}
    captured = _captured(state, captures)
    return RunResult(
        outputs={name: elements.decode() for name, elements in outputs.items()},
        probes={name: elements.decode() for name, elements in captured.items()},
        output_elements={name: elements.values for name, elements in outputs.items()},
        probe_elements={name: elements.values for name, elements in captured.items()},
        instructions=state.executed_count,
        after=resident_content(program, state),
    )


def prepare_machine(
    program: LoadedProgram,
    inputs: Mapping[str, Array],
    captures: CaptureSpans | None = None,
    *,
    sample: int = 0,
    watch: bool = False,
    before: LocalContent | None = None,
) -> Machine:
    """Returns the machine at its start, with constants and inputs in global memory. `watch`: see `machine.create`.

    `captures`: spans to copy during the run; None for none. `before`: see `run_program`.
    """
    arrays = check_named_arrays(program.memory.inputs, inputs)
    for place in program.memory.inputs:
        if place.name not in arrays:
            raise UserError(f"input {place.name!r} is missing")
    state = machine.create_machine(program, captures or make_empty_captures(program), sample=sample, watch=watch)
    if (content := before or power_up(program)) is not None:
        content.restore(state)
    for place in program.memory.inputs:
        _pack(state, place, arrays[place.name])
    return state


def execute_machine(state: Machine, *, engine: Engine, schedule: Schedule, max_steps: int = UNLIMITED) -> None:
    """Runs a prepared machine to its end. Raises the same errors as `run`."""
    # NOTE: compiled code cannot call external crossbars.
    is_compiled = state.products is None and (engine == "numba" or (engine == "auto" and compiled.is_quicker(state)))
    if state.products is not None:
        state.products.write_matrices()
    execute_ = compiled.execute if is_compiled else reference_engine.execute
    fault = execute_(state, block=schedule == "block", max_steps=max_steps)
    if fault.stop is not EngineStop.DONE:
        raise machine.explain_fault(state, fault)


def _pack(state: Machine, place: TensorPlace, array: Array) -> None:
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


def _unpack(state: Machine, place: TensorPlace) -> ChipElements:
    regions = [tile.region for tile in place.tiles]
    starts = [tile.address // state.element_bytes for tile in place.tiles]
    pieces = make_pieces(place.image, regions, starts, place.coding)
    found = _assemble(f"output {place.name!r}", place.image, pieces, place.coding, _global(state))
    return replace(found, values=found.values.reshape(place.shape))


def _global(state: Machine) -> tuple[Values, Bytes | None]:
    return state.memory, None if state.written is None else state.written.memory


def _captured(state: Machine, captures: CaptureSpans) -> dict[str, ChipElements]:
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
