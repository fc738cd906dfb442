"""Runs a loaded program: from inputs to outputs, both in ONNX shapes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from validator.engines import compiled_engine as compiled
from validator.engines import machine, reference_engine
from validator.engines.machine import EngineStop, Machine, read_address
from validator.engines.run_template import CaptureSpans, make_captures, make_empty_captures
from validator.errors import IdError
from validator.execution.inputs import check_named_arrays
from validator.execution.machine_execution import execute_elsewhere
from validator.execution.memory_tensors import ChipElements, read_captured, read_output, read_state, write_input
from validator.execution.resident_memory import LocalContent, power_up, power_up_with, resident_content, restore_states
from validator.options import Engine, Schedule
from validator.program.lookup_bounds import describe_token
from validator.program.program import LoadedProgram

UNLIMITED = 2**62
Array = npt.NDArray[Any]


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
    following: Sequence[Mapping[str, Array]] = (),
) -> RunResult:
    """Executes `program`; with `probes`, also captures the tensors of layers.json.

    A program whose samples overlap runs once for the sample, and again until all outputs of the sample are there.
    `following`: the inputs of the samples that these passes begin; without them, the same inputs again.

    `sample`: number of the input, which selects the noise of crossbars. `before`: local memory as the sample before
    left it (`RunResult.after`), None after power-up. Inputs that are states replace the values on the chip; without
    them, states go on, after power-up from 0.

    Raises `UserError` for invalid inputs, and for probes of a program whose samples overlap, `ProgramError` for an
    undefined operation or after about `max_steps` instructions, `DeadlockError` when no core can continue.
    """
    captures = _choose_captures(program, probes=probes)

    def execute(state: Machine) -> None:
        if program.manifest.backend is not None:
            execute_elsewhere(program, state, chosen=(engine, schedule, max_steps) != ("auto", "block", UNLIMITED))
        else:
            execute_machine(state, engine=engine, schedule=schedule, max_steps=max_steps)

    state = prepare_machine(program, inputs, captures, sample=sample, before=before)
    try:
        execute(state)
    except IdError as e:
        raise IdError(
            e.core,
            e.pc,
            e.instruction,
            f"{describe_token(program, e.core, e.pc, read_address(state, e.core))}{e.reason}",
        ) from None
    after = resident_content(program, state)
    outputs = {place.name: read_output(state, place) for place in program.memory.outputs}
    if program.delays:
        begun = list(following) + [inputs] * max(program.delays.values())
        outputs |= _late_outputs(program, begun, after, execute, sample)
    outputs |= {place.output: read_state(state, place) for place in program.states}
    captured = read_captured(state, captures)
    return RunResult(
        outputs={name: elements.decode() for name, elements in outputs.items()},
        probes={name: elements.decode() for name, elements in captured.items()},
        output_elements={name: elements.values for name, elements in outputs.items()},
        probe_elements={name: elements.values for name, elements in captured.items()},
        instructions=state.executed_count,
        after=after,
    )


def _choose_captures(program: LoadedProgram, *, probes: bool) -> CaptureSpans:
    if probes and program.delays:
        raise UserError(
            "samples of this program overlap, so its intermediate tensors are of several samples: look at them in a "
            f"program that is compiled with {spell_option('overlap', 1)}"
        )
    return make_captures(program) if probes else make_empty_captures(program)


def _late_outputs(
    program: LoadedProgram,
    begun: Sequence[Mapping[str, Array]],
    before: LocalContent | None,
    execute: Callable[[Machine], None],
    sample: int,
) -> dict[str, ChipElements]:
    """Runs further passes, which begin samples with the inputs `begun`. Returns the outputs that come with a delay."""
    found: dict[str, ChipElements] = {}
    for number in range(1, max(program.delays.values()) + 1):
        state = prepare_machine(program, begun[number - 1], sample=sample, before=before)
        execute(state)
        before = resident_content(program, state)
        late = [place for place in program.memory.outputs if program.delays.get(place.name) == number]
        found |= {place.name: read_output(state, place) for place in late}
    return found


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
    states = program.state_inputs
    for place in program.memory.inputs:
        if place.name not in arrays and place.name not in states:
            raise UserError(f"input {place.name!r} is missing")
    missing = states - arrays.keys()
    if before is not None and missing and missing != states:
        raise UserError(f"input {min(missing)!r} is missing: the states of a step are given all or none")
    state = machine.create_machine(program, captures or make_empty_captures(program), sample=sample, watch=watch)
    given = {name: array for name, array in arrays.items() if name in states}
    content = before or power_up(program)
    if given:
        content = power_up_with(program, given) if before is None else restore_states(program, before, given)
    if content is not None:
        content.restore(state)
    for place in program.memory.inputs:
        if place.name not in states:
            write_input(state, place, arrays[place.name])
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
