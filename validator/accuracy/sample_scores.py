"""Runs a program on many samples: scores of its streams, tensors of its layers, and scores of onnxruntime.

Each sample is a pass over the instructions, or one for each step of a sequence, and threads share the samples. The
compiled engine spends nearly all of its time on the elements of instructions and little on decoding, so a pass over
several samples would gain little.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.process.thread_pool import CheckedThreadPool
from validator.accuracy.labelled_data import LabelledData
from validator.execution.run import RunResult, run_program
from validator.model.constant_inputs import read_constant_inputs
from validator.model.ort_session import create_session
from validator.model.ort_session import run as run_session
from validator.model.types import number_type
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
Tick = Callable[[], None]
"""Function called after each sample, for a progress bar."""


def run_scores(program: LoadedProgram, data: LabelledData, workers: int, tick: Tick) -> Array:
    """Returns the first output of the program for each sample, or each step that counts: [`data.scores`, values]."""
    name = program.outputs[0].name

    def one(number: int) -> list[Array]:
        found = [result.outputs[name].ravel() for result in _run_steps(program, data, number)]
        tick()
        return found

    return _counted_scores(data, _each(one, range(data.count), workers))


def runtime_scores(program: LoadedProgram, data: LabelledData) -> Array:
    """Returns the first output of onnxruntime, with optimisations off, as `run_scores`. It has states of its own."""
    opened = create_session(str(program.model), program.model)
    constants = read_constant_inputs(program.manifest.options, opened.get_inputs())
    name = program.outputs[0].name
    types = {i.name: number_type(i.type) or np.float32 for i in opened.get_inputs()}
    shapes = {place.name: place.shape for place in program.memory.inputs}
    zeros = {state.input: np.zeros(shapes[state.input], types[state.input]) for state in program.states}
    wanted = list(dict.fromkeys([name, *(state.output for state in program.states)]))

    def one(number: int) -> list[Array]:
        states, found = dict[str, Array](zeros), list[Array]()
        for step in data.list_steps(number):
            given = states | {key: value.astype(types[key]) for key, value in step.items()}
            outputs: Mapping[str, Array] = run_session(opened, wanted, {**given, **constants}, "onnxruntime: ")
            states = {state.input: outputs[state.output] for state in program.states}
            found.append(np.asarray(outputs[name]).ravel())
        return found

    return _counted_scores(data, map(one, range(data.count)))


def _counted_scores(data: LabelledData, found: Iterable[list[Array]]) -> Array:
    """Returns the scores that count, given those of all steps of each sample."""
    return np.stack([scores for steps in found for scores in (steps[-1:] if data.has_last_labels else steps)])


def _run_steps(program: LoadedProgram, data: LabelledData, number: int, *, probes: bool = False) -> Iterator[RunResult]:
    """Runs the steps of a sample one after another, on a chip whose states are new."""
    content, steps = None, data.list_steps(number)
    for k, inputs in enumerate(steps):
        result = run_program(program, inputs, sample=number * len(steps) + k, before=content, probes=probes)
        content = result.after
        yield result


def run_layer_tensors(
    program: LoadedProgram, data: LabelledData, numbers: Iterable[int], workers: int
) -> list[dict[str, Array]]:
    """Returns the tensors of `layers.json` for the samples with these numbers, for each of their steps."""

    def one(number: int) -> list[dict[str, Array]]:
        return [result.probes for result in _run_steps(program, data, number, probes=True)]

    return [step for steps in _each(one, numbers, workers) for step in steps]


def _each(one: Callable[[int], Any], numbers: Iterable[int], workers: int) -> Iterable[Any]:
    with CheckedThreadPool(max_workers=workers) as pool:
        yield from pool.map(one, numbers)


def default_workers() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
