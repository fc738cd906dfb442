"""The Python API, as the README shows it."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import (
    CapacityError,
    InternalError,
    RaptorError,
    UnsupportedError,
    UserError,
)
from raptor.graph.ir import Graph
from raptor.target.arch import Target
from tests.pipeline import THESIS_CHIP, conv_model, thesis_model
from tests.tiny_models import golden, make_model, node, random

MODEL = conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True, relu=True)
X = random(1, 5, 4, 4, seed=3)


def compiled(**options: Any) -> "raptor.Program":
    return raptor.compile(MODEL, **{**THESIS_CHIP, **options})


def test_the_public_names():
    assert sorted(raptor.__all__) == sorted(
        [
            *("CapacityError", "InternalError", "RaptorError", "UnsupportedError", "UserError"),
            *(
                "HardenedModel",
                "Program",
                "Quantisation",
                "Session",
                "TrainedModel",
                "TrimmedProgram",
                "__version__",
                "compile",
                "harden",
                "inspect",
                "load",
                "quantize",
                "search_policy",
                "simulate",
                "train",
                "trim",
            ),
        ]
    )
    assert all(hasattr(raptor, name) for name in raptor.__all__)
    with pytest.raises(AttributeError, match="no attribute 'decompile'"):
        _ = raptor.decompile


def test_errors_have_one_base_and_an_exit_status():
    assert issubclass(CapacityError, UserError)
    assert issubclass(UnsupportedError, UserError)
    assert issubclass(UserError, RaptorError)
    assert issubclass(InternalError, RaptorError)
    assert (UserError.exit_status, InternalError.exit_status) == (2, 70)


@pytest.mark.parametrize("kind", [str, Path])
def test_compile_takes_a_path(tmp_path: Path, kind: type):
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    assert raptor.compile(kind(path), **THESIS_CHIP).report == compiled().report


def test_compile_leaves_the_model_as_it_is():
    before = MODEL.SerializeToString(deterministic=True)
    compiled()
    assert MODEL.SerializeToString(deterministic=True) == before


def test_one_number_makes_a_square_crossbar():
    assert compiled(xbar=3).report == compiled(xbar=(3, 3)).report


def test_shapes_fix_symbolic_dimensions():
    model = make_model([node("Relu", "x")], {"x": ("batch", 4, "h", 5)}, ["y"])
    program = raptor.compile(model, shapes={"x": (1, 4, 3, 5)}, cores=1)
    assert program.report.layers[0].shape == (1, 4, 3, 5)


def test_the_report_counts_what_the_program_uses():
    report = raptor.compile(thesis_model(4, 8), mapping="raptor", **THESIS_CHIP).report
    assert (report.matrices, report.xbars_used, report.xbars_available) == (54, 54, 80)
    assert (report.cores_used, report.cores_available, report.tile_channels) == (11, 16, 3)
    assert report.instruction_count == sum(report.instructions.values())
    assert report.instructions["send"] == report.instructions["recv"] == 12
    # 100 products inside the image for each pair of tiles
    assert report.instructions["mvmul"] == 600
    (layer,) = report.layers
    assert (layer.node, layer.matrices, layer.cores) == ("conv", 54, tuple(range(11)))
    # 4 x 8 weights in crossbars of 3 x 3: 9 * 32 of 54 * 9 cells
    assert layer.utilisation == pytest.approx(32 / 54, abs=1e-4)
    counts = [core.instructions for core in report.cores]
    assert sum(sum(c.values()) for c in counts) == report.instruction_count
    assert report.peak_local_bytes == max(core.local_bytes for core in report.cores)


def test_run_computes_what_onnxruntime_does():
    program = compiled()
    outputs = program.run({"x": X})
    wanted = golden(MODEL, {"x": X})
    assert outputs.keys() == wanted.keys() == {"y"}
    np.testing.assert_allclose(outputs["y"], wanted["y"], rtol=1e-5, atol=1e-5)
    assert outputs["y"].shape == (1, 4, 4, 4)
    assert outputs["y"].dtype == np.float32


def test_run_keeps_nothing_from_the_run_before():
    program = compiled()
    first = program.run({"x": X})["y"]
    program.run({"x": -X})
    assert program.run({"x": X})["y"].tolist() == first.tolist()


def test_run_several_inputs_and_outputs():
    nodes = [node("Add", "a b", "s"), node("Mul", "s a", "p")]
    model = make_model(nodes, {"a": (1, 5, 2, 3), "b": (1, 5, 2, 3)}, ["p", "s"])
    inputs = {"a": random(1, 5, 2, 3), "b": random(1, 5, 2, 3, seed=1)}
    outputs = raptor.compile(model, xbar=4, cores=2).run(inputs)
    assert list(outputs) == ["p", "s"]
    np.testing.assert_array_equal(outputs["s"], inputs["a"] + inputs["b"])
    np.testing.assert_array_equal(outputs["p"], (inputs["a"] + inputs["b"]) * inputs["a"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [({}, "input 'x' is missing"), ({"x": X[0]}, r"expected shape \[1, 5, 4, 4\], got \[5, 4, 4\]")],
)
def test_inputs_that_do_not_fit(inputs: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        compiled().run(inputs)


def test_validate_passes():
    assert compiled().validate().passed


def test_validate_with_inputs_and_layers():
    verdict = compiled().validate({"x": X}, layers=True, tolerance=1e-5)
    assert verdict.passed


def test_validate_with_no_tolerance_fails():
    assert not compiled().validate(tolerance=0).passed


def test_save_and_load(tmp_path: Path):
    program = compiled()
    folder = program.save(tmp_path / "out")
    assert folder == program.folder == tmp_path / "out"
    loaded = raptor.load(folder)
    assert loaded.report == program.report
    assert loaded.run({"x": X})["y"].tolist() == program.run({"x": X})["y"].tolist()


def test_a_program_may_be_saved_more_than_once(tmp_path: Path):
    program = compiled()
    program.run({"x": X})
    program.save(tmp_path / "a")
    program.save(tmp_path / "b", stream_format="pim", weight_format="npz")
    for name in "ab":
        assert raptor.load(tmp_path / name).report == program.report


def test_a_loaded_program_cannot_be_saved_again(tmp_path: Path):
    compiled().save(tmp_path / "a")
    with pytest.raises(UserError, match="already saved; copy the directory instead"):
        raptor.load(tmp_path / "a").save(tmp_path / "b")


def test_what_cannot_be_loaded(tmp_path: Path):
    with pytest.raises(UserError, match="missing: no such file or directory"):
        raptor.load(tmp_path / "missing")
    with pytest.raises(UserError, match=r"manifest\.json: missing"):
        raptor.load(tmp_path)


def test_a_program_in_memory_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = compiled()
    program.run({"x": X})
    del program
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_goes_wrong_inside_names_the_pass(monkeypatch: pytest.MonkeyPatch):
    def lower(*_: object) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr("raptor.pim.lower", lower)
    with pytest.raises(InternalError, match=r"lower failed after \['load', .*'map', .*\]: ZeroDivisionError"):
        compiled()


def test_what_a_pass_returns_is_verified(monkeypatch: pytest.MonkeyPatch):
    def fold_relu(graph: Graph, _: Target) -> Graph:
        return Graph(graph.name, graph.tensors, (), graph.inputs, graph.outputs)

    monkeypatch.setattr("raptor.compiler.pipeline.fold_relu", fold_relu)
    with pytest.raises(
        InternalError,
        match=r"fold_relu failed after \['load', .*'order_channels'\]: graph: output y is never defined",
    ):
        compiled()
