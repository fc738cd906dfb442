"""Validates a program of one step of a decoder against the original model, whose states grow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.decoding.decoder_session import DecoderSession
from validator.decoding.generation import Sampling, best_gap, generate_tokens
from validator.decoding.growing_model import GrowingModel
from validator.execution.inputs import check_named_arrays, make_inputs
from validator.judge.comparison import ErrorTally, TensorComparison, add_tally, compare_tensor, tally_errors
from validator.judge.sample_runs import SampleRuns
from validator.judge.validation_report import DecodingFigures, ValidationReport
from validator.model.golden import load_golden_model
from validator.options import ValidationSettings
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class _TokenModel:
    """The judge as a stepper of tokens."""

    session: DecoderSession
    model: GrowingModel

    def step(self, inputs: int) -> Mapping[str, Array]:
        found = self.model.step(self.session.token_inputs(inputs))
        return {name: array for name, array in found.items() if name not in self.model.state_outputs}


def validate_decoder(
    program: LoadedProgram,
    given: Mapping[str, Array],
    seed: int,
    steps: int | None,
    settings: ValidationSettings,
    loading: float = 0.0,
) -> ValidationReport:
    """Validates a decoder, in two runs from an empty cache.

    First, both sides read the same inputs: random ones from `seed`, or `given`, arrays of the inputs of all steps. All
    outputs are compared after each step, and the states at the end. Then each side reads its own tokens, those with
    the largest logits, and the tokens are compared. `steps`: of either run; as many as the cache holds if None.
    """
    session = DecoderSession(program)
    count = session.capacity if steps is None else steps
    session.require_room(count)
    start = perf_counter()
    fed = _given_steps(program, session, given) if given else _random_steps(program, session, seed, count, settings)
    drawn = perf_counter()
    found = _teacher_forced(program, session, fed, settings.tolerance)
    figures = _free_running(program, session, fed, settings.tolerance)
    passed = all(c.passed for c in found) and (figures is None or figures.agrees)
    return ValidationReport(
        verdict="pass" if passed else "mismatch",
        tolerance=settings.tolerance,
        model=program.manifest.model,
        seed=None if given else seed,
        samples=len(fed.steps),
        cores=program.core_count,
        instructions=program.instruction_count,
        seconds={"load": loading, "golden": drawn - start, "run": perf_counter() - drawn},
        outputs=tuple(found),
        decoding=figures,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _FedSequence:
    """Inputs of each step, and first values of the states that do not grow."""

    steps: Sequence[Mapping[str, Array]]
    first: Mapping[str, Array]


def _find_other_states(program: LoadedProgram, session: DecoderSession) -> set[str]:
    """Returns the inputs that are states which do not grow, such as those of recurrent layers, or of an encoder."""
    return {place.input for place in program.states} - {state.input for state in session.decoder.states}


def _random_steps(
    program: LoadedProgram, session: DecoderSession, seed: int, count: int, settings: ValidationSettings
) -> _FedSequence:
    """Returns random inputs for each step, within the bounds of the model's tables."""
    golden = load_golden_model(program)
    tried = SampleRuns(program, golden, (), range(seed, seed + 1), settings).with_runnable_bounds()
    own = {place.input for place in program.states} | {session.decoder.position}
    made = [make_inputs(program.memory.inputs, golden, (), seed + k, tried.bounds) for k in range(count)]
    steps = [{name: array for name, array in inputs.items() if name not in own} for inputs in made]
    return _FedSequence(steps, {name: made[0][name] for name in _find_other_states(program, session)})


def _given_steps(program: LoadedProgram, session: DecoderSession, given: Mapping[str, Array]) -> _FedSequence:
    """Returns the inputs of each step of a sequence. Raises `UserError` for other shapes, and for too many steps.

    States that do not grow begin with the given values, or with 0.
    """
    others = _find_other_states(program, session)
    first = {name: array for name, array in given.items() if name in others}
    given = {name: array for name, array in given.items() if name not in others}
    own = {place.input for place in program.states} | {session.decoder.position}
    places = {place.name: place for place in program.memory.inputs if place.name not in own}
    arrays = check_named_arrays(program.memory.inputs, given)
    counts = {len(a) if a.ndim else 0 for a in arrays.values()}
    if arrays.keys() != places.keys() or len(counts) != 1 or 0 in counts:
        raise UserError(f"the inputs of a decoder are sequences of steps, of equal length, of {', '.join(places)}")
    for name, array in arrays.items():
        if array.shape[1:] != places[name].shape:
            raise UserError(f"input {name!r}: expected steps of shape {list(places[name].shape)}")
    session.require_room(counts.copy().pop())
    steps = [{name: array[k] for name, array in arrays.items()} for k in range(counts.pop())]
    return _FedSequence(steps, check_named_arrays(program.memory.inputs, first))


def _teacher_forced(
    program: LoadedProgram, session: DecoderSession, fed: _FedSequence, tolerance: float
) -> list[TensorComparison]:
    """Returns the comparison of each output over all steps, and of each state after the last one."""
    session.give(fed.first)
    judge = GrowingModel(program, session.decoder, fed.first)
    tallies: dict[str, ErrorTally] = {}
    wanted: Mapping[str, Array] = {}
    for inputs in fed.steps:
        made, wanted = session.step(inputs), judge.step(inputs)
        for name, array in made.items():
            add_tally(tallies, name, _tally(name, array, wanted[name]))
    kept = session.states()
    tallies |= {name: _tally(name, kept[name], wanted[name]) for name in wanted if name in judge.state_outputs}
    for name, tally in tallies.items():
        if not tally.finite:
            raise UserError(f"output {name!r}: onnxruntime computes no finite number for it")
    return [compare_tensor(name, tally, tolerance) for name, tally in tallies.items()]


def _tally(name: str, got: Array, want: Array) -> ErrorTally:
    if got.size != want.size:
        raise UserError(f"output {name!r}: expected shape {list(want.shape)}, the program has {list(got.shape)}")
    return tally_errors(np.asarray(got, np.float32), np.asarray(want, np.float32))


def _free_running(
    program: LoadedProgram, session: DecoderSession, fed: _FedSequence, tolerance: float
) -> DecodingFigures | None:
    """Compares the tokens that each side generates from the first token; None for a model without tokens.

    All inputs but the token stay as in the first step.
    """
    begin, count, names = fed.steps[0], len(fed.steps), session.find_token_inputs()
    if len(names) != 1:
        return None
    common = {**fed.first, **{name: array for name, array in begin.items() if name not in names}}
    first = int(np.ravel(begin[names[0]])[0])
    session.give(common)
    judge = _TokenModel(session, GrowingModel(program, session.decoder, common))
    got = generate_tokens(session, [first], count, Sampling())
    want = generate_tokens(judge, [first], count, Sampling())
    pairs = zip(got.tokens, want.tokens, strict=True)
    differs = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
    equal = count if differs is None else differs
    gaps = [best_gap(row) for row in want.logits[: equal + 1]]
    scale = float(np.abs(want.logits[: equal + 1]).max())
    figures = DecodingFigures(count, equal, min(gaps))
    if differs is None:
        return figures
    return replace(figures, first_gap=gaps[differs], undecided=gaps[differs] <= tolerance * scale)
