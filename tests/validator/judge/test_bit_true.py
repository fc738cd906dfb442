"""The judgement of programs with integers: a program is imitated by the definition of a model that has a defect."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from raptor.common.errors import UserError
from raptor.output.files import TensorCoding
from tests.validator.model.definition.quantised import Graph
from tests.validator.model.definition.test_exporters import SCHEMES, built, quantise
from validator.judge import bit_true
from validator.judge.bit_true import BitTrueJudge
from validator.judge.element_pairs import pair_elements
from validator.judge.sample_runs import ComparedTensor
from validator.model.definition.evaluator import load_definition
from validator.model.definition.exact_values import ExactReal
from validator.options import ValidationSettings

F32 = np.float32


def coding_of(value):
    """Returns how a program stores a tensor, and a function from the model's value to its elements."""
    if isinstance(value, ExactReal):
        scale = tuple(float(s) for s in value.terms[0].scale.reshape(-1))
        coding = TensorCoding(kind="int", bits=16, dtype="float32", scale=scale, zero_point=(5,))
        return coding, lambda v: v.terms[0].units + 5
    if value.dtype.kind == "f":
        return TensorCoding(kind="float", bits=32, dtype="float32"), lambda v: v
    offset = 128 if value.dtype == np.uint8 else 0
    return TensorCoding(
        kind="int", bits=8, dtype=value.dtype.name, offset=offset
    ), lambda v: v.astype(np.int64) - offset


def imitated(model, program_model, monkeypatch, *, numbers="int", change=None, force=None, floats=()):
    """Judges the definition of `program_model` as if it were a program compiled from `model`.

    `change` changes elements that the program shows, `force` the integers that its nodes read; `floats`: float tensors
    that it shows.
    """
    definition, other = load_definition(model), load_definition(program_model)
    shapes = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in model.graph.input}
    places = [SimpleNamespace(name=n, shape=s, coding=None) for n, s in shapes.items()]
    first = definition.run({n: np.zeros(s, definition.input_type(n)) for n, s in shapes.items()}, keep=floats)
    shown = {**first.codes, **first.kept}
    codings = {n: coding_of(v) for n, v in {**shown, **first.outputs}.items()}
    outputs = [SimpleNamespace(name=n, coding=codings[n][0]) for n in first.outputs]
    probes = [SimpleNamespace(tensor=n, node="", coding=codings[n][0]) for n in shown]
    program = SimpleNamespace(
        model=Path("model.onnx"),
        manifest=SimpleNamespace(numbers=numbers, integers=None),
        memory=SimpleNamespace(inputs=places),
        outputs=outputs,
        states=(),
        delays={},
        layers=SimpleNamespace(probes=probes),
    )

    def run(_program, inputs, **_options):
        known = other.run(inputs, force, keep=floats)
        found = {n: codings[n][1](known.values.get(n, known.find_value(n))) for n in codings}
        found |= {n: change(n, a) for n, a in found.items()} if change else {}
        wanted = {n: found[n] for n in first.outputs}
        probed = {n: found[n] for n in shown}
        return SimpleNamespace(output_elements=wanted, outputs={}, probe_elements=probed, instructions=1, after=None)

    monkeypatch.setattr(bit_true, "run_program", run)
    tested = BitTrueJudge(program, definition, (), range(2), ValidationSettings(1e-4, True, "numba", "block", 1))
    tested.judge()
    return tested


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    form, _, weights, _ = SCHEMES["u8s8"]
    return quantise(built("lenet5"), tmp_path_factory.mktemp("lenet"), form, "QUInt8", weights, True)


def changed(model, name, function):
    """Returns a copy in which one constant is another."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(t for t in copy.graph.initializer if t.name == name)
    array = onnx.numpy_helper.to_array(tensor)
    new = function(array.copy()).astype(array.dtype)
    assert not np.array_equal(new, array), "the defect changes nothing"
    tensor.CopyFrom(onnx.numpy_helper.from_array(new, name))
    return copy


def swapped(a):
    return np.concatenate([a[1:], a[:1]])


def row_lost(a):
    a[0] = 0
    return a


LAYERS = ("conv1", "conv2", "fc1", "fc2", "fc3")
DEFECTS = {
    "scale doubled": ("{}.weight_scale", lambda a: a * 2),
    "scale a little off": ("{}.weight_scale", lambda a: a * F32(1.004)),
    "channels of the scales swapped": ("{}.weight_scale", swapped),
    "bias lost": ("{}.bias_quantized", lambda a: a * 0),
    "biases swapped": ("{}.bias_quantized", swapped),
    "weights of a channel lost": ("{}.weight_quantized", row_lost),
    "channels of the weights swapped": ("{}.weight_quantized", swapped),
    "weights without the lowest bit": ("{}.weight_quantized", lambda a: a & ~1),
    "sign of the weights": ("{}.weight_quantized", lambda a: np.clip(-a.astype(np.int64), -127, 127)),
}
STEPS = ("input", "relu1_output", "relu2_output", "relu3_output", "fc3_output")
STEP_DEFECTS = {
    "scale of the result": ("{}_scale", lambda a: a * F32(1.01)),
    "zero point of the result": ("{}_zero_point", lambda a: a + 1),
}
PLANTED = [(what.format(layer), f) for what, f in DEFECTS.values() for layer in LAYERS]
PLANTED += [(what.format(step), f) for what, f in STEP_DEFECTS.values() for step in STEPS]


def test_the_program_without_defects_passes(lenet, monkeypatch):
    tested = imitated(lenet, lenet, monkeypatch)
    figures = tested.integer_figures()
    assert (figures.differing, figures.departing) == (0, figures.explained)
    assert figures.compared > 2 * 9000
    assert figures.by_onnxruntime == 2 * sum(codes.size for codes in first_codes(lenet))


def first_codes(model):
    definition = load_definition(model)
    inputs = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return definition.run({n: np.zeros(s, np.float32) for n, s in inputs.items()}).codes.values()


@pytest.mark.parametrize(("constant", "function"), PLANTED, ids=range(len(PLANTED)))
def test_planted_defects_are_caught(lenet, monkeypatch, constant, function):
    broken = changed(lenet, constant, function)
    assert imitated(lenet, broken, monkeypatch).integer_figures().differing


def test_the_scale_of_an_output_is_that_of_the_model():
    g = Graph(0)
    real = g.dequantized(g.given(g.codes("int8", (4,))), F32(0.5), np.int8(3))
    (value,) = load_definition(g.model(real)).run(g.values).outputs.values()
    assert isinstance(value, ExactReal)
    coding, elements = coding_of(value)
    np.testing.assert_array_equal(
        *(getattr(pair_elements("y", elements(value), coding, value), n) for n in ("got", "want"))
    )
    with pytest.raises(UserError, match=r"scale 0.25, the model 0.5"):
        pair_elements("y", elements(value), coding.model_copy(update={"scale": (0.25,)}), value)


def test_one_element_is_enough_and_is_named(lenet, monkeypatch):
    name = "relu2_output_QuantizeLinear_Output"

    def change(tensor, elements):
        if tensor == name:
            elements[0, 3, 4, 5] += 1
        return elements

    tested = imitated(lenet, lenet, monkeypatch, change=change)
    count = tested.counts[ComparedTensor("layer", name)]
    assert (count.differing, count.at, count.got - count.want) == (2, (0, 3, 4, 5), 1)
    assert count.node == "relu2_output_QuantizeLinear"
    assert tested.integer_figures().differing == 2


def softmax_model():
    g = Graph(4)
    g.inputs.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT8, [2, 16]))
    real = g.dequantized("x", F32(0.03), np.int8(2))
    weights = g.dequantized(g.constant(g.codes("int8", (16, 8))), F32(0.02), np.int8(0))
    first = g.quantized(g.op("MatMul", [real, weights]), F32(0.5), np.int8(-1))
    soft = g.op("Softmax", [g.dequantized(first, F32(0.5), np.int8(-1))], axis=-1)
    codes = g.quantized(soft, F32(1 / 255), np.int8(-128))
    second = g.dequantized(g.constant(g.codes("int8", (8, 4))), F32(0.02), np.int8(0))
    last = g.op("MatMul", [g.dequantized(codes, F32(1 / 255), np.int8(-128)), second])
    return g.model(g.quantized(last, F32(0.02), np.int8(3))), soft, codes


def nudged(target, amount):
    def change(tensor, elements):
        if tensor == target:
            elements = elements.copy()
            elements[0, 0] += amount
        return elements

    return change


def test_a_section_of_floats_has_a_tolerance(monkeypatch):
    model, soft, _ = softmax_model()
    tested = imitated(model, model, monkeypatch, numbers="mixed", floats=[soft], change=nudged(soft, 1e-7))
    assert (tested.integer_figures().differing, tested.integer_figures().floats_differing) == (0, 0)
    wrong = imitated(model, model, monkeypatch, numbers="mixed", floats=[soft], change=nudged(soft, 1e-2))
    assert wrong.integer_figures().floats_differing == 2


def test_a_code_of_a_section_may_not_differ_far_from_a_tie(monkeypatch):
    model, _, codes = softmax_model()
    tested = imitated(model, model, monkeypatch, numbers="mixed", change=nudged(codes, 1))
    assert tested.counts[ComparedTensor("layer", codes)].differing == 2


def test_behind_a_section_the_values_of_the_program_count(monkeypatch):
    """A program whose section gives another code is wrong there alone: the nodes behind read its codes."""
    model, _, codes = softmax_model()

    def force(name, computed):
        return np.clip(computed.astype(int) + 3, -128, 127).astype(np.int8) if name == codes else computed

    tested = imitated(model, model, monkeypatch, numbers="mixed", force=force)
    assert {shown.tensor for shown, count in tested.counts.items() if count.differing} == {codes}
    strict = imitated(model, model, monkeypatch, numbers="int", force=force)
    assert len({shown.tensor for shown, count in strict.counts.items() if count.differing}) == 2


def of_scale(scale):
    """Returns a convolution whose scales are `scale` and powers of two."""
    g = Graph(8)
    x = g.dequantized(g.given(g.codes("int8", (1, 3, 8, 8))), F32(scale), np.int8(5))
    w = g.dequantized(g.constant(g.codes("int8", (2, 3, 3, 3)) % 4), F32(2**-7), np.int8(0))
    return g, g.quantized(g.op("Relu", [g.op("Conv", [x, w])]), F32(2**-10), np.int8(-3))


@pytest.mark.parametrize(("scale", "explained"), [(2**-5, False), (2**-5 * 1.01, True)])
def test_powers_of_two_explain_nothing(scale, explained):
    """Float32 rounds nothing with them, so even at a tie onnxruntime must round to the same integer."""
    g, y = of_scale(scale)
    definition = load_definition(g.model(y))
    rounded = definition.round_tensor(y, definition.run(g.values).values)
    exact, doubt = rounded.exact_values()
    tie = np.abs(exact - np.floor(exact) - 0.5) <= doubt + 1e-9
    assert rounded.is_certain != explained
    beside = np.where(exact > rounded.codes - rounded.zero, rounded.codes + 1, rounded.codes - 1)
    assert rounded.explains(beside, tie).any() == (explained and tie.any())
    assert tie.any() or explained


@pytest.mark.parametrize(("scale", "unexplained"), [(2**-5, 1), (2**-5 * 1.01, 0)])
def test_powers_of_two_must_be_equal_end_to_end(scale, unexplained, monkeypatch):
    g, y = of_scale(scale)
    model = g.model(y)
    tested = imitated(model, model, monkeypatch)
    known = tested.definition.run(g.values)

    def other(_names, _feed):
        (codes,) = known.outputs.values()
        return [np.where(np.arange(codes.size).reshape(codes.shape) == 3, codes ^ 1, codes)]

    tested.whole_model = SimpleNamespace(run=other), {}
    tested._from_end_to_end(g.values, known)
    figures = tested.integer_figures()
    assert (figures.outputs_departing, figures.departing - figures.explained) == (1, unexplained)
