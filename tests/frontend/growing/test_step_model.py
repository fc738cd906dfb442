"""Decoders whose caches grow become steps on caches of a fixed capacity: in onnxruntime, both give the same values."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.canonical.standardise import read_standard_model
from raptor.frontend.growing.step_model import StepModel, make_step_model
from raptor.options import ModelInputs
from tests import decoder_models as decoders
from tests import fused_decoders
from tests.tiny_models import Array
from validator.model.ort_session import create_session
from validator.model.types import number_type

CAPACITY = 7
TOKENS = (3, 1, 7, 7, 0, 11, 5)


def _partly_rotated() -> ModelProto:
    angles = np.arange(64)[:, None] / 10000.0 ** (np.arange(0, 16, 2) / 16)
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    proto = decoders.grouped_decoder(layers=1, size=32)
    return decoders.with_attention_inputs(proto, **{name: a.astype(np.float32) for name, a in tables.items()})


def _with_sinks() -> ModelProto:
    proto = decoders.grouped_decoder(layers=1, local_window_size=3, softcap=2.0)
    return decoders.with_attention_inputs(proto, "", "", "sink", sink=np.array([0.1, 0.5, -0.3, 1], np.float32))


def _with_integers(kind: str) -> ModelProto:
    return decoders.with_integer_cache(decoders.grouped_decoder(layers=1), kind)


def _with_open_sizes() -> ModelProto:
    """A decoder as onnxruntime-genai writes it: the channels of a cache are open, too, and so are those of its rows."""
    proto = decoders.grouped_decoder()
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    return proto


def _with_casts() -> ModelProto:
    """A decoder whose appended keys become floats, which they are, as optimum exports GPT-Neo."""
    proto = decoders.plain_decoder(layers=1)
    places = {node.output[0]: place for place, node in enumerate(proto.graph.node)}
    appended = proto.graph.node[places["present.0.key"]]
    appended.output[0] = "appended"
    cast = helper.make_node("Cast", ["appended"], ["present.0.key"], to=TensorProto.FLOAT)
    proto.graph.node.insert(places["present.0.key"] + 1, cast)
    return proto


FORMS: Mapping[str, Callable[[], ModelProto]] = {
    "plain": decoders.plain_decoder,
    "casts": _with_casts,
    "grouped": decoders.grouped_decoder,
    "open sizes": _with_open_sizes,
    "window": lambda: decoders.grouped_decoder(local_window_size=3),
    "sink": lambda: decoders.grouped_decoder(smooth_softmax=1),
    "cap": lambda: decoders.grouped_decoder(softcap=2.0),
    "pairs": lambda: decoders.grouped_decoder(rotary_interleaved=1),
    "scale": lambda: decoders.grouped_decoder(scale=0.5),
    **{f"int8, {kind}": partial(_with_integers, kind) for kind in ("PER_TENSOR", "PER_CHANNEL")},
    "separate": lambda: decoders.grouped_decoder(layers=1, packed=False),
    "sinks": _with_sinks,
    "positions": lambda: decoders.with_attention_inputs(decoders.grouped_decoder(layers=1), "position_ids"),
    "partly rotated": _partly_rotated,
    **{
        f"{bits} bits": partial(decoders.with_weight_blocks, decoders.grouped_decoder(layers=1), bits, 32)
        for bits in (2, 4, 8)
    },
    "one group": lambda: decoders.grouped_decoder(groups=1, layers=1),
    **{f"stack: {how}": partial(fused_decoders.stacked_decoder, how) for how in get_args(fused_decoders.Selection)},
    **{form: partial(fused_decoders.fused_decoder, form, layers=1) for form in get_args(fused_decoders.Form)},
}


def make_step(
    proto: ModelProto, capacity: int = CAPACITY, pairs: Mapping[str, str] = AUTOMATIC, **more: Any
) -> StepModel:
    return make_step_model(read_standard_model(proto), pairs, capacity, ModelInputs(**more))


@pytest.mark.parametrize("form", FORMS)
def test_a_step_gives_the_values_of_the_model_that_grows(form: str) -> None:
    proto = FORMS[form]()
    step = make_step(proto)
    session = create_session(step.model.onnx_bytes, Path(form))
    names = [o.name for o in session.get_outputs()]
    shapes = {i.name: i.shape for i in session.get_inputs()}
    types = {i.name: number_type(i.type) for i in session.get_inputs()}
    held = {state.input: np.zeros(shapes[state.input], types[state.input]) for state in step.steps.states}
    stacked = sum(len(stack.parts) - 1 for stack in step.steps.stacks)
    assert len(held) - stacked == len([v for v in proto.graph.input if v.name.startswith("past")])
    for position, wanted in enumerate(decoders.steps_of_runtime(proto, TOKENS)):
        feed = {"input_ids": np.array([[TOKENS[position]]]), "position": np.array([position]), **held}
        found = dict(zip(names, session.run(None, feed), strict=True))
        np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-5, atol=1e-5)
        for stack in step.steps.stacks:
            wanted |= dict(zip([part.output for part in stack.parts], wanted[stack.output], strict=True))
        for state in step.steps.states:
            held[state.input] = found[state.output]
            stored = found[state.output].transpose(np.argsort(state.permutation))
            rows = stored.take(range(CAPACITY - position - 1, CAPACITY), state.axis)
            np.testing.assert_allclose(rows, wanted[state.output], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", get_args(fused_decoders.Selection))
def test_keys_and_values_in_one_tensor_are_two_states(how: fused_decoders.Selection) -> None:
    """So values lie row beside row, as the product reads them, and nothing selects from a cache."""
    steps = make_step(fused_decoders.stacked_decoder(how)).steps
    assert [(stack.input, stack.output) for stack in steps.stacks] == [("past_0", "present_0"), ("past_1", "present_1")]
    orders = {state.input: state.permutation for state in steps.states}
    assert orders == {f"past_{n}.{k}": (0, 1, *((2, 3), (3, 2))[k]) for n in range(2) for k in range(2)}


def test_a_stack_of_which_another_node_reads_all_stays_one() -> None:
    proto = fused_decoders.stacked_decoder("joined", layers=1)
    node = next(n for n in proto.graph.node if n.output[0] == "value.0.all")
    node.op_type = "Slice"
    del node.attribute[:]
    node.input[:] = ["present_0", "0", "2", "0"]
    after = [helper.make_node("Gather", ["value.0.all", "one"], ["value.0.chosen"], name="chosen", axis=0)]
    after[0].output[0], node.output[0] = "value.0.all", "value.0.both"
    after[0].input[0] = "value.0.both"
    proto.graph.node.insert(list(proto.graph.node).index(node) + 1, after[0])
    assert make_step(proto).steps.stacks == ()


def test_a_mask_that_all_softmaxes_read_is_the_only_one() -> None:
    """The table of the model's own mask hides the rows that no step has appended, in all layers."""
    proto = decoders.plain_decoder(layers=3)
    step = make_step(proto).model.proto
    added = [sum(node.op_type == "Add" for node in model.graph.node) for model in (step, proto)]
    assert added[0] == added[1]


def test_what_no_step_has_appended_has_no_influence() -> None:
    """Rows in front of the first token hold anything, such as those of another sequence."""
    step = make_step(decoders.grouped_decoder())
    session = create_session(step.model.onnx_bytes, Path("step"))
    shapes = {i.name: i.shape for i in session.get_inputs()}
    rng = np.random.default_rng(0)
    feed = {"input_ids": np.array([[4]]), "position": np.array([0])}
    found: list[Array] = []
    for scale in (0.0, 50.0):
        held = {
            s.input: np.asarray(scale * rng.standard_normal(shapes[s.input]), np.float32) for s in step.steps.states
        }
        found += session.run(["logits"], {**feed, **held})
    assert np.array_equal(found[0], found[1])


def test_the_cache_whose_rows_are_added_lies_row_beside_row() -> None:
    states = {state.input: state for state in make_step(decoders.plain_decoder(layers=1)).steps.states}
    assert states["past_key_values.0.key"].permutation == (0, 1, 2, 3)
    assert states["past_key_values.0.value"].permutation == (0, 1, 3, 2)


def test_queries_are_scaled_instead_of_a_cache() -> None:
    step = make_step(fused_decoders.fused_decoder("nan", layers=1))
    scaled = {
        node.input[0] for node in ModelProto.FromString(step.model.onnx_bytes).graph.node if node.op_type == "Mul"
    }
    assert {"query.0.heads", "query.0.heads.scaled"} <= scaled
    assert "turned.0" not in scaled


def test_derived_inputs_are_no_inputs_of_the_step() -> None:
    step = make_step(decoders.plain_decoder())
    given = {value.name for value in ModelProto.FromString(step.model.onnx_bytes).graph.input}
    assert {(d.name, d.kind) for d in step.steps.derived} == {("attention_mask", "ones"), ("position_ids", "position")}
    assert given == {"input_ids", "position"} | {s.input for s in step.steps.states}


def with_node(
    op_type: str, name: str, inputs: list[str], constants: Mapping[str, Any] = MappingProxyType({}), **more: Any
) -> ModelProto:
    """Returns a decoder with one more node, whose result is an output."""
    proto = decoders.plain_decoder(layers=1)
    proto.graph.node.append(helper.make_node(op_type, inputs, [name], name=name, **more))
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return proto


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (with_node("Relu", "y", ["present.0.key"]), r"output y grows with every step, and is no state"),
        (
            with_node("ReduceMax", "y", ["present.0.key"], keepdims=0),
            r"y \(ReduceMax\): it reduces the axis that grows",
        ),
        (
            with_node("MatMul", "y", ["layer.0.masked", "present.0.value"]),
            r"y \(MatMul\): it adds rows that nothing has",
        ),
        (
            with_node("Gather", "y", ["present.0.key", "at"], {"at": np.array(0)}, axis=2),
            r"y \(Gather\): it picks rows by their place",
        ),
        (
            with_node("Concat", "y", ["present.0.key", "row"], {"row": np.zeros((1, 2, 1, 8), np.float32)}, axis=2),
            r"y \(Concat\): it puts something behind the last row",
        ),
        (
            with_node("Relu", "y", ["past_key_values.0.key"]),
            r"y \(Relu\): reads past_key_values.0.key before its new row",
        ),
        (
            with_node("CumSum", "y", ["layer.0.scores", "k"], {"k": np.array(3)}),
            r"y \(CumSum\): it reads tensors that grow",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_mask_makes_right_is_refused(proto: ModelProto, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_step(proto)


def test_a_model_without_a_cache_that_grows_is_refused() -> None:
    proto = decoders.plain_decoder(layers=1)
    with pytest.raises(UserError, match=r"capacity: no state grows"):
        make_step(proto, pairs={"past_key_values.0.key": "logits"})


def test_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"batch=2: a step takes one token of one sequence"):
        make_step(decoders.plain_decoder(), dims={"batch": 2})


def test_names_that_no_input_has_are_refused() -> None:
    with pytest.raises(UserError, match=r"dims: no 'size'; there are batch, past, past \+ sequence, sequence"):
        make_step(decoders.plain_decoder(), dims={"size": 2})
    with pytest.raises(UserError, match=r"shapes: no 'x'; there are attention_mask, input_ids, past_key_values.0.key"):
        make_step(decoders.plain_decoder(), shapes={"x": (1, 1)})


def test_a_position_that_the_model_does_not_have_is_told() -> None:
    with pytest.raises(UserError, match=r"onnxruntime cannot run the step at position 32: .*places"):
        make_step(decoders.plain_decoder(positions=32), capacity=33)


def test_several_tokens_a_step_are_refused() -> None:
    with pytest.raises(UserError, match=r"sequence=3: a step takes one token of one sequence"):
        make_step(decoders.plain_decoder(), dims={"sequence": 3})


def test_a_branch_that_nothing_decides_is_refused() -> None:
    proto = fused_decoders.merged_decoder(decoders.plain_decoder(layers=1))
    with pytest.raises(
        UserError, match=r"branch: .* not the input 'use_cache_branch'; constants gives an input a value"
    ):
        make_step(proto)
