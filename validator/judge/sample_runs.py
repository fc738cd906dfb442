"""Runs a program and onnxruntime on the same inputs, one input after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple, Protocol

import numpy as np

from raptor.common.errors import UserError
from raptor.target.tensor_layout import Floats
from validator.execution.inputs import (
    GivenInputs,
    draw_inputs,
    following_numbers,
    inputs_for_sample,
    integer_input_names,
    make_inputs,
)
from validator.execution.resident_memory import LocalContent
from validator.execution.run import run_program
from validator.model.golden import GoldenModel, check_shapes
from validator.model.index_bounds import IndexBounds, find_index_bounds, find_runnable_bounds, may_read_indices
from validator.model.node import Array
from validator.model.ort_session import add_outputs, create_session, read_model
from validator.model.types import number_type
from validator.options import FEWEST_SAMPLES, MOST_SAMPLES, Engine, ValidationSettings
from validator.program.coding import holds_floats
from validator.program.program import LoadedProgram

QUICK_INSTRUCTIONS: dict[Engine, int] = {"auto": 300_000, "numba": 300_000, "python": 3000}
"""Instructions that each engine executes in some tenths of a second."""
BYTES_OF_AN_INSTRUCTION = 100
"""Bytes of memory that take as long to initialise as an instruction takes to execute."""


class ComparedTensor(NamedTuple):
    """A tensor that is compared, as an output or as an intermediate tensor; one tensor can be both."""

    kind: Literal["output", "layer"]
    tensor: str


class PairedRuns(Protocol):
    """Two computations of the same tensors, on the samples `numbers`.

    `model`, `constants`: ONNX model of both, and inputs that became constants, for the judgement by float64. `exact`:
    tensors without tolerance. `runtime_nodes`: nodes computed as in onnxruntime, not as in ONNX's own suite.
    """

    numbers: Sequence[int]
    seconds: dict[str, float]

    @property
    def model(self) -> Path: ...
    @property
    def constants(self) -> Mapping[str, Array]: ...
    @property
    def exact_tensors(self) -> frozenset[str]: ...
    @property
    def runtime_nodes(self) -> frozenset[str]: ...
    def inputs(self, number: int) -> dict[str, Floats]: ...
    def run(self, number: int) -> dict[ComparedTensor, tuple[Floats, Floats]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class StepStart:
    """State of the chip when a step begins (None: after power-up), and the model's own states, by input."""

    content: LocalContent | None
    states: Mapping[str, Floats]


@dataclass(slots=True, eq=False)
class SampleRuns:
    """Inputs to validate: given ones, or random ones with the seeds `numbers`.

    Samples run one after another on the same chip, so that values which stay there are tested; the states of a model
    are those that onnxruntime itself has made in the step before.

    `bounds`: of random inputs. `seconds`: wall time by activity; `instructions`: executed by the last run. `starts`:
    the beginning of each step so far, by its number.
    """

    program: LoadedProgram
    golden: GoldenModel
    given: GivenInputs
    numbers: Sequence[int]
    settings: ValidationSettings
    bounds: Mapping[str, IndexBounds] = field(default_factory=dict[str, IndexBounds])
    seconds: dict[str, float] = field(default_factory=lambda: {"golden": 0.0, "run": 0.0, "float64": 0.0})
    instructions: int = 0
    starts: dict[int, StepStart] = field(init=False, default_factory=dict[int, StepStart])

    def with_runnable_bounds(self) -> "SampleRuns":
        """Returns the samples with bounds on random inputs, within which the model runs without an error.

        If it can be, within which it makes finite numbers: from a mask that is not 0 or 1, some models make none.
        """
        places = self.program.memory.inputs
        integers = integer_input_names(places)
        if self.given or not self.numbers or not (integers or may_read_indices(self.model)):
            return self
        outputs = [place.name for place in self.program.outputs]

        def attempt(bounds: Mapping[str, IndexBounds]) -> bool:
            inputs = (make_inputs(places, self.golden, (), number, bounds) for number in self.numbers)
            made = [self.golden.run(given, outputs) for given in inputs]
            return all(np.isfinite(array).any() for values in made for array in values.values() if array.size)

        def attempt_finite(bounds: Mapping[str, IndexBounds]) -> None:
            if not attempt(bounds):
                raise UserError("no finite numbers")

        found = find_index_bounds(read_model(self.model))
        if not integers:
            return replace(self, bounds=found)
        try:
            return replace(self, bounds=find_runnable_bounds(found, integers, attempt_finite))
        except UserError:
            return replace(self, bounds=find_runnable_bounds(found, integers, attempt))

    def with_kind(self, kind: str) -> "SampleRuns":
        """Returns one input of another kind, with the first seed."""

        def given(number: int) -> dict[str, Array]:
            return draw_inputs(kind, self.program.memory.inputs, number, self.bounds)

        return replace(self, given=given, numbers=self.numbers[:1], seconds=dict.fromkeys(self.seconds, 0.0))

    def has_finite_outputs(self) -> bool:
        """Checks whether onnxruntime computes only finite outputs."""
        names = [place.name for place in self.program.outputs]
        try:
            found = [self.golden.run(self.inputs(number), names) for number in self.numbers]
        except UserError:
            return False
        return all(np.isfinite(array).all() for values in found for array in values.values())

    def has_infinite_tensors(self) -> bool:
        """Checks whether onnxruntime computes infinity or NaN in some inner tensor.

        Then the outputs are finite by chance, because operators such as Relu drop these values.
        """
        model = read_model(self.model)
        names = [name for node in model.graph.node for name in node.output if name]
        add_outputs(model, names)
        try:
            shown = replace(self.golden, session=create_session(model.SerializeToString(), self.model))
            found = [self.run_inner_tensors(shown, number) for number in self.numbers]
        except UserError:
            return False
        return not all(np.isfinite(array).all() for values in found for array in values)

    def run_inner_tensors(self, golden: GoldenModel, number: int) -> list[Array]:
        """Returns all float tensors of a model that has them as outputs."""
        types = {o.name: number_type(o.type) for o in golden.session.get_outputs()}
        floats = [name for name, dtype in types.items() if dtype is not None and dtype.kind == "f"]
        return list(golden.run(self.inputs(number), floats).values())

    @property
    def model(self) -> Path:
        return self.program.model

    @property
    def constants(self) -> Mapping[str, Array]:
        return self.golden.constants

    @property
    def runtime_nodes(self) -> frozenset[str]:
        return frozenset()

    @property
    def exact_tensors(self) -> frozenset[str]:
        """The tensors of integers and booleans."""
        places = [(place.name, place.coding) for place in self.program.outputs]
        probes = [(probe.tensor, probe.coding) for probe in (self.program.layers.probes if self.program.layers else ())]
        return frozenset(name for name, coding in (*places, *probes) if not holds_floats(coding))

    def inputs(self, number: int) -> dict[str, Floats]:
        made = make_inputs(
            self.program.memory.inputs, self.golden, inputs_for_sample(self.given, number), number, self.bounds
        )
        return {**made, **self.start_of(number).states} if self.program.states else made

    def start_of(self, number: int) -> StepStart:
        """Returns the beginning of a step; runs the steps before it if they have not run."""
        if number == self.numbers[0] or self.program.resident is None:
            return StepStart(None, {})
        if number not in self.starts:
            self.run(self.numbers[self.numbers.index(number) - 1])
        return self.starts[number]

    def run(self, number: int) -> dict[ComparedTensor, tuple[Floats, Floats]]:
        """Returns the tensors of the program and of onnxruntime, both in onnxruntime's shapes.

        Equal calls give equal results.
        """
        inputs, begin, start = self.inputs(number), self.start_of(number), perf_counter()
        wanted = self._wanted(inputs)
        known = perf_counter()
        layers, options = self.settings.layers, self.settings.run_options
        given = {name: array for name, array in inputs.items() if name not in begin.states}
        most = max(self.program.delays.values(), default=0)
        later = [self.inputs(n) for n in following_numbers(self.given, self.numbers, number, most)]
        result = run_program(self.program, given, probes=layers, before=begin.content, following=later, **options)
        if result.after is not None:
            states = {state.input: wanted[state.output] for state in self.program.states}
            following = self.numbers[self.numbers.index(number) + 1 :][:1]
            self.starts |= dict.fromkeys(following, StepStart(result.after, states))
        self.seconds["golden"] += known - start
        self.seconds["run"] += perf_counter() - known
        self.instructions = result.instructions
        found = {ComparedTensor("output", n): a for n, a in result.output_elements.items()}
        found |= {ComparedTensor("layer", n): a for n, a in result.probe_elements.items() if n in wanted}
        return {s: (got.reshape(wanted[s.tensor].shape), wanted[s.tensor]) for s, got in found.items()}

    def _wanted(self, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
        names = dict.fromkeys([*(place.name for place in self.program.outputs), *self.golden.layers])
        wanted = self.golden.run(inputs, list(names))
        check_shapes(self.program, wanted)
        return wanted


def count_quick_samples(program: LoadedProgram, engine: Engine) -> int:
    """Returns how many inputs can be tried quickly, at least two.

    One input can hide a wrong operand of a maximum, or a clipped value. With long vectors this is rare. Small programs,
    whose vectors are short, run on many inputs.
    """
    memory_bytes = sum(program.memory.local_bytes) + program.memory.size_bytes
    cost = 1 + program.instruction_count + memory_bytes // BYTES_OF_AN_INSTRUCTION
    return min(max(QUICK_INSTRUCTIONS[engine] // cost, FEWEST_SAMPLES), MOST_SAMPLES)
