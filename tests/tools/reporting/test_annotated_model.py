"""`raptor report --annotate`: the model computes what it did, and its nodes have the figures of the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import raptor
from raptor.tools.cli import app
from tests.tiny_models import golden, make_model, node, random

CHIP: dict[str, Any] = {"xbar": 8, "cores": 8}


def model(*, named: bool) -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "c", name="conv" if named else "", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r", name="relu" if named else ""),
        node("MaxPool", "r", "p", name="pool" if named else "", kernel_shape=[2, 2]),
        node("Flatten", "p", "y", name="flat" if named else ""),
    ]
    made = make_model(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": random(3, 2, 3, 3)})
    made.graph.node[0].metadata_props.add(key="raptor.cores", value="of an earlier report")
    made.graph.node[0].metadata_props.add(key="author", value="somebody")
    return made


def report(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        app.main(["report", *map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("named", [True, False])
def test_figures_of_the_report(named: bool, tmp_path: Path):
    own = model(named=named)
    out = raptor.compile(own, **CHIP).save(tmp_path / "out")
    files = tmp_path / "a.onnx", tmp_path / "numbers.json"
    assert report(out, "--annotate", files[0], "--json", files[1], "-q") == 0
    annotated, numbers = onnx.ModelProto.FromString(files[0].read_bytes()), json.loads(files[1].read_text())
    layers = {layer["name"]: layer for layer in numbers["layers"]}
    assert len(layers) >= 2
    shown = {each.name or f"{each.op_type} -> {each.output[0]}": each.metadata_props for each in annotated.graph.node}
    for name, layer in layers.items():
        found = {each.key: each.value for each in shown[name] if each.key.startswith("raptor.")}
        assert found["raptor.crossbars"] == str(layer["noted"]["xbars"])
        assert found["raptor.cores"].startswith(f"{len(layer['noted']['cores'])}: ")
        assert float(found["raptor.critical_us"]) == pytest.approx(layer["counted"]["critical_ns"] / 1000, rel=1e-5)
        assert float(found["raptor.energy_pJ"]) == pytest.approx(layer["counted"]["energy_pj"], rel=1e-5)
    assert [each.value for each in annotated.graph.node[0].metadata_props if each.key == "author"] == ["somebody"]
    keys = [each.key for each in annotated.graph.node[0].metadata_props]
    assert len(keys) == len({*keys})
    inputs = {"x": random(1, 2, 4, 4, seed=3)}
    assert np.array_equal(golden(annotated, inputs)["y"], golden(own, inputs)["y"])


def test_cores_as_ranges(tmp_path: Path):
    from raptor.tools.reporting.annotated_model import _ranges  # pyright: ignore[reportPrivateUsage]

    assert _ranges((7, 0, 1, 2, 9, 10)) == "6: 0-2, 7, 9-10"
    assert _ranges(()) == "0: "
    assert _ranges(tuple(range(0, 200, 2))).endswith("62, ...")


def test_streams_alone_have_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = raptor.compile(model(named=True), **CHIP).save(tmp_path / "out")
    (out / "model.onnx").unlink()
    assert report(out, "--annotate", tmp_path / "a.onnx") == 2
    assert "--annotate: " in capsys.readouterr().err
    assert not (tmp_path / "a.onnx").exists()


def test_a_joined_node_has_no_figures(tmp_path: Path):
    own = model(named=True)
    out = raptor.compile(own, mapping="raptor", **CHIP).save(tmp_path / "out")
    assert report(out, "--annotate", tmp_path / "a.onnx", "-o", tmp_path / "page.html", "-q") == 0
    annotated = onnx.ModelProto.FromString((tmp_path / "a.onnx").read_bytes())
    figures = {each.name: [p.key for p in each.metadata_props if p.key != "author"] for each in annotated.graph.node}
    assert figures["conv"]
    assert figures["flat"] == []
