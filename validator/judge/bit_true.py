"""Validates an integer program without tolerance: every integer must equal the definition's.

The definition itself is compared with onnxruntime, node by node; each difference must be explained by a tie. In a
program with float sections, every node is judged from the program's own values before it, and integers quantised from a
section may differ within the tolerance of floats. The same holds for a program with short multipliers, which round some
sums to a neighbouring integer: each node may differ by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import TensorCoding
from validator.execution.inputs import GivenInputs, following_numbers, inputs_for_sample, make_typed_inputs
from validator.execution.run import run_program
from validator.judge.check_definition import NodewiseSession, find_differences, load_nodewise_session
from validator.judge.comparison import TensorComparison, compute_error_scale
from validator.judge.element_pairs import ElementPair, elements_to_codes, pair_elements
from validator.judge.integer_difference import IntegerDifference
from validator.judge.sample_runs import ComparedTensor
from validator.judge.validation_report import IntegerFigures
from validator.model.constant_inputs import read_constant_inputs
from validator.model.definition.evaluator import DefinitionRun, ModelDefinition, load_definition
from validator.model.definition.exact_values import Array, ExactReal, RoundedCodes, first_index
from validator.model.float_types import has_other_floats, model_in
from validator.model.index_bounds import NO_BOUNDS, IndexBounds, find_index_bounds
from validator.model.ort_session import create_session, read_model
from validator.model.ort_session import run as run_session
from validator.options import ValidationSettings
from validator.program.program import LoadedProgram


@dataclass(slots=True, eq=False)
class TensorDifferences:
    """Differences of one tensor over several inputs. `at`, `got`, `want`: the first that differs, else the first.

    `node`: the ONNX node that computes it; `largest`: the largest difference; `is_float`: its elements are floats.
    `excused`: integers that differ no more than float sections, or a short multiplier, can cause.
    """

    node: str
    shape: tuple[int, ...]
    is_float: bool = False
    elements: int = 0
    differing: int = 0
    excused: int = 0
    largest: float = 0.0
    at: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0

    def add(self, pair: ElementPair, wrong: Array) -> None:
        """Adds one input; `wrong` marks the elements whose difference is not allowed."""
        if not self.differing and (wrong.any() or not self.elements):
            self.at = first_index(wrong)
            self.got, self.want = float(pair.got[self.at]), float(pair.want[self.at])
        self.elements += pair.want.size
        self.excused += 0 if self.is_float else int((pair.got != pair.want).sum()) - int(wrong.sum())
        if not wrong.any():
            return
        self.differing += int(wrong.sum())
        apart = np.abs(pair.got[wrong].astype(np.float64) - pair.want[wrong])
        self.largest = max(self.largest, float(np.nan_to_num(apart, nan=np.inf).max()))

    def to_comparison(self, tensor: str) -> TensorComparison:
        """Returns the comparison for the report. Errors of integers are counted in units."""
        relative = self.largest / max(abs(self.want), 1.0)
        return TensorComparison(
            tensor, self.shape, self.largest, relative, self.at, self.got, self.want, passed=not self.differing
        )


@dataclass(slots=True, eq=False)
class BitTrueJudge:
    """Validation of an integer program against its definition. The tolerance of the settings is for float sections.

    `bounds`: ranges of random inputs. `rounded`: types of inputs with fewer bits than float32. `counts`: differences of
    each tensor of the program; `witnessed`: differences of onnxruntime for each tensor of the model. `whole`: a session
    of the unchanged model, and its constants; of its `outputs` values, `outputs_departing` differ.
    """

    program: LoadedProgram
    definition: ModelDefinition
    given: GivenInputs
    numbers: Sequence[int]
    settings: ValidationSettings
    bounds: Mapping[str, IndexBounds] = field(default_factory=dict[str, IndexBounds])
    small_input_types: Mapping[str, np.dtype[Any]] = field(default_factory=dict[str, np.dtype[Any]])
    counts: dict[ComparedTensor, TensorDifferences] = field(default_factory=dict[ComparedTensor, TensorDifferences])
    runtime_differences: dict[str, IntegerDifference] = field(default_factory=dict[str, IntegerDifference])
    seconds: dict[str, float] = field(default_factory=lambda: {"definition": 0.0, "run": 0.0, "golden": 0.0})
    instructions: int = 0
    whole_model: Any = None
    outputs: int = 0
    outputs_departing: int = 0
    _witness: NodewiseSession | None = None

    @property
    def is_mixed(self) -> bool:
        return self.program.manifest.numbers == "mixed"

    @property
    def has_short_multipliers(self) -> bool:
        """True if the manifest says that the program requantises with short multipliers."""
        proved = self.program.manifest.integers
        return proved is not None and proved.requant == "short"

    @property
    def judges_by_node(self) -> bool:
        """True if each node is judged from the program's own values before it."""
        return self.is_mixed or self.has_short_multipliers

    def judge(self) -> None:
        """Runs and compares all samples, one after another: a step begins with the definition's own states.

        Where each node is judged alone, it begins with the program's states.
        """
        before, states, most = None, dict[str, Array](), max(self.program.delays.values(), default=0)
        for number in self.numbers:
            start = perf_counter()
            inputs = {**self.make_inputs(number), **states}
            result = run_program(
                self.program,
                {name: array for name, array in inputs.items() if name not in states},
                probes=self.settings.layers or self.judges_by_node,
                before=before,
                following=[self.make_inputs(n) for n in following_numbers(self.given, self.numbers, number, most)],
                **self.settings.run_options,
            )
            before = result.after
            self.instructions = result.instructions
            ran = perf_counter()
            known = self._run_definition(inputs, result.probe_elements)
            self._compare(known, result.output_elements, result.probe_elements)
            states = self._next_states(known, result.outputs)
            defined = perf_counter()
            self._compare_with_onnxruntime(inputs, known)
            self._from_end_to_end(inputs, known)
            self.seconds["run"] += ran - start
            self.seconds["definition"] += defined - ran
            self.seconds["golden"] += perf_counter() - defined

    def _next_states(self, known: DefinitionRun, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the states of the next step, by input."""
        found = dict[str, Array]()
        for state in self.program.states:
            value = outputs[state.output] if self.judges_by_node else known.find_value(state.output)
            if isinstance(value, ExactReal):
                value = self.definition.compute_floats(state.output, known.values)
            assert value is not None, "the definition computes all outputs"
            found[state.input] = np.asarray(value)
        return found

    def make_inputs(self, number: int) -> dict[str, Array]:
        """Returns the inputs of a sample, in the types of the model."""
        given, places = inputs_for_sample(self.given, number), self.program.memory.inputs
        found = make_typed_inputs(places, self.definition, given, number, self.bounds)
        return {
            n: a.astype(self.small_input_types[n]).astype(a.dtype) if n in self.small_input_types else a
            for n, a in found.items()
        }

    def integer_figures(self) -> IntegerFigures:
        """Returns the counts over all samples."""
        witnessed = tuple(self.runtime_differences.values())
        floats, integers = ([c for c in self.counts.values() if c.is_float is kind] for kind in (True, False))
        return IntegerFigures(
            compared=sum(count.elements for count in integers),
            differing=sum(count.differing for count in integers),
            excused=0 if self.has_short_multipliers else sum(count.excused for count in integers),
            shortened=sum(count.excused for count in integers) if self.has_short_multipliers else 0,
            floats=sum(count.elements for count in floats),
            floats_differing=sum(count.differing for count in floats),
            by_onnxruntime=sum(one.total for one in witnessed),
            departing=sum(one.count for one in witnessed),
            explained=sum(one.explained for one in witnessed),
            outputs=self.outputs,
            outputs_departing=self.outputs_departing,
            departures=tuple(one for one in witnessed if one.count),
            tables=tuple(sorted(self.definition.tables)),
            float_sections=tuple(sorted(self.definition.rounded_from_floats)),
        )

    def _run_definition(self, inputs: Mapping[str, Array], probes: Mapping[str, Array]) -> DefinitionRun:
        """Runs the definition; if `by_node`, each node reads what the program has computed before it."""
        codings = {p.tensor: p.coding for p in self._probes() if p.coding is not None}
        keep = [name for name, coding in codings.items() if coding.scale or coding.kind == "float"]
        if not self.judges_by_node:
            return self.definition.run(inputs, keep=keep)
        elements = {n: (probes[n], c) for n, c in codings.items() if n in probes and not c.scale and c.kind == "int"}

        def forced(name: str, computed: Array) -> Array:
            return elements_to_codes(*elements[name], computed.dtype, computed.shape) if name in elements else computed

        return self.definition.run(inputs, forced, keep)

    def _probes(self) -> Sequence[files.TensorProbe]:
        return (
            self.program.layers.probes if self.program.layers and (self.settings.layers or self.judges_by_node) else ()
        )

    def _compare(self, known: DefinitionRun, outputs: Mapping[str, Array], probes: Mapping[str, Array]) -> None:
        for place in self.program.outputs:
            self._tensor(ComparedTensor("output", place.name), outputs[place.name], place.coding, known)
        for probe in self._probes():
            if known.find_value(probe.tensor) is not None:
                self._tensor(ComparedTensor("layer", probe.tensor), probes[probe.tensor], probe.coding, known)

    def _tensor(
        self, shown: ComparedTensor, elements: Array, coding: TensorCoding | None, known: DefinitionRun
    ) -> None:
        value, name = known.find_value(shown.tensor), shown.tensor
        if coding is None or value is None:
            raise UserError(f"{files.MEMORY}: tensor {name!r} has no coding, or the model has no such tensor")
        if coding.kind == "float" and isinstance(value, ExactReal):
            value = self.definition.compute_floats(name, known.values)
        pair = pair_elements(name, elements, coding, value)
        if shown not in self.counts:
            self.counts[shown] = TensorDifferences(self.definition.name_of(name), pair.want.shape, pair.is_float)
        self.counts[shown].add(pair, self._wrong(name, pair, known))

    def _wrong(self, name: str, pair: ElementPair, known: DefinitionRun) -> Array:
        """Marks the elements whose difference is not allowed."""
        if pair.is_float:
            allowed = self.settings.tolerance * compute_error_scale(np.abs(pair.want), 1)
            return ~(np.abs(pair.got.astype(np.float64) - pair.want) <= allowed)
        wrong = np.abs(pair.got - pair.want) > 1 if self.has_short_multipliers else pair.got != pair.want
        if not wrong.any() or not self.is_mixed or not self._comes_from_floats(name, known):
            return wrong
        rounded = self.definition.round_tensor(name, known.values)
        if rounded is not None:
            wrong[wrong] = ~self._is_near(rounded, pair, wrong)
        return wrong

    def _comes_from_floats(self, name: str, known: DefinitionRun) -> bool:
        """Checks whether a quantised tensor is computed from floats, in the model or in floats of the program."""
        floats = {p.tensor for p in self._probes() if p.coding is not None and p.coding.kind == "float"}
        return name in self.definition.rounded_from_floats or bool(
            floats & self.definition.find_inner_tensors(name, known.values)
        )

    def _is_near(self, rounded: RoundedCodes, pair: ElementPair, at: Array) -> Array:
        exact = np.broadcast_to(rounded.exact_values()[0], pair.want.shape)
        allowed = self.settings.tolerance * compute_error_scale(np.abs(exact).astype(np.float32), 1).astype(np.float64)
        doubt = np.broadcast_to(allowed, exact.shape)
        return rounded.explains(pair.got, at, doubt)

    def _from_end_to_end(self, inputs: Mapping[str, Array], known: DefinitionRun) -> None:
        """Counts the outputs in which onnxruntime differs when it computes the whole model from its inputs."""
        if self.whole_model is None or self.is_mixed:
            return
        opened, constants = self.whole_model
        values = run_session(opened, list(known.outputs), {**inputs, **constants}, "onnxruntime: ")
        for name, want in known.outputs.items():
            got = values[name]
            numbers = want.to_floats() if isinstance(want, ExactReal) and want.kind == "plain" else want
            if isinstance(numbers, np.ndarray) and numbers.shape == got.shape:
                self.outputs += got.size
                self.outputs_departing += int((numbers != got).sum())
                self._require_equal(name, numbers, got, known)

    def _require_equal(self, name: str, want: Array, got: Array, known: DefinitionRun) -> None:
        """Records the differences of an output as unexplained if onnxruntime's arithmetic is exact everywhere."""
        wrong = want != got
        if not wrong.any() or not self.definition.is_exact_in_runtime(known):
            return
        at, node = first_index(wrong), self.definition.name_of(name)
        ends = int(got[at]), int(want[at])
        self.runtime_differences[f"{name} end to end"] = IntegerDifference(
            name, node, want.size, int(wrong.sum()), 0, at, *ends
        )

    def _compare_with_onnxruntime(self, inputs: Mapping[str, Array], known: DefinitionRun) -> None:
        """Compares the definition with onnxruntime, node by node."""
        if self._witness is None:
            self._witness = load_nodewise_session(self.definition, known, self.program.model)
        computed = self._witness.run(inputs, known.values)
        for one in find_differences(self.definition, known, computed):
            before = self.runtime_differences.get(one.tensor)
            self.runtime_differences[one.tensor] = one if before is None else before.add_input(one)


def load_bit_true_judge(
    program: LoadedProgram,
    given: GivenInputs,
    numbers: Sequence[int],
    settings: ValidationSettings,
) -> BitTrueJudge:
    """Opens the model of an integer program. Raises `UserError` if the model does not match memory.json."""
    path = program.model
    model = read_model(path)
    rounded = _small_inputs(model)
    other = has_other_floats(model)
    # If floats have 16 or 64 bits, the program computes in float32, and so do its judges.
    model = model_in(model, np.float32) if other else model
    opened = create_session(model.SerializeToString() if other else str(path), path)
    constants = read_constant_inputs(program.manifest.options, opened.get_inputs())
    definition = load_definition(model, constants)
    _check(program, definition, set(constants))
    bounds = NO_BOUNDS if given else find_index_bounds(model)
    whole = opened, constants
    return BitTrueJudge(
        program, definition, given, numbers, settings, bounds=bounds, small_input_types=rounded, whole_model=whole
    )


def _small_inputs(model: ModelProto) -> dict[str, np.dtype[Any]]:
    """Returns the types of inputs whose floats have fewer bits than float32."""
    kinds = {v.name: v.type.tensor_type.elem_type for v in model.graph.input}
    small = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    return {name: helper.tensor_dtype_to_np_dtype(kind) for name, kind in kinds.items() if kind in small}


def _check(program: LoadedProgram, definition: ModelDefinition, constants: set[str]) -> None:
    """Raises `UserError` unless the model and the program have the same inputs and outputs."""
    graph = definition.model.graph
    fixed = constants | {t.name for t in graph.initializer}
    for kind, places, values in (
        ("input", program.memory.inputs, {v.name for v in graph.input} - fixed),
        ("output", program.outputs, {v.name for v in graph.output}),
    ):
        odd = sorted({place.name for place in places} ^ values)
        if odd:
            where = files.MEMORY if odd[0] in values else files.MODEL
            raise UserError(f"{kind} {odd[0]!r} is not in {where}")
