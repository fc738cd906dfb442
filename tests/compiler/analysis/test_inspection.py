"""`raptor inspect`: counts against published ones, unsupported models, the command."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
import raptor
from raptor.compiler.analysis.inspection import ModelInspection, format_totals, inspect
from raptor.compiler.analysis.zero_counts import ZeroInfo
from raptor.tools.cli import app
from raptor.tools.quantise import quantize
from tests.tiny_models import make_model, node, random


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "resnet18.onnx"
    path.write_bytes(models.build("resnet18", seed=0).SerializeToString())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("xbar", "xbars", "percent"), [(128, 794, 89.8), (256, 295, 60.4), (512, 198, 22.5)])
def test_published_counts_of_resnet18(resnet18: Path, xbar: int, xbars: int, percent: float) -> None:
    found = inspect(resnet18, xbar=xbar)
    assert found.parameters == 11_689_512
    assert round(found.weights / 1e6, 3) == 11.679
    assert round(found.macs / 1e9, 3) == 1.814
    assert (found.xbars, round(100 * found.utilisation, 1)) == (xbars, percent)
    assert not found.unsupported


def _tiny() -> onnx.ModelProto:
    constants = {"w": random(6, 4, 3, 3), "v": random(6, 5)}
    nodes = [node("Conv", "x w", "c", name="conv"), node("Flatten", "c", "f"), node("Gemm", "f v")]
    return make_model(nodes, {"x": [1, 4, 3, 3]}, {"y": 2}, constants)


def test_counts_of_a_tiny_model() -> None:
    found = inspect(_tiny(), xbar=4, xbars_per_core=8)
    assert found.parameters == found.weights == found.macs == 6 * 4 * 9 + 6 * 5
    assert [(x.node, x.matrices, x.xbars) for x in found.layers] == [("conv", 18, 18), ("my_gemm", 4, 4)]
    assert found.cores_needed == 3
    assert {o.op_type: (o.nodes, o.status) for o in found.operators} == {
        "Conv": (1, "supported"),
        "Flatten": (1, "supported"),
        "Gemm": (1, "supported"),
    }


def test_as_many_crossbars_as_the_compiler_uses() -> None:
    report = raptor.compile(_tiny(), xbar=4, xbars_per_core=8, cores=8, mapping="raptor").report
    found = inspect(_tiny(), xbar=4, xbars_per_core=8)
    assert (found.matrices, found.xbars, found.cores_needed) == (report.matrices, report.xbars_used, report.cores_used)


@pytest.mark.parametrize("weights", [8, 4])
def test_a_quantised_model_has_the_parameters_of_its_float_model(weights: int, tmp_path: Path) -> None:
    model = models.build("lenet5", seed=0)
    path = quantize(model, weights=weights, per_channel=True).save(tmp_path / "quantised.onnx")
    found, of_floats = inspect(path), inspect(model)
    assert (found.parameters, found.weights, found.macs) == (of_floats.parameters, of_floats.weights, of_floats.macs)
    assert found.utilisation == pytest.approx(of_floats.utilisation * weights / 8, abs=1e-4)
    report = raptor.compile(path, mapping="raptor").report
    assert [x.utilisation for x in report.layers if x.matrices] == [x.utilisation for x in found.layers]


def test_operators_of_integers() -> None:
    found = inspect(helper.make_model(_integers(), opset_imports=_OPSETS))
    assert {o.op_type: o.status for o in found.operators} == {"QGemm": "supported", "QLinearSigmoid": "supported"}
    assert found.parameters == 4 * 3 + 3
    assert not found.unsupported


_OPSETS = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]


def _integers() -> onnx.GraphProto:
    scale, zero = np.float32(0.5), np.int8(0)
    weights = np.arange(12, dtype=np.int8).reshape(4, 3)
    constants = {"s": scale, "z": zero, "w": weights, "ws": np.full(3, 0.5, np.float32), "wz": np.zeros(3, np.int8)}
    constants["b"] = np.arange(3, dtype=np.int32)
    nodes = [
        helper.make_node("QGemm", ["x", "s", "z", "w", "ws", "wz", "b", "s", "z"], ["c"], domain="com.microsoft"),
        helper.make_node("QLinearSigmoid", ["c", "s", "z", "s", "z"], ["y"], domain="com.microsoft"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.INT8, [1, k]) for n, k in (("x", 4), ("y", 3))]
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return helper.make_graph(nodes, "integers", values[:1], values[1:], arrays)


def _unsupported() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c", name="conv"),
        node("RandomUniformLike", "c", "d"),
        node("Inverse", "c", name="i", domain="a.b"),
    ]
    model = make_model(nodes, {"x": [1, 4, 5, 5]}, ["y"], {"w": random(6, 4, 3, 3)})
    model.opset_import.append(onnx.helper.make_opsetid("a.b", 1))
    return model


def test_unsupported_nodes_are_listed() -> None:
    found = inspect(_unsupported(), xbar=4)
    assert [(n.node, n.op_type) for n in found.unsupported] == [
        ("my_randomuniformlike", "RandomUniformLike"),
        ("i", "Inverse"),
    ]
    assert found.parameters == 6 * 4 * 9


def test_layers_of_a_model_with_unsupported_nodes() -> None:
    nodes = [node("Conv", "x w", "c", name="conv"), node("RandomUniformLike", "c", "y")]
    found = inspect(make_model(nodes, {"x": [1, 4, 5, 5]}, ["y"], {"w": random(6, 4, 3, 3)}), xbar=4)
    assert [n.node for n in found.unsupported] == ["my_randomuniformlike"]
    assert [(x.node, x.macs) for x in found.layers] == [("conv", 6 * 4 * 9 * 9)]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, written = tmp_path / "tiny.onnx", tmp_path / "tiny.json"
    onnx.save(_tiny(), path)
    with pytest.raises(SystemExit) as exit_:
        app.main(["inspect", str(path), "--xbar", "4", "--json", str(written)])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "crossbars   22 of 4x4 in 22 matrices" in shown
    assert ModelInspection.model_validate_json(written.read_bytes()).xbars == 22


def test_command_with_an_unsupported_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.onnx"
    onnx.save(_unsupported(), path)
    with pytest.raises(SystemExit) as exit_:
        app.main(["inspect", str(path), "--json", "-"])
    assert exit_.value.code == 2
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["unsupported"]) == 2
    assert "2 nodes cannot be compiled" in shown.err
    assert "my_randomuniformlike (RandomUniformLike): not supported" in shown.err


def test_token_ids_choose_rows_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Gather", "table ids", "e", name="embed"), node("MatMul", "e w", name="project")]
    model = make_model(nodes, {}, {"y": 3}, {"table": random(9, 4), "w": random(4, 3)})
    model.graph.input.append(onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"]))
    path = tmp_path / "tokens.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SystemExit) as stopped:
        app.main(["inspect", str(path), "--dim", "length=5"])
    printed = capsys.readouterr()
    assert stopped.value.code == 0
    assert "project  MatMul" in printed.out
    assert "note: dimension batch, the first of input 'ids', is taken as 1" in printed.out
    assert not printed.err


def test_the_same_from_the_package() -> None:
    model = make_model([node("Relu", "x")], {"x": ("N", 4, "h", "w")}, ["y"])
    assert raptor.inspect(model, dims={"h": 3, "w": 5}).inputs == {"x": (1, 4, 3, 5)}


def _divided() -> onnx.ModelProto:
    """Two convolutions with an operator of no use to the chip between them."""
    weights = {"w": random(4, 3, 3, 3), "v": random(2, 4, 3, 3)}
    nodes = [
        node("Conv", "x w", "c", name="first", pads=[1] * 4),
        node("Softmax", "c", "s", name="middle", axis=1),
        node("Conv", "s v", "y", name="last", pads=[1] * 4),
    ]
    return make_model(nodes, {"x": [1, 3, 4, 4]}, ["y"], weights)


def test_chip_and_host_and_their_work() -> None:
    """Multiply-accumulates by place: 16 pixels, 9 taps, input times output channels."""
    macs = 16 * 9 * (3 * 4 + 4 * 2)
    places = {p.place: (p.nodes, p.macs) for p in inspect(_divided(), base_isa=True).places}
    assert places == {"chip": (2, macs), "refused": (1, 0)}
    found = inspect(_divided(), base_isa=True, host=True)
    assert {p.place: (p.nodes, p.macs) for p in found.places} == {"chip": (2, macs), "host": (1, 0)}
    assert [(s.kind, s.macs) for s in found.segments] == [("chip", 1728), ("host", 0), ("chip", 1152)]
    assert [n.node for n in found.host_nodes] == ["middle"]
    assert not found.unsupported


def test_work_of_layers_on_the_host() -> None:
    found = inspect(_divided(), host_nodes=("last",), base_isa=True)
    assert {p.place: (p.nodes, p.macs) for p in found.places} == {
        "chip": (1, 1728),
        "host": (1, 1152),
        "refused": (1, 0),
    }
    everything = inspect(_divided(), host_ops=("Conv",))
    assert [(p.place, p.nodes) for p in everything.places] == [("host", 3)]
    assert everything.cores_needed == 0


def test_zeros_are_counted_as_the_model_has_them():
    weights = np.kron(np.eye(4, dtype=np.float32), random(8, 8)).astype(np.float32)
    weights[:, 3] = weights[9] = 0
    nodes = [node("Gemm", "x w", "h", name="blocks"), node("Gemm", "h v", "y", name="full")]
    model = make_model(nodes, {"x": (1, 32)}, ["y"], {"w": weights, "v": random(32, 8)})
    found = inspect(model, xbar=8)
    zeros = {layer.node: layer.zeros for layer in found.layers}
    assert zeros["full"] is None
    assert zeros["blocks"] == ZeroInfo(matrices=12, all_matrices=16, inputs=1, outputs=1)
    assert found.layers[0].matrices == 4
    assert found.utilisation <= 1
    text = "".join(part for pair in [*format_totals(found)] for part in pair)
    assert "crossbars8 of 8x8" in text
