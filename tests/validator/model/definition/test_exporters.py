"""Models as `onnxruntime.quantization` writes them: the definition, and onnxruntime as witness of every node."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

import models
from tests.validator.model.definition.quantised import Graph, defined
from validator.model.definition.evaluator import load_definition
from validator.model.definition.exact_values import ExactReal

F32 = np.float32
MODELS = {
    "lenet5": {},
    "squeezenet": {"image_size": 64, "width": 0.25},
    "mobilenet_v2": {"image_size": 32, "width": 0.25},
    "efficientnet_b0": {"image_size": 32, "width": 0.25},
    "bert_tiny": {"tokens": 8, "dim": 32, "depth": 1},
}
SCHEMES = {
    "s8s8": ("QDQ", "QInt8", "QInt8", True),
    "u8s8": ("QDQ", "QUInt8", "QInt8", False),
    "operators": ("QOperator", "QUInt8", "QUInt8", False),
}


class _Samples(CalibrationDataReader):
    def __init__(self, model):
        rng = np.random.default_rng(0)
        self.left = iter([inputs_of(model, rng) for _ in range(2)])

    def get_next(self):
        return next(self.left, None)


def inputs_of(model, rng):
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@cache
def built(name):
    return models.build(name, seed=0, **MODELS[name])


def quantise(model, folder: Path, form, activations, weights, per_channel):
    plain, source, target = (folder / f"{name}.onnx" for name in ("plain", "float", "quantised"))
    onnx.save(model, plain)
    quant_pre_process(str(plain), str(source), skip_symbolic_shape=True)
    kinds = {"activation_type": QuantType[activations], "weight_type": QuantType[weights]}
    quantize_static(source, target, _Samples(model), quant_format=QuantFormat[form], per_channel=per_channel, **kinds)
    return onnx.load(target)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_every_difference_is_explained(name, scheme, tmp_path):
    model = quantise(built(name), tmp_path, *SCHEMES[scheme])
    definition, _, found = defined(model, inputs_of(model, np.random.default_rng(5)))
    assert [d for d in found if d.unexplained] == []
    assert sum(d.count for d in found) <= sum(d.total for d in found) / 100
    assert len(found) > 5
    if name != "bert_tiny":
        # Only the softmax at the end is no integer function.
        assert len(definition.rounded_from_floats) <= 1


def test_float_sections_and_tables_of_a_transformer(tmp_path):
    model = quantise(built("bert_tiny"), tmp_path, *SCHEMES["s8s8"])
    definition, _, _ = defined(model, inputs_of(model, np.random.default_rng(5)))
    kinds = {
        definition.graph.producer(model_node.input[0]).proto.op_type
        for model_node in model.graph.node
        if model_node.op_type == "QuantizeLinear" and model_node.output[0] in definition.rounded_from_floats
    }
    assert kinds >= {"LayerNormalization", "Softmax"}
    assert {definition.graph.producer(name).proto.op_type for name in definition.tables} >= {"Erf"}


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "swish"])
def test_functions_are_tables(kind):
    """y = Q(f(DQ(code))) for every code; onnxruntime computes f."""
    g = Graph(1)
    x = g.dequantized(g.given(g.codes("int8", (3, 50))), F32(0.05), np.int8(7))
    y = g.op("Mul", [x, g.op("Sigmoid", [x])]) if kind == "swish" else g.op(kind, [x])
    definition, _, found = defined(g.model(g.quantized(y, F32(0.01), np.int8(-3))), g.values)
    assert len(definition.tables) == 1
    assert not definition.rounded_from_floats
    assert [d for d in found if d.unexplained] == []


@pytest.mark.parametrize("kind", ["QLinearSigmoid", "QLinearLeakyRelu"])
def test_tables_of_onnxruntime(kind):
    g = Graph(2)
    x = g.given(g.codes("uint8", (3, 50)))
    y = g.op(kind, [x, *map(g.constant, (F32(0.05), np.uint8(120), F32(0.02), np.uint8(20)))], "com.microsoft")
    _, _, found = defined(g.model(y), g.values)
    assert [d for d in found if d.count] == []


@pytest.mark.parametrize("scale", [1 / 256, 1 / 255, 0.013])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_softmax_of_onnxruntime(dtype, scale):
    """onnxruntime computes it in fixed point; the definition is DequantizeLinear, Softmax, QuantizeLinear."""
    g = Graph(6)
    codes, zero, out = g.codes(dtype, (20, 40)), g.zero(dtype), np.array(0 if dtype == "uint8" else -128, dtype)
    operands = [g.given(codes), *map(g.constant, (F32(0.08), zero, F32(scale), out))]
    y = g.op("QLinearSoftmax", operands, "com.microsoft", axis=-1, opset=13)
    definition, (got,), found = defined(g.model(y), g.values)
    powers = np.exp((codes.astype(float) - int(zero)) * 0.08)
    want = powers / powers.sum(axis=-1, keepdims=True) / scale + int(out)
    assert np.abs(got - np.clip(want, 0 if out == 0 else -128, 255 if out == 0 else 127)).max() < 0.501
    assert definition.rounded_from_floats == {y}
    assert [d for d in found if d.unexplained] == []


def test_dynamic_quantisation_is_a_float_section_before_exact_sums():
    g = Graph(3)
    x = g.given(g.rng.standard_normal((4, 6)).astype(np.float32))
    nodes = onnx.helper.make_node("DynamicQuantizeLinear", [x], ["codes", "scale", "zero"], name="dynamic")
    g.nodes.append(nodes)
    w = g.codes("int8", (6, 3))
    y = g.op("MatMulInteger", ["codes", g.constant(w), "zero"])
    definition, (got,), found = defined(g.model(y), g.values)
    codes = definition.run(g.values).codes["codes"].astype(np.int64)
    assert definition.rounded_from_floats == {"codes"}
    low, high = min(0.0, float(g.values[x].min())), max(0.0, float(g.values[x].max()))
    zero = round(-low / ((high - low) / 255))
    np.testing.assert_array_equal(got, (codes - zero) @ w)
    assert [d for d in found if d.count] == []


def power(scale):
    return F32(2.0 ** np.round(np.log2(scale)))


def test_power_of_two_scales_are_equal_end_to_end(tmp_path):
    model = quantise(built("lenet5"), tmp_path, *SCHEMES["s8s8"])
    steps, biases = {}, {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            biases.update({node.input[1]: None} if "bias" in node.input[0] else {})
            steps[node.input[1]] = None
    for tensor in model.graph.initializer:
        if tensor.name in steps and tensor.name not in biases:
            tensor.CopyFrom(onnx.numpy_helper.from_array(power(onnx.numpy_helper.to_array(tensor)), tensor.name))
    _with_bias_scales(model)
    import onnxruntime

    inputs = inputs_of(model, np.random.default_rng(7))
    _, outputs, found = defined(model, inputs)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # no saturated sums, on machines without VNNI
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert [d for d in found if d.count] == []
    np.testing.assert_array_equal(outputs[0], session.run(None, inputs)[0])
    assert isinstance(load_definition(model).run(inputs).outputs["fc3_output"], ExactReal)


def _with_bias_scales(model):
    """Gives each bias the product of the other two scales."""
    made = {name: node for node in model.graph.node for name in node.output}
    values = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            x, w, b = (onnx.numpy_helper.to_array(values[made[name].input[1]]) for name in node.input)
            name = made[node.input[2]].input[1]
            values[name].CopyFrom(onnx.numpy_helper.from_array(np.broadcast_to(F32(x * w), b.shape).copy(), name))
