"""Runs a program on many samples: scores of its streams, tensors of its layers, and scores of onnxruntime.

Each sample is a pass over the instructions, and threads share the samples. The compiled engine spends nearly all of its
time on the elements of instructions and little on decoding, so a pass over several samples would gain little.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.process.thread_pool import CheckedThreadPool
from validator.accuracy.labelled_data import LabelledData
from validator.execution.run import run_program
from validator.model.constant_inputs import read_constant_inputs
from validator.model.ort_session import create_session
from validator.model.ort_session import run as run_session
from validator.model.types import number_type
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
Tick = Callable[[], None]
"""Function called after each sample, for a progress bar."""


def run_scores(program: LoadedProgram, data: LabelledData, workers: int, tick: Tick) -> Array:
    """Returns the first output of the program for each sample, [n, values]."""
    name = program.outputs[0].name

    def one(number: int) -> Array:
        found = run_program(program, data.sample(number), sample=number).outputs[name].ravel()
        tick()
        return found

    return np.stack([*_each(one, range(data.count), workers)])


def runtime_scores(program: LoadedProgram, data: LabelledData) -> Array:
    """Returns the first output of onnxruntime, with optimisations off, for each sample, [n, values]."""
    opened = create_session(str(program.model), program.model)
    constants = read_constant_inputs(program.manifest.options, opened.get_inputs())
    name = program.outputs[0].name
    types = {i.name: number_type(i.type) or np.float32 for i in opened.get_inputs()}

    def one(number: int) -> Array:
        inputs = {key: value.astype(types[key]) for key, value in data.sample(number).items()}
        return np.asarray(run_session(opened, [name], {**inputs, **constants}, "onnxruntime: ")[name]).ravel()

    return np.stack([one(number) for number in range(data.count)])


def run_layer_tensors(
    program: LoadedProgram, data: LabelledData, numbers: Iterable[int], workers: int
) -> list[dict[str, Array]]:
    """Returns the tensors of `layers.json` for the samples with these numbers."""
    return [*_each(lambda n: run_program(program, data.sample(n), sample=n, probes=True).probes, numbers, workers)]


def _each(one: Callable[[int], Any], numbers: Iterable[int], workers: int) -> Iterable[Any]:
    with CheckedThreadPool(max_workers=workers) as pool:
        yield from pool.map(one, numbers)


def default_workers() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
