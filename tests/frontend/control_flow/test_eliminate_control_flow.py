"""Branches and loops that constants decide, against onnxruntime; those that they do not, and their bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from raptor.common.errors import UnsupportedError, UserError
from raptor.frontend import load
from raptor.frontend.control_flow import eliminate_control_flow
from raptor.frontend.inputs.bind_inputs import bind_inputs
from raptor.graph.evaluate import evaluate_graph
from raptor.options import ModelInputs
from tests.tiny_models import golden, random

Array = np.ndarray[Any, Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, kind: int = FLOAT, shape: Sequence[int | str | None] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def op(op_type: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"n_{output}", **attributes)


def body(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, Array] | None = None,
) -> GraphProto:
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    return helper.make_graph(nodes, "body", inputs, outputs, weights)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> ModelProto:
    graph = body(nodes, inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], constants)
    for output in graph.output:
        output.CopyFrom(value(output.name, shape=[None] * 2))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(proto: ModelProto, constants: Mapping[str, Any] | None = None) -> list[str]:
    """Compares with onnxruntime; returns the operators that are left."""
    # onnxruntime's optimiser would resolve some branches by itself.
    ours = ModelProto.FromString(proto.SerializeToString())
    bind_inputs(ours, ModelInputs(constants=constants or {}))
    assert eliminate_control_flow.eliminate_control_flow(ours) == {}
    assert not {"If", "Loop", "Scan"} & {n.op_type for n in ours.graph.node}
    loaded = load(proto, ModelInputs(constants=constants or {}))
    shapes = {n: loaded.graph.tensors[n].shape for n in loaded.graph.inputs}
    inputs = {n: random(*shape, seed=k) for k, (n, shape) in enumerate(shapes.items())}
    wanted = golden(proto, inputs | dict(loaded.constants))
    found = evaluate_graph(loaded.graph, inputs)
    for output in loaded.graph.outputs:
        np.testing.assert_allclose(found[output], wanted[output], rtol=1e-5, atol=1e-6)
    return [n.op_type for n in loaded.graph.nodes]


# --- If --------------------------------------------------------------------------------------------------------------


def choice(condition: Sequence[NodeProto], inputs: Sequence[ValueInfoProto] = (), **constants: Any) -> ModelProto:
    """y = relu(x) + 1 where `c`, else x w."""
    one, w = np.array([1], np.float32), random(3, 3)
    then = body([op("Relu", "x", "h"), op("Add", "h one", "t")], (), [value("t")], {"one": one})
    other = body([op("MatMul", "x w", "e")], (), [value("e")], {"w": w})
    node = helper.make_node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=other)
    return model([*condition, node], [value("x", shape=[2, 3]), *inputs], ["y"], constants)


@pytest.mark.parametrize(("rate", "left"), [(16000, ["Relu", "Add"]), (8000, ["MatMul"])])
def test_a_branch_on_a_constant_input(rate: int, left: list[str]):
    proto = choice([op("Equal", "sr k", "c")], [value("sr", INT64, [])], k=np.array(16000))
    assert check(proto, {"sr": rate}) == left


def test_a_branch_on_a_flag():
    proto = choice([op("Identity", "flag", "c")], [value("flag", BOOL, [1])])
    assert check(proto, {"flag": "true"}) == ["Relu", "Add"]
    assert check(proto, {"flag": False}) == ["MatMul"]


def test_a_branch_on_a_string():
    proto = choice([op("Equal", "mode k", "c")], [value("mode", TensorProto.STRING, [])], k=np.array("fast", object))
    proto.opset_import[0].version = 19
    assert load(proto, ModelInputs(constants={"mode": "fast"})).graph.nodes[0].op_type == "Relu"
    assert load(proto, ModelInputs(constants={"mode": "slow"})).graph.nodes[0].op_type == "MatMul"


@pytest.mark.parametrize(("wanted", "left"), [(2, ["Relu", "Add"]), (3, ["MatMul"])])
def test_a_branch_on_the_shape_of_a_computed_tensor(wanted: int, left: list[str]):
    nodes = [op("MatMul", "x v", "p"), op("Shape", "p", "s"), op("Gather", "s zero", "g"), op("Equal", "g k", "c")]
    proto = choice(nodes, k=np.array(wanted), zero=np.array(0), v=random(3, 300))
    assert check(proto) == left


def test_nested_branches_with_the_same_names():
    """Each branch defines `h`, and the inner branches read the `h` of their outer branch."""
    inner = [
        body([op("Add", "h x", "h2"), op("Neg", "h2", "o")], (), [value("o")]),
        body([op("Mul", "h x", "h2"), op("Identity", "h2", "o")], (), [value("o")]),
    ]
    branches: list[GraphProto] = []
    for k, operator in enumerate(("Relu", "Sigmoid")):
        node = helper.make_node("If", ["d"], ["t"], then_branch=inner[k], else_branch=inner[1 - k])
        branches.append(body([op(operator, "x", "h"), node], (), [value("t")]))
    first = helper.make_node("If", ["c"], ["a"], then_branch=branches[0], else_branch=branches[1])
    second = helper.make_node("If", ["d"], ["b"], then_branch=branches[1], else_branch=branches[0])
    nodes = [first, second, op("Sub", "a b", "y")]
    inputs = [value("x", shape=[2, 3]), value("c", BOOL, []), value("d", BOOL, [])]
    for c in (False, True):
        for d in (False, True):
            check(model(nodes, inputs, ["y"]), {"c": c, "d": d})


def test_constants_of_a_branch_that_stays_inside_one_that_does_not():
    """Each constant is moved out once: a model with two of one name is none."""
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(random(2, 3)))
    inner = [body([constant, op("Add", "x k", "t")], (), [value("t")]), body([op("Neg", "x", "t")], (), [value("t")])]
    stays = helper.make_node("If", ["d"], ["t"], "stays", then_branch=inner[0], else_branch=inner[1])
    outer = [body([stays], (), [value("t")]), body([op("Identity", "x", "t")], (), [value("t")])]
    node = helper.make_node("If", ["c"], ["y"], then_branch=outer[0], else_branch=outer[1])
    proto = model([node], [value("x", shape=[2, 3]), value("c", BOOL, []), value("d", BOOL, [])], ["y"])
    bind_inputs(proto, ModelInputs(constants={"c": True}))
    assert list(eliminate_control_flow.eliminate_control_flow(proto)) == ["y"]
    onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_branch_that_hands_on_what_is_outside():
    nodes = [op("Relu", "x", "r")]
    then = body([op("Identity", "r", "a"), op("Identity", "r", "b")], (), [value("a"), value("b")])
    other = body([op("Identity", "x", "a"), op("Neg", "x", "b")], (), [value("a"), value("b")])
    nodes.append(helper.make_node("If", ["c"], ["y", "z"], then_branch=then, else_branch=other))
    for c in (False, True):
        check(model(nodes, [value("x", shape=[2, 3]), value("c", BOOL, [])], ["y", "z"]), {"c": c})


def test_a_branch_of_constants_only():
    """The output is one of the constants that are moved out of the branches."""
    then = body([], (), [value("k", FLOAT, [2, 3])], {"k": random(2, 3)})
    other = body([helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(random(2, 3, seed=1)))], (),
                 [value("k", FLOAT, [2, 3])])  # fmt: skip
    nodes = [helper.make_node("If", ["c"], ["w"], then_branch=then, else_branch=other), op("Add", "x w", "y")]
    for c in (False, True):
        check(model(nodes, [value("x", shape=[2, 3]), value("c", BOOL, [])], ["y"]), {"c": c})


def test_weights_of_the_branch_not_taken_do_not_matter():
    """The weights may even be no numbers."""
    then = body([op("Add", "x k", "t")], (), [value("t")], {"k": np.array([np.nan], np.float32)})
    other = body([op("Relu", "x", "e")], (), [value("e")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [value("x", shape=[2, 3]), value("c", BOOL, [])]
    assert check(model([node], inputs, ["y"]), {"c": False}) == ["Relu"]
    with pytest.raises(UserError, match="weights 'k': 1 of 1 values are not finite"):
        load(model([node], inputs, ["y"]), ModelInputs(constants={"c": True}))


def test_a_condition_on_data_is_refused_and_says_on_what():
    nodes = [op("ReduceMax", "x", "m", keepdims=0), op("Greater", "m zero", "c")]
    proto = choice(nodes, zero=np.array(0, np.float32))
    with pytest.raises(UnsupportedError, match=r"choose \(If\): only supported where constants .* not the input 'x'$"):
        load(proto)


def test_a_random_condition_is_no_constant():
    proto = choice([op("RandomUniform", "", "u", shape=[1]), op("Greater", "u k", "c")], k=np.array(0.5, np.float32))
    with pytest.raises(UnsupportedError, match="RandomUniform"):
        load(proto)


# --- Loop ------------------------------------------------------------------------------------------------------------


def loop(trips: int | None, end: int | None, opset: int = 17, outputs: str = "y all") -> ModelProto:
    """a <- relu(a w) + turn while turn + 1 != end; `all`: the rows of all turns. Not sorted by name on purpose."""
    inner = [
        op("MatMul", "a w", "p"),
        op("Cast", "turn", "t", to=FLOAT),
        op("Relu", "p", "r"),
        op("Add", "r t", "a2"),
        op("ReduceMax", "a2", "row", axes=[0], keepdims=0),
        op("Add", "turn one", "next"),
        op("Equal", "next end", "is_end"),
        op("Not", "is_end", "go_on"),
    ]  # fmt: skip
    weights: dict[str, Array] = {"w": random(3, 3), "one": np.array(1), "end": np.array(-1 if end is None else end)}
    graph = body(
        inner,
        [value("turn", INT64, []), value("c", BOOL, []), value("a", FLOAT, [2, 3])],
        [value("go_on", BOOL, []), value("a2", FLOAT, [2, 3]), value("row", FLOAT, [3])],
        weights,
    )
    given = ["" if trips is None else "trips", "" if end is None else "start", "x"]
    node = helper.make_node("Loop", given, ["y", "all"], name="repeat", body=graph)
    constants = {"trips": np.array(trips or 0), "start": np.array(True)}
    return model([node], [value("x", shape=[2, 3])], outputs.split(), constants, opset)


@pytest.mark.parametrize(("trips", "end"), [(1, None), (4, None), (4, 2), (2, 4), (None, 3)])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_loop(trips: int | None, end: int | None, opset: int):
    turns = min(n for n in (trips, end) if n is not None)
    assert check(loop(trips, end, opset)).count("MatMul") == turns


def test_a_loop_keeps_one_copy_of_its_weights():
    loaded = load(loop(50, None, outputs="y"))
    assert len(loaded.onnx_bytes) < 5000
    weights = {id(n.operator.weights) for n in loaded.graph.nodes if hasattr(n.operator, "weights")}
    assert len([n for n in loaded.graph.nodes if n.op_type == "MatMul"]) == 50
    assert len(weights) <= 50


def test_names_of_turns():
    names = [n.name for n in load(loop(3, None, outputs="y")).graph.nodes if n.op_type == "MatMul"]
    assert names == ["n_p", "n_p.2", "n_p.3"]


def test_trips_that_an_input_gives():
    proto = loop(2, None, outputs="y")
    proto.graph.input.append(value("n", INT64, []))
    proto.graph.node[0].input[0] = "n"
    assert check(proto, {"n": 5}).count("MatMul") == 5


def test_no_turn_leaves_the_state_as_it_was():
    assert check(loop(0, None, outputs="y")) == ["Identity"]


def test_no_turn_makes_no_rows():
    with pytest.raises(UnsupportedError, match=r"repeat \(Loop\): .* not 'all', which is empty"):
        load(loop(0, None))


def test_a_loop_in_a_loop_with_a_branch():
    then = body([op("Neg", "b", "t")], (), [value("t")])
    other = body([op("Sigmoid", "b", "e")], (), [value("e")])
    inner = body(
        [
            op("Equal", "j one", "q"),
            helper.make_node("If", ["q"], ["b2"], name="branch", then_branch=then, else_branch=other),
            op("Identity", "d", "d2"),
        ],
        [value("j", INT64, []), value("d", BOOL, []), value("b")],
        [value("d2", BOOL, []), value("b2")],
    )
    outer = body(
        [
            op("Add", "i one", "often"),
            helper.make_node("Loop", ["often", "c", "a"], ["a1"], name="inner", body=inner),
            op("Add", "a1 x", "a2"),
            op("Identity", "c", "c2"),
        ],
        [value("i", INT64, []), value("c", BOOL, []), value("a")],
        [value("c2", BOOL, []), value("a2")],
        {"one": np.array(1)},
    )
    node = helper.make_node("Loop", ["n", "go", "x"], ["y"], name="outer", body=outer)
    constants = {"n": np.array(3), "go": np.array(True)}
    left = check(model([node], [value("x", shape=[2, 3])], ["y"], constants))
    assert (left.count("Sigmoid"), left.count("Neg"), left.count("Add")) == (4, 2, 3)


def test_a_loop_that_data_ends_is_refused():
    proto = loop(4, 3)
    graph = proto.graph.node[0].attribute[0].g
    for node in graph.node:
        if node.output[0] == "is_end":
            node.input[0] = "whole"
    graph.node.insert(4, op("ReduceMax", "a2", "top", keepdims=0))
    graph.node.insert(5, op("Cast", "top", "whole", to=INT64))
    with pytest.raises(UnsupportedError, match=r"repeat \(Loop\): only supported .* not the input 'x'"):
        load(proto)


def test_loops_have_a_bound(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UnsupportedError, match=r"repeat \(Loop\): .* not more than 1024 turns"):
        load(loop(2**40, None, outputs="y"))
    with pytest.raises(UnsupportedError, match="more than 1024 turns"):
        load(loop(None, 2**40, outputs="y"))
    monkeypatch.setattr(eliminate_control_flow, "MOST_NODES", 40)
    with pytest.raises(UserError, match=r"repeat \(Loop\): unrolled, the loops have more than 40 nodes"):
        load(loop(10, None, outputs="y"))


def test_an_endless_loop_is_refused():
    with pytest.raises(UnsupportedError, match="more than 1024 turns"):
        load(loop(None, None, outputs="y"))


def test_a_condition_is_computed_from_small_tensors_only():
    """A few bytes of a model must not make a gigabyte."""
    shape = np.array([2**20, 2**8])
    nodes = [op("ConstantOfShape", "k", "big"), op("ReduceMax", "big", "m", keepdims=0), op("Cast", "m", "c", to=BOOL)]
    proto = choice(nodes, k=shape)
    assert eliminate_control_flow.eliminate_control_flow(proto)["y"].endswith(
        "not 'big', whose size is not known, or large"
    )


# --- Scan ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("out_axis", [0, 1])
@pytest.mark.parametrize("out_backwards", [0, 1])
def test_a_scan(backwards: int, axis: int, out_axis: int, out_backwards: int):
    graph = body(
        [op("Add", "h s", "sum"), op("Tanh", "sum", "h2"), op("Neg", "h2", "row")],
        [value("h", FLOAT, [3]), value("s", FLOAT, [3])],
        [value("h2", FLOAT, [3]), value("row", FLOAT, [3])],
    )
    node = helper.make_node(
        "Scan",
        ["h0", "x"],
        ["last", "y"],
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[backwards],
        scan_output_axes=[out_axis],
        scan_output_directions=[out_backwards],
    )
    shape = [4, 3] if axis == 0 else [3, 4]
    proto = model([node], [value("h0", shape=[3]), value("x", shape=shape)], ["y"])
    assert check(proto).count("Tanh") == 4
