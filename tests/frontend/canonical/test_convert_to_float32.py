"""Float types other than float32, outputs that nothing computes, opsets, weights in other files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from raptor.common.errors import UserError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from tests.pipeline import check, compile_to_fit, validate
from tests.tiny_models import Array, compare, golden, make_model, node, random, single
from validator.execution.run import run_program
from validator.load.output_directory import load_output as load_program

TYPES = {TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}


def typed(
    kind: int, nodes: list[Any], inputs: dict[str, list[int]], rank: int, constants: dict[str, Any]
) -> ModelProto:
    """A model whose floats are all of one type."""
    model = make_model(
        nodes,
        inputs,
        {"y": rank},
        {n: v.astype(TYPES[kind]) if v.dtype == np.float32 else v for n, v in constants.items()},
    )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    return model


def small_net(kind: int) -> ModelProto:
    constant = numpy_helper.from_array(np.array(0.5, TYPES[kind]))
    # onnxruntime has no convolution of float64.
    first = node("MatMul", "x w", "c") if kind == TensorProto.DOUBLE else node("Conv", "x w", "c", pads=[1, 1, 1, 1])
    nodes = [
        first,
        node("Constant", "", "half", value=constant),
        node("Mul", "c half", "m"),
        node("Relu", "m", "r"),
        node("Cast", "r", "f", to=TensorProto.FLOAT),
        node("Cast", "f", "d", to=kind, name="back"),
        node("Flatten", "d", "g"),
        node("Gemm", "g v b"),
    ]
    del nodes[1].input[:]
    weights = random(4, 4) if kind == TensorProto.DOUBLE else random(4, 3, 3, 3)
    constants = {"w": weights, "v": random(48 if kind == TensorProto.DOUBLE else 64, 5), "b": random(5)}
    return typed(kind, nodes, {"x": [1, 3, 4, 4]}, 2, constants)


@pytest.mark.parametrize(("kind", "tolerance"), [(TensorProto.FLOAT16, 1e-2), (TensorProto.DOUBLE, 2e-5)])
def test_other_floats_are_computed_in_float32(kind: int, tolerance: float, tmp_path: Path):
    model = small_net(kind)
    loaded = load(model)
    assert [n.split(" tensors")[0] for n in loaded.notes] == ["float16" if kind == TensorProto.FLOAT16 else "float64"]
    x = random(1, 3, 4, 4).astype(TYPES[kind])
    wanted = golden(model, {"x": x})["y"]
    assert wanted.dtype == TYPES[kind]
    found = evaluate_graph(loaded.graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    out = compile_to_fit(model, xbar=8, xbars_per_core=16).save(
        tmp_path / "out", stream_format="pim", weight_format="npz"
    )
    assert validate(out, layers=True, tolerance=tolerance).verdict == "pass"


def test_the_note_is_a_warning_of_the_report():
    program = raptor.compile(small_net(TensorProto.FLOAT16), xbar=8, cores=64, xbars_per_core=16)
    assert sum("float16 tensors are computed in float32" in w for w in program.report.warnings) == 1


def test_a_float32_model_has_no_note():
    assert load(single("Relu", (1, 2))).notes == ()


def test_weights_beyond_float32():
    model = typed(TensorProto.DOUBLE, [node("Add", "x c")], {"x": [2]}, 1, {"c": np.array([1e300, 1])})
    with pytest.raises(UserError, match="weights 'c': 1 of 2 values are beyond the range of float32"):
        load(model)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_inputs_and_outputs_have_the_type_of_the_model(kind: int):
    program = compile_to_fit(typed(kind, [node("Add", "x x")], {"x": [3]}, 1, {}), xbar=4)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    x = np.array([1, 1 / 3, 1e-3])
    found = program.run({"x": x})["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, (2 * x.astype(dtype).astype(np.float32)).astype(dtype))


def unary(outputs: list[str], nodes: list[Any], **constants: Any) -> ModelProto:
    """x [2, 9] -> nodes -> outputs, all of rank 2; an output may be listed twice."""
    model = make_model(nodes, {"x": [2, 9]}, dict.fromkeys(outputs, 2), constants)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, None]) for n in outputs)
    return model


UNUSUAL = {
    "an input is an output": (["y", "x"], [node("Relu", "x")]),
    "nothing but an input": (["x"], []),
    "an output is inner": (["y", "r"], [node("Relu", "x", "r"), node("Tanh", "r")]),
    "twice": (["y", "y"], [node("Relu", "x")]),
    "identity": (["y"], [node("Identity", "x")]),
    "two identities": (["y", "z"], [node("Identity", "x"), node("Identity", "x", "z", name="other")]),
    "identity of a result": (["r", "y"], [node("Relu", "x", "r"), node("Identity", "r")]),
    "a weight": (["y", "c"], [node("Add", "x c")]),
    "a folded constant": (["y", "z"], [node("Relu", "x"), node("Neg", "c", "z")]),
    "only a constant": (["z"], [node("Neg", "c", "z")]),
}


@pytest.mark.parametrize("outputs", UNUSUAL)
def test_unusual_outputs(outputs: str, tmp_path: Path):
    names, nodes = UNUSUAL[outputs]
    constants = {"c": random(2, 9)} if "c" in {i for n in nodes for i in n.input} | set(names) else {}
    model = unary(names, nodes, **constants)
    program = compile_to_fit(model, xbar=4, xbars_per_core=8)
    x = {"x": random(2, 9)}
    out = program.save(tmp_path / "out", stream_format="pim", weight_format="npz")
    found = run_program(load_program(out), x).outputs
    assert validate(out).verdict == "pass"
    for name, wanted in golden(model, x).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


@pytest.mark.parametrize("values", [np.array([3, -(2**40)]), np.array([True, False]), np.array(7, np.uint8)])
def test_a_constant_output(values: Array):
    model = unary(["y"], [node("Relu", "x")])
    model.graph.initializer.append(numpy_helper.from_array(values, "s"))
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    model.graph.output.append(helper.make_tensor_value_info("s", kind, values.shape))
    found = compile_to_fit(model, xbar=4).run({"x": random(2, 9)})["s"]
    np.testing.assert_array_equal(found, values, strict=True)


def test_an_integer_that_float32_does_not_hold():
    model = unary(["y"], [node("Relu", "x")])
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2**24 + 1]), "s"))
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    with pytest.raises(UserError, match="output 's' holds 16777217, which float32 does not"):
        load(model)


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_opsets(opset: int):
    nodes = [
        node("Conv", "x w b", "c"),
        node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2]),
        node("Flatten", "p", "f"),
        node("Gemm", "f g h", "d"),
        node("LeakyRelu", "d", "l"),
        node("Softmax", "l"),
    ]
    constants = {"w": random(4, 3, 3, 3), "b": random(4), "s": random(4), "t": random(4), "m": random(4)}
    constants |= {"v": np.abs(random(4)) + np.float32(0.1), "g": random(4, 3), "h": random(3)}
    compare(make_model(nodes, {"x": [1, 3, 4, 4]}, {"y": 2}, constants, opset=opset))


def test_shape_arithmetic_is_folded():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "u"),
        node("Concat", "u rest", "t", axis=0),
        node("Reshape", "x t"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    compare(make_model(nodes, {"x": [2, 3, 4]}, {"y": 2}, constants))


def test_weights_in_another_file(tmp_path: Path):
    model = make_model([node("Gemm", "x w")], {"x": [2, 30]}, {"y": 2}, {"w": random(30, 20)})
    wanted = golden(model, {"x": random(2, 30)})["y"]
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").stat().st_size == 30 * 20 * 4
    np.testing.assert_allclose(
        evaluate_graph(load(path).graph, {"x": random(2, 30)})["y"], wanted, rtol=1e-5, atol=1e-5
    )


def test_tensors_whose_names_end_in_numbers():
    """`y` has tiles `y.2` in several stages, and there is a tensor `y.2`."""
    nodes = [node("Relu", "x", "y.2"), node("MatMul", "y.2 w")]
    check(make_model(nodes, {"x": [2, 20]}, {"y": 2}, {"w": random(20, 20)}), xbar=4, xbars_per_core=16)


HALF = (TensorProto.FLOAT16, np.float16)
WIDE = (TensorProto.DOUBLE, np.float64)


def with_types(model: ModelProto, kind: int) -> ModelProto:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    return model


def test_trial_b12_dequantize_to_another_type(tmp_path: Path):
    codes = np.random.default_rng(1).integers(-100, 100, (8, 6)).astype(np.int8)
    nodes = [node("DequantizeLinear", "w s", "wd", output_dtype=HALF[0]), node("MatMul", "x wd")]
    constants: dict[str, Any] = {"w": codes, "s": np.float32(0.0625)}
    model = with_types(make_model(nodes, {"x": [3, 8]}, {"y": 2}, constants, opset=23, ir_version=10), HALF[0])
    x = random(3, 8).astype(np.float16)
    wanted = golden(model, {"x": x})["y"]
    found = evaluate_graph(load(model).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
    out = compile_to_fit(model, xbar=8, xbars_per_core=16).save(
        tmp_path / "out", stream_format="pim", weight_format="npz"
    )
    assert validate(out, layers=True, tolerance=1e-2).verdict == "pass"


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_trial_b12_a_window_of_another_type(op_type: str):
    nodes = [node(op_type, "size", "window", output_datatype=WIDE[0]), node("Mul", "x window")]
    model = with_types(make_model(nodes, {"x": [3, 8]}, {"y": 2}, {"size": np.array(8)}), WIDE[0])
    x = random(3, 8).astype(np.float64)
    found = evaluate_graph(load(model).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-6, atol=1e-6)


def test_trial_b12_filters_of_another_type():
    names = "bins length rate low high"
    nodes = [node("MelWeightMatrix", names, "filters", output_datatype=WIDE[0]), node("MatMul", "x filters")]
    constants: dict[str, Any] = {"bins": np.array(4), "length": np.array(16), "rate": np.array(8000)}
    constants |= {"low": np.float32(0), "high": np.float32(4000)}
    model = with_types(make_model(nodes, {"x": [3, 9]}, {"y": 2}, constants), WIDE[0])
    x = random(3, 9).astype(np.float64)
    found = evaluate_graph(load(model).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("attribute", ["stash_type", "softmax_precision"])
def test_trial_b12_precision_of_a_step(attribute: str):
    if attribute == "stash_type":
        nodes, rank = [node("LayerNormalization", "x g", stash_type=WIDE[0])], 3
    else:
        nodes, rank = [node("Attention", "x x x", q_num_heads=1, kv_num_heads=1, softmax_precision=WIDE[0])], 3
    constants = {"g": np.ones(8)}
    model = make_model(nodes, {"x": [1, 3, 8]}, {"y": rank}, constants, opset=23, ir_version=10)
    x = random(1, 3, 8).astype(np.float64)
    found = evaluate_graph(load(with_types(model, WIDE[0])).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_trial_b12_half_floats_only_inside_of_a_branch():
    """Types of the branch are converted with the others, also where the model itself has none of them."""
    inner = helper.make_graph(
        [
            node("Cast", "x", "half", to=HALF[0], name="down"),
            node("Relu", "half", "positive"),
            node("Cast", "positive", "inner", to=TensorProto.FLOAT, name="up"),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3, 4])],
    )
    choice = node("If", "yes", then_branch=inner, else_branch=inner)
    loaded = load(make_model([choice], {"x": [3, 4]}, {"y": 2}, {"yes": np.array(True)}))
    x = random(3, 4)
    np.testing.assert_allclose(evaluate_graph(loaded.graph, {"x": x})["y"], np.maximum(x, 0), rtol=1e-6)


def test_trial_b12_a_sequence_of_half_floats():
    nodes = [
        node("SequenceConstruct", "a a", "s"),
        node("ConcatFromSequence", "s", "w", axis=1),
        node("MatMul", "x w"),
    ]
    model = make_model(nodes, {"x": [3, 8]}, {"y": 2}, {"a": random(8, 2).astype(np.float16)})
    x = random(3, 8).astype(np.float16)
    found = evaluate_graph(load(with_types(model, HALF[0])).graph, {"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, golden(model, {"x": x})["y"], rtol=1e-2, atol=1e-2)
