"""Files that onnxruntime takes and onnx's checker does not: order of nodes, another domain, shapes left out."""

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, TensorProto, helper

import raptor
from raptor.common.errors import IncompleteError, UserError
from raptor.frontend import load
from raptor.options import ModelInputs
from tests.pipeline import check
from tests.tiny_models import compare, make_model, node, random

DOMAIN = "ai.onnx"


def small(*, opset: int = 17) -> ModelProto:
    nodes = [node("MatMul", "x w", "m"), node("Relu", "m", "r"), node("Softmax", "r", axis=-1)]
    return make_model(nodes, {"x": (3, 8)}, {"y": 2}, {"w": random(8, 6)}, opset=opset)


def in_domain(model: ModelProto, *, imports: bool = True) -> ModelProto:
    for one in model.graph.node:
        one.domain = DOMAIN
    if imports:
        model.opset_import[0].domain = DOMAIN
    return model


def compare_stored(model: ModelProto) -> None:
    """Compares the model that is stored beside a program, which every library takes."""
    stored = ModelProto.FromString(load(model).onnx_bytes)
    onnx.checker.check_model(stored)
    compare(stored)


@pytest.mark.parametrize("imports", [True, False])
def test_trial_b13_nodes_of_the_other_domain(imports: bool):
    compare_stored(in_domain(small(), imports=imports))


def test_trial_b13_a_program_of_it():
    check(in_domain(small()), xbar=8, cores=8)


def test_trial_b13_both_names_in_one_model():
    model = small()
    model.graph.node[0].domain = DOMAIN
    model.opset_import.append(helper.make_opsetid(DOMAIN, 17))
    compare(model)


def test_trial_b13_an_old_operator_set():
    """Its number is found: a Softmax of version 11 flattens."""
    compare(in_domain(small(opset=11)))


def test_trial_b13_a_branch():
    inner = helper.make_graph(
        [node("MatMul", "x w", "inner", name="deep")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3, 6])],
    )
    inner.node[0].domain = DOMAIN
    choice = node("If", "yes", then_branch=inner, else_branch=inner)
    constants = {"w": random(8, 6), "yes": np.array(True)}
    compare_stored(in_domain(make_model([choice], {"x": (3, 8)}, {"y": 2}, constants)))


def test_trial_b13_a_function():
    """onnxruntime takes no function whose operators are of the other domain; the model that is stored has the first."""
    inner = helper.make_node("Relu", ["a"], ["b"], domain=DOMAIN)
    function: FunctionProto = helper.make_function("my", "F", ["a"], ["b"], [inner], [helper.make_opsetid(DOMAIN, 17)])
    model = make_model([helper.make_node("F", ["x"], ["y"], name="f", domain="my")], {"x": (3, 8)}, {"y": 2})
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    loaded = load(model)
    assert [n.op_type for n in loaded.graph.nodes] == ["Relu"]
    compare_stored(model)


def test_trial_b15_nodes_out_of_order():
    model = small()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes[::-1])
    loaded = compare(model)
    assert [n.name for n in ModelProto.FromString(loaded.onnx_bytes).graph.node] == [n.name for n in nodes]


def test_trial_b15_a_program_of_nodes_out_of_order():
    model = small()
    model.graph.node.insert(0, node("Neg", "y", "z"))
    model.graph.output[0].name = "z"
    check(model, xbar=8, cores=8)


def test_trial_b15_a_tensor_that_nothing_computes():
    model = small()
    model.graph.node[1].input[0] = "nowhere"
    with pytest.raises(UserError, match=r"^not a valid ONNX model: my_relu \(Relu\) reads 'nowhere', which nothing"):
        load(model)


def test_trial_b15_a_circle():
    model = small()
    model.graph.node[0].input[0] = "y"
    found = r"nodes wait for each other: my_matmul \(MatMul\), my_relu \(Relu\), my_softmax \(Softmax\)$"
    with pytest.raises(UserError, match=found):
        load(model)


@pytest.mark.parametrize("with_type", [True, False])
def test_trial_b15_an_output_without_a_shape(with_type: bool):
    model = small()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if not with_type:
        model.graph.output[0].ClearField("type")
    compare(model)
    check(model, xbar=8, cores=8)


def test_trial_b15_an_input_without_a_shape():
    model = small()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(IncompleteError, match="input 'x' has no shape, not even a number of dimensions") as raised:
        load(model)
    assert raised.value.options == ("--shape", "x=SIZE,SIZE")
    assert load(model, ModelInputs(shapes={"x": (3, 8)})).graph.tensors["y"].shape == (3, 6)
    program = raptor.compile(model, shapes={"x": (3, 8)}, xbar=8, cores=8)
    assert program.report.matrices


def test_trial_b15_an_input_without_a_type():
    model = small()
    model.graph.input[0].ClearField("type")
    with pytest.raises(UserError, match="input 'x' is of no type, must be of numbers"):
        load(model)
