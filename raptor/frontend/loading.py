"""Loads an ONNX file as a Graph: reading, checks, input binding, simplification, canonicalisation, import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from raptor.common.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.common.option_spelling import spell_option
from raptor.graph.decoder_steps import DecoderSteps
from raptor.graph.ir import Graph
from raptor.options import ModelInputs, ResidencyOptions

if TYPE_CHECKING:
    from onnx import ModelProto

    from raptor.frontend.proto.model_stats import WeightBlocks
    from raptor.frontend.proto.read_model import SourceModel

NO_INPUTS = ModelInputs()
NO_STATES = ResidencyOptions()
SURVEYED_CAPACITIES = 256, 64, 16
"""Rows of the caches of a decoder that is surveyed: the first that the model's tables of positions have."""
_FEWEST_STEPS = (2,)
"""Steps with which caches of fixed size are found, whose rows are known then."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowingModel:
    """A model whose states grow with every step. `steps`: how a program of one step stands for it."""

    steps: DecoderSteps
    onnx_bytes: bytes


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A loaded model: `graph` is verified, `onnx_bytes` is the original model with all its weights inside."""

    graph: Graph
    onnx_bytes: bytes
    name: str
    notes: tuple[str, ...]
    """Messages for the user."""
    constants: Mapping[str, npt.NDArray[Any]]
    """Inputs that became constants because the user gave their values."""
    decoder: GrowingModel | None = None
    """The model whose states grow, of which this one is a step; None for any other model."""

    def __str__(self) -> str:
        return str(self.graph)


@dataclass(frozen=True, slots=True, eq=False)
class ModelSurvey:
    """Operators and parameters of a model, whether or not it can be compiled. `decoder`: see `LoadedModel`.

    `graph`: the part that can be lowered, complete if `unsupported` is empty.
    """

    name: str
    operators: Mapping[str, int]
    """Operator -> number of nodes."""
    parameters: int
    graph: Graph
    unsupported: tuple[UnsupportedNode, ...]
    notes: tuple[str, ...]
    decoder: GrowingModel | None = None
    blocks: tuple[WeightBlocks, ...] = ()


def load(
    source: str | Path | ModelProto, inputs: ModelInputs = NO_INPUTS, residency: ResidencyOptions = NO_STATES
) -> LoadedModel:
    """Loads the model of an ONNX file (or proto, which is not changed); with a capacity, one step of a decoder.

    Raises `UserError` for a bad file, shape, value or weight, `IncompleteError` with all sizes and values that are
    missing, and `UnsupportedError` with every node that has no lowering.
    """
    # onnx and onnxruntime take a moment to import; `raptor --help` does without.
    from raptor.frontend import import_graph
    from raptor.frontend.canonical import canonicalise, standardise
    from raptor.frontend.contributed.judged_model import make_judged_model
    from raptor.frontend.proto import model_checks, nodes

    model, decoder = standardise.read_standard_model(source), None
    if residency.capacity is None:
        onnx_bytes, notes = make_judged_model(model.onnx_bytes)
    else:
        model, decoder, inputs, notes = _load_step(model, inputs, residency)
        onnx_bytes = model.onnx_bytes
    name = model.name
    ready = prepare_model(model, inputs)
    origin = import_graph.ModelOrigin.from_model(model)
    # Each reader of a table has its own row of it in a step, so that no layer waits for another.
    canonical = canonicalise.canonicalise(model, keep_equal=decoder is not None)
    with canonical as (proto, folder), canonicalise.blame_model_on_error(folder):
        graph = import_graph.import_graph(proto, folder, name, origin)
        graph.verify()
        model_checks.check_finite(graph, nodes.ModelConstants(proto.graph.initializer, folder).values())
    return LoadedModel(graph, onnx_bytes, name, (*notes, *ready.notes), ready.constants, decoder)


def _load_step(
    model: SourceModel, inputs: ModelInputs, residency: ResidencyOptions
) -> tuple[SourceModel, GrowingModel, ModelInputs, tuple[str, ...]]:
    """Returns one step of a decoder, the decoder, the options of inputs that are left, and notes for the user."""
    from onnx import ModelProto

    from raptor.frontend.contributed.judged_model import make_judged_model
    from raptor.frontend.growing.step_model import make_step_model
    from raptor.frontend.inputs.bind_inputs import make_constants
    from raptor.frontend.proto.read_model import read_proto

    assert residency.capacity is not None, "checked by the caller"
    if inputs.constants:
        # The judge's model has them, too.
        proto = ModelProto.FromString(model.onnx_bytes)
        make_constants(proto, inputs.constants)
        model = read_proto(proto, model.name)
    step = make_step_model(model, residency.states, residency.capacity, inputs)
    judged, notes = make_judged_model(model.onnx_bytes)
    return step.model, GrowingModel(step.steps, judged), NO_INPUTS, notes


def survey(source: str | Path | ModelProto, inputs: ModelInputs = NO_INPUTS) -> ModelSurvey:
    """Counts the operators and parameters of a model, and imports the part that the chip can compute.

    Raises `UserError` as `load` does, but lists unsupported nodes and inputs that cannot be on the chip instead of
    raising.
    """
    from raptor.frontend import import_graph
    from raptor.frontend.canonical import canonicalise, standardise
    from raptor.frontend.proto import model_stats

    model = standardise.read_standard_model(source)
    operators, parameters = model_stats.count_operators(model.proto), 0
    decoder, blocks, step = None, model_stats.count_blocks(model.proto), _find_step(model, inputs)
    if blocks or step:
        # Weights in blocks become floats, and a step has tables of positions.
        parameters = model_stats.count_parameters(model.proto)
    if step:
        model, decoder, inputs, _ = step
    graph, unsupported, notes = Graph(model.name, {}, (), (), ()), (), ()
    try:
        ready = prepare_model(model, inputs, keep_integers=True)
        notes = ready.notes
        operators = operators if decoder else model_stats.count_operators(model.proto)
        parameters = parameters or model_stats.count_parameters(model.proto)
        origin = import_graph.ModelOrigin.from_model(model)
        canonical = canonicalise.canonicalise(model, keep_equal=decoder is not None)
        with canonical as (proto, folder), canonicalise.blame_model_on_error(folder):
            graph, refused = import_graph.survey_graph(proto, folder, model.name, origin)
            refused = [*ready.inputs, *refused]
            if not refused:
                graph.verify()
        unsupported = tuple(refused)
    except UnsupportedError as error:  # an operator that not even onnxruntime knows
        unsupported = error.nodes
        parameters = model_stats.count_parameters(model.proto)
    return ModelSurvey(model.name, operators, parameters, graph, unsupported, notes, decoder, blocks)


def _find_step(
    model: SourceModel, inputs: ModelInputs
) -> tuple[SourceModel, GrowingModel, ModelInputs, tuple[str, ...]] | None:
    """Returns a step of a decoder whose caches have no size yet, or get a row at a position; None for others.

    As `_load_step` does.
    """
    from raptor.common.options.option_texts import AUTOMATIC
    from raptor.frontend.growing.decoder_inputs import has_open_axis, reads_position

    is_open = any(has_open_axis(value, inputs) for value in model.proto.graph.input)
    if not is_open and not reads_position(model.proto):
        return None
    for capacity in SURVEYED_CAPACITIES if is_open else _FEWEST_STEPS:
        try:
            step = _load_step(model, inputs, ResidencyOptions(states=AUTOMATIC, capacity=capacity))
            if is_open:
                return step
            if rows := max(state.rows or 0 for state in step[1].steps.states):
                return _load_step(model, inputs, ResidencyOptions(states=AUTOMATIC, capacity=rows))
        except (UserError, UnsupportedError):
            continue
    return None


@dataclass(frozen=True, slots=True, eq=False)
class BoundModel:
    """Result of `prepare`. `constants`: inputs that became constants. `inputs`: inputs that cannot be on the chip."""

    constants: Mapping[str, npt.NDArray[Any]]
    notes: tuple[str, ...]
    inputs: tuple[UnsupportedNode, ...]


def prepare_model(model: SourceModel, inputs: ModelInputs, *, keep_integers: bool = False) -> BoundModel:
    """Checks the model, binds its inputs and resolves its branches; in place. Raises as `load` does."""
    from raptor.frontend.canonical.densify_weights import densify_weights
    from raptor.frontend.contributed.expand_contributed import expand_contributed, find_growing_state
    from raptor.frontend.inputs.bind_inputs import bind_inputs, require_complete
    from raptor.frontend.proto import model_checks
    from raptor.frontend.proto.operand_types import check_types
    from raptor.frontend.types.index_ranges import find_cache_lengths

    if cache := find_growing_state(model.proto):
        raise UserError(f"{cache} grows with every step: compile with its capacity ({spell_option('capacity', 256)})")
    own = _results(model.proto)
    model.labels = expand_contributed(model.proto, model.read_values)
    model.added_results = _results(model.proto) - own
    model_checks.check_model(model)
    densify_weights(model.proto)
    model_checks.check_inputs(model.proto, inputs.constants, keep_integers=keep_integers)
    check_types(model.proto)
    bound = bind_inputs(model.proto, inputs)
    if not keep_integers:
        require_complete(model.proto)
    faults = (
        (v.name, model_checks.find_input_fault(model.proto, v))
        for v in model_checks.collect_inputs(model.proto).values()
    )
    refused = tuple(UnsupportedNode(name, "input", fault) for name, fault in faults if fault)
    interface = (*model.proto.graph.input, *model.proto.graph.output)
    model.interface_types = {v.name: kind for v in interface if (kind := v.type.tensor_type.elem_type)}
    model.cache_lengths = find_cache_lengths(model.proto)
    notes = (*simplify_model(model), *bound.notes)
    model_checks.check_weights(model)
    return BoundModel(bound.constants, notes, refused)


def simplify_model(model: SourceModel) -> tuple[str, ...]:
    """Resolves branches and loops, converts floats to float32, and expands functions, in place.

    Returns notes for the user.
    """
    from raptor.frontend.canonical.convert_to_float32 import convert_to_float32
    from raptor.frontend.control_flow.eliminate_control_flow import eliminate_control_flow
    from raptor.frontend.control_flow.expand_functions import expand_functions
    from raptor.frontend.proto.opset_conversion import downgrade_opset, is_too_new

    proto, own, notes = model.proto, _results(model.proto) - model.added_results, ()
    if is_too_new(proto):
        model.labels = {**model.labels, **expand_functions(proto)}
        notes = convert_to_float32(proto)
        downgrade_opset(proto)
    model.reasons = eliminate_control_flow(proto)
    notes = (*notes, *convert_to_float32(proto))
    model.labels = {**model.labels, **expand_functions(proto)}
    if model.labels:
        # A function may have branches and loops.
        model.reasons = {**model.reasons, **eliminate_control_flow(proto)}
        model.added_results = _results(proto) - own
    return notes


def _results(proto: ModelProto) -> frozenset[str]:
    return frozenset(o for node in proto.graph.node for o in node.output if o)
