"""States of a model that is quantised: an input, and the output that is its next value, get one scale.

With two scales, the codes that a step leaves on the chip would mean other numbers in the next step, so `compile`
refuses such states. The states of calibration samples are those that the float model makes, step by step, as in use.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.proto.model_checks import collect_inputs
from raptor.frontend.state_pairs import find_pair_fault, recognise_states
from raptor.graph.residency import StatePair
from raptor.tools.quantise.calibration_data import Sample, SampledInput, check_samples, random_samples
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.quantise.qdq_pairs import DQ, Q, QdqModel, QdqPair
from validator.accuracy.labelled_data import read_labelled_data

_MOVES = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators that only move elements, which the quantiser may leave behind the last DequantizeLinear of an output."""


def find_model_states(model: ModelProto, given: Mapping[str, str]) -> tuple[StatePair, ...]:
    """Returns the states of a float model. `given`: output by input, or `AUTOMATIC`.

    Raises `UserError` for names that the model does not have, and for tensors of other shapes or types.
    """
    values = [*collect_inputs(model).values()], [*model.graph.output]
    inputs, outputs = ({v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in vs} for vs in values)
    kinds = [{v.name: v.type.tensor_type.elem_type for v in vs} for vs in values]
    if given == AUTOMATIC:
        return tuple(recognise_states(inputs, outputs))
    pairs = tuple(StatePair(*names) for names in given.items())
    for pair in pairs:
        fault = find_pair_fault(inputs, outputs, pair)
        if fault is None and kinds[0][pair.input] != kinds[1][pair.output]:
            fault = "input and output have different types"
        if fault is not None:
            raise UserError(f"{spell_option('states')} {pair}: {fault}")
    return pairs


def make_step_samples(
    model: ModelProto,
    inputs: Sequence[SampledInput],
    states: Sequence[StatePair],
    file: Path | None,
    seed: int,
    count: int | None,
) -> list[Sample]:
    """Returns samples that are the steps of sequences, with the states that the float model makes from step to step.

    Without a `file`, one sequence of `count` random steps. Else its arrays are [sequences, steps, ...] or [steps, ...];
    `count`: first so many of the first dimension, None: all. States begin at zero, or with the values of the file.
    Raises `UserError` for arrays that do not fit.
    """
    names = {state.input for state in states}
    others = [each for each in inputs if each.name not in names]
    zeros = {each.name: np.zeros(each.shape, each.dtype) for each in inputs if each.name in names}
    if file is None:
        assert count is not None, "random samples are as many as the caller says"
        sequences = [random_samples(others, seed, count)]
    else:
        sequences = _read_sequences(file, inputs, names, count)
    session, found = OrtSession(model), list[Sample]()
    for sequence in sequences:
        state = dict[str, Any](zeros)
        for step in sequence:
            found.append(state | step)
            made = session.run(found[-1])
            state = {pair.input: made[pair.output] for pair in states}
    return found


def _read_sequences(
    path: Path, inputs: Sequence[SampledInput], states: set[str], count: int | None
) -> list[list[Sample]]:
    read = read_labelled_data(path, inputs, count, option=spell_option("data"), states=states)
    steps = [(number, step) for number in range(read.count) for step in read.list_steps(number)]
    known = [each for each in inputs if all(each.name in step for _, step in steps)]
    first = [each for each in inputs if each.name in steps[0][1] and each not in known]
    checked = check_samples(path, known, [step for _, step in steps])
    if read.steps is None:  # one sequence, whose first states alone are given
        given = [dict(step) for step in checked]
        return [[given[0], *({k: v for k, v in step.items() if k not in states} for step in given[1:])]]
    given = check_samples(path, first, [step for _, step in steps[:: read.steps]]) if first else repeat(Sample())
    parts = [checked[k : k + read.steps] for k in range(0, len(checked), read.steps)]
    return [[part[0] | begin, *part[1:]] for part, begin in zip(parts, given, strict=False)]


def share_state_scales(model: ModelProto, states: Sequence[StatePair]) -> dict[str, list[dict[str, Any]]]:
    """Returns scale and zero point of each state input: those of its output, in the form of `TensorQuantOverrides`.

    States of which not both ends are quantised are left out. `model`: the QDQ model with other scales.
    """
    found, scales = QdqModel(model), dict[str, list[dict[str, Any]]]()
    for state in states:
        given, made = _find_pairs(found, state)
        if given is not None and made is not None:
            names = made.quantise.input[1:3]
            scale, zero = (numpy_helper.to_array(found.constants[name]) for name in names)
            scales[state.input] = [{"scale": scale, "zero_point": zero}]
    return scales


def quantise_other_ends(model: ModelProto, states: Sequence[StatePair]) -> None:
    """Quantises the ends of states that the quantiser has left in float beside a quantised other end, in place.

    It quantises what layers with integers read or make: a state may be read by such a layer, and made by another.
    """
    for state in states:
        given, made = _find_pairs(QdqModel(model), state)
        if given is None and made is not None:
            _quantise_input(model.graph, state.input, made.quantise)
        elif given is not None and made is None:
            _quantise_output(model.graph, state.output, given.quantise)


def _quantise_input(graph: GraphProto, name: str, like: NodeProto) -> None:
    restored = f"{name}_DequantizeLinear_Output"
    for node in graph.node:
        node.input[:] = [restored if given == name else given for given in node.input]
    pair = [*_make_pair(name, restored, name, like), *graph.node]
    del graph.node[:]
    graph.node.extend(pair)


def _quantise_output(graph: GraphProto, name: str, like: NodeProto) -> None:
    made = f"{name}_QuantizeLinear_Input"
    place = next(k for k, node in enumerate(graph.node) if name in node.output)
    maker = graph.node[place]
    maker.output[:] = [made if output == name else output for output in maker.output]
    nodes = [*graph.node]
    del graph.node[:]
    graph.node.extend([*nodes[: place + 1], *_make_pair(made, name, name, like), *nodes[place + 1 :]])


def _make_pair(source: str, restored: str, name: str, like: NodeProto) -> tuple[NodeProto, NodeProto]:
    """Returns nodes that quantise a tensor, and dequantise its codes. `like`: a quantisation with the same scale."""
    codes, scale = f"{name}_QuantizeLinear_Output", like.input[1:3]
    quantise = helper.make_node(Q, [source, *scale], [codes], f"{name}_QuantizeLinear")
    return quantise, helper.make_node(DQ, [codes, *scale], [restored], f"{name}_DequantizeLinear")


def _find_pairs(model: QdqModel, state: StatePair) -> tuple[QdqPair | None, QdqPair | None]:
    """Returns the quantisations of the input and of the output of a state; None if one is a float."""
    pairs = [*model.pairs()]
    given = next((pair for pair in pairs if pair.source == state.input), None)
    name = state.output
    while (node := model.producers.get(name)) is not None and node.op_type in _MOVES:
        name = node.input[0]
    return given, next((pair for pair in pairs if pair.restored == name), None)
