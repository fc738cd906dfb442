"""Bad files, shapes and weights; what loading promises as a whole."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from raptor.common.errors import InternalError, UnsupportedError, UserError
from raptor.common.option_spelling import spell_as_flags
from raptor.frontend import load
from raptor.frontend.registry import OperatorImporter
from raptor.graph.evaluate import evaluate_graph
from raptor.options import ModelInputs
from tests.tiny_models import compare, golden, make_model, node, random, single


def conv_model(batch: int | str = 1) -> ModelProto:
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c")]
    return make_model(nodes, {"x": [batch, 3, 5, 5]}, ["y"], {"w": random(20, 3, 3, 3), "b": random(20)})


# --- files -----------------------------------------------------------------------------------------------------------


def test_path_and_proto_are_the_same_model(tmp_path: Path):
    model = conv_model()
    before = model.SerializeToString()
    path = tmp_path / "net.v1.onnx"
    path.write_bytes(before)
    from_path, from_text, from_proto = load(path), load(str(path)), load(model)
    assert from_path.onnx_bytes == before
    assert str(from_path.graph).replace("net.v1", "tiny") == str(from_text.graph).replace("net.v1", "tiny")
    assert str(from_path.graph).replace("net.v1", "tiny") == str(from_proto.graph)
    assert (from_path.name, from_proto.name) == ("net.v1", "tiny")
    assert model.SerializeToString() == before


def test_loads_are_equal():
    first, second = load(conv_model()), load(conv_model())
    assert first.onnx_bytes == second.onnx_bytes
    assert str(first.graph) == str(second.graph)
    assert first.graph.tensors == second.graph.tensors
    for a, b in zip(first.graph.nodes, second.graph.nodes, strict=True):
        assert (a.name, a.op_type, a.inputs, a.output) == (b.name, b.op_type, b.inputs, b.output)
    np.testing.assert_array_equal(first.graph.nodes[0].operator.weights, second.graph.nodes[0].operator.weights)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"net\.onnx: no such file"),
        (b"", r"net\.onnx: the file is empty"),
        (b"this is not protobuf", r"net\.onnx: not an ONNX model"),
        (b"\x08\x08", r"net\.onnx: not an ONNX model: it has no graph"),
        (conv_model().SerializeToString()[:-40], r"net\.onnx: not an ONNX model, or truncated"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes | None, reason: str):
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=reason):
        load(path)


def test_a_directory_is_no_model(tmp_path: Path):
    with pytest.raises(UserError, match="a directory, where an ONNX model is expected"):
        load(tmp_path)


def test_a_file_above_the_limit_of_onnx(tmp_path: Path):
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(UserError, match=r"big\.onnx: larger than 2 GiB"):
        load(path)


def save_external(folder: Path) -> tuple[Path, ModelProto]:
    """A model with all its weights in weights.bin."""
    model = conv_model()
    path = folder / "net.onnx"
    onnx.save(conv_model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path, model


def test_external_data_is_embedded(tmp_path: Path):
    path, model = save_external(tmp_path)
    loaded = load(path)
    x = random(1, 3, 5, 5)
    embedded = ModelProto.FromString(loaded.onnx_bytes)
    np.testing.assert_array_equal(golden(embedded, {"x": x})["y"], golden(model, {"x": x})["y"])
    np.testing.assert_array_equal(
        evaluate_graph(loaded.graph, {"x": x})["y"], evaluate_graph(load(model).graph, {"x": x})["y"]
    )


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("location", "/etc/passwd", "weights of 'w': '/etc/passwd' is not a file inside the model's folder"),
        ("location", "../weights.bin", "'../weights.bin' is not a file inside"),
        ("location", "sub/../../weights.bin", "is not a file inside"),
        ("location", "C:\\weights.bin", "is not a file inside"),
        ("location", "", "'' is not a file inside"),
        ("location", "other.bin", r"other\.bin: no such file"),
        ("location", "link.bin", r"link\.bin is a link"),
        ("location", "linked/weights.bin", "linked is a link"),
        ("length", "999999", r"weights\.bin ends before byte"),
        ("length", "-4", r"weights\.bin ends before byte"),
        ("offset", "many", "offset and length must be numbers"),
        ("length", "8", "weights 'w'|not a valid ONNX model"),
    ],
)
def test_bad_external_data(tmp_path: Path, key: str, value: str, reason: str):
    path, _ = save_external(tmp_path)
    (tmp_path / "link.bin").symlink_to("weights.bin")
    (tmp_path / "linked").symlink_to(tmp_path)
    model = onnx.load(path, load_external_data=False)
    entries = [e for e in model.graph.initializer[0].external_data if e.key == key]
    entries[0].value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=reason):
        load(path)


def test_external_data_of_a_branch(tmp_path: Path):
    """External data of a branch is embedded as carefully as other weights."""
    w = helper.make_tensor("w", TensorProto.FLOAT, [3], random(3).tobytes(), raw=True)
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, "x w", name, name=name)], name, [], [helper.make_empty_tensor_value_info(name)], [w]
        )
        for name, op in (("then", "Add"), ("else", "Mul"))
    }
    choose = helper.make_node("If", ["c"], ["y"], name="choose", **branches)
    model = make_model([choose], {"x": (2, 3)}, {"y": 2}, {"c": np.array(True)})
    wanted = golden(model, {"x": random(2, 3)})["y"]
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = load(path)
    np.testing.assert_array_equal(golden(ModelProto.FromString(loaded.onnx_bytes), {"x": random(2, 3)})["y"], wanted)
    np.testing.assert_array_equal(evaluate_graph(loaded.graph, {"x": random(2, 3)})["y"], wanted)
    model = onnx.load(path, load_external_data=False)
    entries = model.graph.node[0].attribute[0].g.initializer[0].external_data
    next(e for e in entries if e.key == "location").value = "/etc/passwd"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="'/etc/passwd' is not a file inside the model's folder"):
        load(path)


def test_external_data_needs_a_path(tmp_path: Path):
    path, _ = save_external(tmp_path)
    with pytest.raises(UserError, match="the weights are in other files; give the path"):
        load(onnx.load(path, load_external_data=False))


def test_external_data_above_the_limit(tmp_path: Path):
    path, _ = save_external(tmp_path)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate(2**31)
    model = onnx.load(path, load_external_data=False)
    next(e for e in model.graph.initializer[0].external_data if e.key == "length").value = str(2**31)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="with its weights is larger than 2 GiB"):
        load(path)


# --- the standard, types and weights ---------------------------------------------------------------------------------


def test_invalid_models():
    model = make_model([node("Relu", "nowhere")], {"x": [1, 2, 3, 3]}, ["y"])
    with pytest.raises(UserError, match=r"not a valid ONNX model: .*nowhere"):
        load(model)


def test_onnxruntime_refuses():
    nodes = [node("Relu", "x", "r", name="same"), node("Relu", "r", name="same")]
    with pytest.raises(UserError, match=r"onnxruntime refuses the model: .*two nodes with same node name \(same\)"):
        load(make_model(nodes, {"x": [1, 2, 3, 3]}, ["y"]))


def test_input_types():
    model = single("Relu", (1, 2))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(UserError, match="input 'x' is string, must be of numbers, or a constant"):
        load(model)


def test_inputs_are_tensors():
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [node("SequenceAt", "x i")],
        "g",
        [sequence],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [onnx.numpy_helper.from_array(np.array(0), "i")],
    )
    with pytest.raises(UserError, match="input 'x' is not a tensor"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_weight_types():
    model = make_model(
        [node("MatMul", "x w", "m"), node("Relu", "m")], {"x": [1, 2]}, {"y": 2}, {"w": random(2, 3).astype("f8")}
    )
    with pytest.raises(UserError, match=r"my_matmul \(MatMul\): .* 'x' is float32, but its input 'w' is float64"):
        load(model)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("as_node", [False, True])
def test_weights_are_finite(value: float, as_node: bool):
    weights = random(2, 3)
    weights[0, 1] = value
    nodes, constants = [node("MatMul", "x w")], {"w": weights}
    if as_node:
        nodes, constants = [node("Constant", "", "w", value=onnx.numpy_helper.from_array(weights)), *nodes], {}
    with pytest.raises(UserError, match="weights 'w': 1 of 6 values are not finite"):
        load(make_model(nodes, {"x": [1, 2]}, {"y": 2}, constants))


# --- shapes ----------------------------------------------------------------------------------------------------------


def open_model(*shape: int | str | None) -> ModelProto:
    return make_model([node("Relu", "x")], {"x": shape}, {"y": len(shape)})


def test_binding_a_shape():
    model = load(open_model("N", 3, "h", None), ModelInputs(shapes={"x": (2, 3, 4, 5)}))
    assert model.graph.tensors["y"].shape == (2, 3, 4, 5)
    assert model.notes == ("input 'x' bound to 2,3,4,5",)
    assert ModelProto.FromString(model.onnx_bytes).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


def test_a_named_dimension_is_bound_everywhere():
    model = make_model([node("Add", "a b")], {"a": ["N", 3], "b": ["N", 3]}, {"y": 2})
    assert load(model, ModelInputs(shapes={"a": [4, 3]})).graph.tensors["b"].shape == (4, 3)
    with spell_as_flags(), pytest.raises(UserError, match=r"--shape b=5,3: dimension 0 is 4 in the model \(N,3\)"):
        load(model, ModelInputs(shapes={"a": [4, 3], "b": [5, 3]}))


@pytest.mark.parametrize(
    ("shape", "given", "reason"),
    [
        ((1, 3, "h", "w"), {}, r"  input 'x' \(1,3,h,w\): h, w have no size\ngive .* --dim h=SIZE --dim w=SIZE$"),
        (("N", "f"), {}, r"  input 'x' \(1,f\): f has no size\ngive them with --dim f=SIZE$"),
        ((1, 3, 8, 8), {"z": (1,)}, r"--shape: no input 'z'; the inputs are x"),
        ((1, 3, 8, 8), {"x": (1, 3, 8)}, r"--shape x=1,3,8: the model has 4 dimensions: 1,3,8,8"),
        ((1, 3, 8, 8), {"x": (1, 3, 9, 8)}, r"--shape x=1,3,9,8: dimension 2 is 8 in the model"),
        (("N", 3, 8, 8), {"x": (0, 3, 8, 8)}, r"--shape x=0,3,8,8: sizes must be at least 1"),
        (("N", 3, "N", 8), {"x": (1, 3, 8, 8)}, r"dimension 2 is 1 in the model \(N,3,N,8\)"),
    ],
)
def test_bad_shapes(shape: tuple[Any, ...], given: dict[str, Any], reason: str):
    with spell_as_flags(), pytest.raises(UserError, match=reason):
        load(open_model(*shape), ModelInputs(shapes=given))


# --- unsupported nodes -----------------------------------------------------------------------------------------------


def test_all_unsupported_nodes_at_once():
    nodes = [
        node("Conv", "x x", "c", pads=[3, 3, 3, 3]),
        node("Det", "c", "e", name=""),
        node("Relu", "e", "r"),
        node("Pow", "r e", "m"),
        node("RandomNormalLike", "m"),
    ]
    model = make_model(nodes, {"x": [1, 1, 4, 4]}, ["y"])
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert str(caught.value).splitlines() == [
        "4 nodes cannot be compiled:",
        "  my_conv (Conv): 'x' must be a constant",
        "  Det -> e (Det): matrices of 7 x 7; at most 4 x 4",
        "  my_pow (Pow): neither base nor exponent is a constant: the sign of a negative base would be lost",
        "  my_randomnormallike (RandomNormalLike): not supported",
    ]


def test_operators_nobody_knows():
    nodes = [node("Relu", "x", "r"), node("Fancy", "r", "f", domain="my.domain"), node("Wild", "f")]
    model = make_model(nodes, {"x": [1, 2, 4, 4]}, ["y"])
    model.opset_import.append(helper.make_opsetid("my.domain", 1))
    with pytest.raises(
        UnsupportedError, match=r"(?s)my_fancy \(Fancy\): .* domain my\.domain.*my_wild \(Wild\): not supp"
    ):
        load(model)
    del model.graph.node[2]
    model.graph.node[1].output[0] = "y"
    with pytest.raises(
        UnsupportedError, match=r"my_fancy \(Fancy\): operators of the domain my\.domain are not supported"
    ):
        load(model)


def test_operators_too_old():
    model = make_model(
        [node("BatchNormalization", "x c c c c", "y m v p q", is_test=0)],
        {"x": [1, 2, 4, 4]},
        ["y"],
        {"c": random(2) ** 2},
        opset=6,
    )
    with pytest.raises(UserError, match=r"Could not find an implementation for BatchNormalization\(6\)"):
        load(model)


def test_shapes_known_only_at_run_time():
    nodes = [node("NonZero", "x", "i"), node("Cast", "i", "f", to=1), node("Relu", "f")]
    with pytest.raises(UnsupportedError, match=r"1 node cannot be compiled:\n  my_nonzero \(NonZero\): not supported$"):
        load(make_model(nodes, {"x": [1, 2]}, {"y": 2}))
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s")]
    model = make_model(nodes, {"x": [1, 2]}, {"y": 2})
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    with pytest.raises(UserError, match=r"input 's' is int64 and must be a constant \(--set s=VALUE\)"):
        load(model)


def test_a_failing_importer_is_our_fault(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr("raptor.frontend.import_graph.find_importer", lambda *_: OperatorImporter("Relu", 1, "", fail))
    with pytest.raises(InternalError, match=r"import of my_relu \(Relu\) failed: ZeroDivisionError\('by accident'\)"):
        load(single("Relu", (1, 2)))


# --- the rest --------------------------------------------------------------------------------------------------------


def test_weights_that_are_inputs_as_well():
    model = conv_model()
    model.ir_version = 3
    model.opset_import[0].version = 9
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in model.graph.initializer
    )
    assert load(model).graph.inputs == ("x",)


def test_the_newest_ir_version_is_read():
    model = conv_model()
    model.ir_version = 14
    assert load(model).graph.outputs == ("y",)


def test_a_model_with_local_functions():
    twice = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = make_model([node("Twice", "x", domain="local")], {"x": [1, 2, 4, 4]}, ["y"])
    model.functions.append(twice)
    model.opset_import.append(helper.make_opsetid("local", 1))
    compare(model)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]):
    compare(conv_model())
    with pytest.raises(UserError, match="two nodes with same node name"):
        load(
            make_model(
                [node("Relu", "x", "r", name="same"), node("Relu", "r", name="same")], {"x": [1, 2, 3, 3]}, ["y"]
            )
        )
    assert capfd.readouterr() == ("", "")


def test_importing_is_cheap():
    script = "import sys, raptor.frontend; print([m for m in ('onnx', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18", "resnet50", "vgg16", "googlenet", "squeezenet"])
def test_real_topologies(name: str):
    models = pytest.importorskip("models")
    options = {} if name in ("mlp", "lenet5") else {"width": 0.125, "image_size": 64}
    compare(models.build(name, **options), tolerance=2e-3)
