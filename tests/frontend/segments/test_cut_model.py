"""Pitfalls of cutting a model: each piece is a model of its own, and together they are the whole."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import raptor
from raptor.common.errors import UnsupportedError, UserError
from raptor.frontend.proto import read_model
from tests.segmented_models import CHIP, checked, compiled, conv, cut_of, kinds, sandwich
from tests.tiny_models import make_model, node, random


def relu_in_the_middle() -> ModelProto:
    return sandwich([node("Relu", "a", "b", name="middle")])


def test_a_segment_of_one_node(tmp_path: Path):
    """One node between two convolutions makes three segments, and names stay."""
    found = cut_of(relu_in_the_middle(), "middle")
    assert kinds(found) == [("chip", {"first"}), ("host", {"middle"}), ("chip", {"last"})]
    assert [(s.reads, s.writes) for s in found.segments] == [(("x",), ("a",)), (("a",), ("b",)), (("b",), ("y",))]
    checked(relu_in_the_middle(), tmp_path / "out", host_nodes=("middle",))


def test_segments_share_no_core(tmp_path: Path):
    checked(relu_in_the_middle(), tmp_path / "out", host_nodes=("middle",))
    used = [{c.core for c in raptor.load(tmp_path / "out" / s).report.cores} for s in ("segment_000", "segment_002")]
    assert used[0]
    assert used[1]
    assert not used[0] & used[1]
    config = [(tmp_path / "out" / s / "config.json").read_bytes() for s in ("segment_000", "segment_002")]
    assert all(b'"core_cnt": 8' in c for c in config)


def test_a_model_of_the_chip_alone_is_as_ever(tmp_path: Path):
    """`host` changes no byte of a program that needs no host."""
    for name, host in (("plain", False), ("host", True)):
        raptor.compile(relu_in_the_middle(), **CHIP, host=host).save(tmp_path / name)
    plain, host = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()}
        for n in ("plain", "host")
    )
    assert plain == host


def test_bodies_read_outer_tensors(tmp_path: Path):
    """The branches of an If read a tensor of the chip that is none of its inputs."""
    branches = [
        helper.make_graph([node(op, "a", f"{op}.out", name=op)], op, [], [_info(f"{op}.out", [1, 4, 6, 6])])
        for op in ("Relu", "Neg")
    ]
    middle = [
        node("ReduceMax", "a", "m", name="max", keepdims=0),
        node("Greater", "m zero", "c", name="greater"),
        helper.make_node("If", ["c"], ["b"], "choice", then_branch=branches[0], else_branch=branches[1]),
    ]
    model = sandwich(middle, {"zero": np.float32(0.0).reshape(())})
    model.graph.value_info.append(_info("b", [1, 4, 6, 6]))
    found = cut_of(model)
    host = next(s for s in found.segments if s.kind == "host")
    assert "a" in host.reads
    assert "choice" in host.nodes
    checked(model, tmp_path / "out")


def _info(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def test_more_than_2_gib_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = relu_in_the_middle()
    monkeypatch.setattr("raptor.frontend.segments.submodel.read_model.LIMIT_BYTES", model.ByteSize() // 3)
    monkeypatch.setattr("raptor.frontend.proto.read_model._serialise", lambda proto, _: proto.SerializeToString())
    with pytest.raises(UserError, match=r"segment.* is larger than 2 GiB"):
        cut_of(model, "middle")
    assert model.ByteSize() > read_model.LIMIT_BYTES


def test_an_output_that_is_also_read(tmp_path: Path):
    model = relu_in_the_middle()
    model.graph.output.extend([_info("a", [1, 4, 6, 6]), _info("b", [1, 4, 6, 6])])
    found = cut_of(model, "middle")
    assert [s.writes for s in found.segments] == [("a",), ("b",), ("y",)]
    checked(model, tmp_path / "out", host_nodes=("middle",))


def test_one_weight_on_both_sides(tmp_path: Path):
    """Each segment has the weights that it reads, and no others."""
    model = sandwich(
        [node("Max", "a s", "m", name="bounded"), node("Sub", "m s", "b", name="middle")],
        {"s": random(1, 4, 1, 1, seed=3)},
    )
    found = cut_of(model, "middle")
    weights = [{t.name for t in onnx.load_from_string(s.onnx_bytes).graph.initializer} for s in found.segments]
    assert weights == [{"first.w", "s"}, {"s"}, {"last.w"}]
    checked(model, tmp_path / "out", host_nodes=("middle",))


def test_nodes_that_are_parts_of_one(tmp_path: Path):
    """GreaterOrEqual is a function of three nodes, which have its name; onnxruntime wants one name for each."""
    middle = [node("GreaterOrEqual", "a zero", "c", name="ge"), node("Cast", "c", "b", to=TensorProto.FLOAT)]
    model = sandwich(middle, {"zero": np.zeros((1, 4, 1, 1), np.float32)})
    checked(model, tmp_path / "out", host_nodes=("ge",))


def test_absent_inputs_stay_absent(tmp_path: Path):
    model = sandwich([node("Clip", "a - top", "b", name="middle")], {"top": np.float32(0.5).reshape(())})
    host = onnx.load_from_string(cut_of(model, "middle").segments[1].onnx_bytes).graph
    assert list(host.node[0].input) == ["a", "", "top"]
    assert [v.name for v in host.input] == ["a"]
    checked(model, tmp_path / "out", host_nodes=("middle",))


def test_operators_whose_types_onnx_does_not_infer(tmp_path: Path):
    """onnx infers nothing behind an operator of another domain; onnxruntime does."""
    triangle = helper.make_node("Trilu", ["a"], ["b"], "middle", domain="com.microsoft")
    model = sandwich([triangle], {})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = cut_of(model)
    assert kinds(found) == [("chip", {"first"}), ("host", {"middle"}), ("chip", {"last"})]
    assert next(c for c in found.crossings if c.name == "b").shape == (1, 4, 6, 6)
    checked(model, tmp_path / "out")


def test_indices_stay_on_the_host(tmp_path: Path):
    """The chip gets floats of known shape: computed indices and shapes are for the host."""
    first, w1 = conv("first", "x", "a", (3, 4))
    last, w2 = conv("last", "a", "y", (4, 2))
    nodes = [
        first,
        node("NonZero", "a", "where", name="where"),
        node("Transpose", "where", "rows", name="rows", perm=[1, 0]),
        node("GatherND", "a rows", "found", name="chosen"),
        last,
    ]
    model = make_model(nodes, {"x": [1, 3, 6, 6]}, {"y": 4, "found": 1}, {**w1, **w2})
    found = cut_of(model)
    assert kinds(found) == [("chip", {"first", "last"}), ("host", {"where", "rows", "chosen"})]
    assert next(c for c in found.crossings if c.name == "found").shape == (None,)
    checked(model, tmp_path / "out")


def _quantised(host_op: str) -> ModelProto:
    """x -> quantised -> dequantised -> conv -> y, and an operator on what was quantised."""
    nodes = [
        node("QuantizeLinear", "x s z", "q", name="quantise"),
        node("DequantizeLinear", "q s z", "d", name="dequantise"),
        node("DequantizeLinear", "wq s wz", "w", name="weights"),
        node("Conv", "d w", "c", name="conv"),
        node("QuantizeLinear", "c s z", "cq", name="requantise"),
        node("DequantizeLinear", "cq s z", "e", name="result"),
        node(host_op, "e", "y", name="last"),
    ]
    constants = {
        "s": np.float32(0.05).reshape(()),
        "z": np.uint8(120).reshape(()),
        "wz": np.int8(0).reshape(()),
        "wq": np.random.default_rng(0).integers(-20, 20, (2, 3, 3, 3)).astype(np.int8),
    }
    return make_model(nodes, {"x": [1, 3, 6, 6]}, ["y"], constants)


@pytest.mark.parametrize("given", ["requantise", "result"])
def test_pairs_are_not_cut_apart(given: str):
    """Quantisation and its inverse go together: floats cross the border."""
    found = cut_of(_quantised("Relu"), given)
    host = next(s for s in found.segments if s.kind == "host")
    assert {"requantise", "result"} <= set(host.nodes)
    assert {c.type for c in found.crossings} == {"tensor(float)"}


def test_quantised_segments_are_bit_true(tmp_path: Path):
    program = compiled(_quantised("Relu"), tmp_path / "out", host_nodes=("last",))
    verdict = program.validate(samples=2)
    assert verdict.passed
    figures = verdict.segments[0].integers
    assert figures is not None
    assert figures.compared > 0
    assert figures.differing == 0


def test_the_batch_is_bound_in_all_segments(tmp_path: Path):
    model = relu_in_the_middle()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    found = cut_of(model, "middle", dims={"N": 2})
    assert {c.shape[0] for c in found.crossings if c.shape} == {2}
    program = compiled(model, tmp_path / "out", dims={"N": 2}, host_nodes=("middle",))
    assert program.run({"x": random(2, 3, 6, 6)})["y"].shape == (2, 2, 6, 6)
    assert program.validate(samples=1).passed


def test_what_has_no_weights_is_for_the_host():
    """A chip segment pays only for layers with weights."""
    model = sandwich([node("Relu", "a", "r", name="relu"), node("Neg", "r", "b", name="neg")])
    assert kinds(cut_of(model, "first", "last")) == [("host", {"first", "relu", "neg", "last"})]


def test_extended_instructions_by_base_isa(tmp_path: Path):
    """Networks that end in a Softmax run in pimsim-nn, with the Softmax on the host."""
    first, weights = conv("first", "x", "a", (3, 4))
    model = make_model([first, node("Softmax", "a", "y", name="last", axis=1)], {"x": [1, 3, 6, 6]}, ["y"], weights)
    with pytest.raises(UnsupportedError, match=r"host=True would run 1 node on the host \(last\); 100.0% of the mult"):
        raptor.compile(model, **CHIP, base_isa=True)
    program = checked(model, tmp_path / "out", base_isa=True)
    assert not program.report.extended
    assert raptor.load(tmp_path / "out" / "segment_000").validate(samples=1).passed


def test_only_what_the_user_names():
    """Without `host`, other nodes that the chip cannot compute are an error, and the error says what would help."""
    model = sandwich([node("Relu", "a", "b", name="middle")])
    model.graph.node.append(node("Unique", "y", "u", name="unique"))
    model.graph.output.append(_info("u", [1]))
    with pytest.raises(UnsupportedError, match=r"unique \(Unique\): not supported"):
        raptor.compile(model, **CHIP, host_nodes=("middle",))
    with pytest.raises(UserError, match="host_ops='Relux': no such node is left"):
        raptor.compile(model, **CHIP, host_ops=("Relux",))
    with pytest.raises(UserError, match="host_ops='Relu': expected a sequence of names"):
        raptor.compile(model, **CHIP, host_ops="Relu")


def test_constant_outputs_come_from_the_host(tmp_path: Path):
    """An output that is known while compiling, beside one that the chip computes."""
    model = relu_in_the_middle()
    model.graph.node.append(node("Shape", "x", "sizes", name="sizes"))
    model.graph.output.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]))
    checked(model, tmp_path / "out", host_nodes=("middle",))


def test_multiply_accumulates_of_branches():
    """Branches of an If count as the larger one: a host that has them does not seem to compute nothing."""
    weights = {"small": random(3, 2), "large": random(3, 6)}
    branches = [
        helper.make_graph(
            [node("MatMul", f"a {name}", f"{name}.m"), node("ReduceSum", f"{name}.m axes", f"{name}.y", keepdims=1)],
            name,
            [],
            [_info(f"{name}.y", [4, 1])],
        )
        for name in weights
    ]
    choice = helper.make_node("If", ["c"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1])
    nodes = [
        node("MatMul", "x w", "a"),
        node("ReduceMax", "a", "m", keepdims=0),
        node("Greater", "m zero", "c"),
        choice,
    ]
    constants = {**weights, "w": random(6, 3), "axes": np.array([1]), "zero": np.float32(0)}
    found = cut_of(make_model(nodes, {"x": [4, 6]}, {"y": 2}, constants, opset=18))
    assert [(s.kind, s.macs) for s in found.segments] == [("chip", 4 * 6 * 3), ("host", 4 * 3 * 6)]


def test_a_product_behind_an_operator_of_another_domain(tmp_path: Path):
    """onnxruntime knows the Scaler of scikit-learn's exports, but not its shape. Of three dimensions it stays one."""
    scaler = node("Scaler", "x", "a", name="scaler", domain="ai.onnx.ml", offset=[0.5, 0.25], scale=[2.0, 1.0])
    model = make_model([scaler, node("MatMul", "a w", name="product")], {"x": [1, 2, 6]}, {"y": 3}, {"w": random(6, 4)})
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    assert kinds(cut_of(model)) == [("host", {"scaler"}), ("chip", {"product"})]
    checked(model, tmp_path / "out")
