"""Inputs as people have them, beside standard normal numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import ModelProto, TensorProto

import raptor
from raptor.tools.cli.app import build_commands
from tests.tiny_models import make_model, node, random
from validator.execution import input_kinds
from validator.execution.input_kinds import INPUT_KINDS, TRIED_KINDS, draw_values
from validator.model.index_bounds import IndexBounds
from validator.validate import validate

SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 5), (1, 3, 8, 8), (1, 8, 8, 3), (1, 400, 1), (0, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_every_kind_has_every_shape(kind: str, shape: tuple[int, ...]):
    """Equal seeds give equal numbers, other seeds others."""
    one, two = (draw_values(kind, shape, None, np.random.default_rng(3)) for _ in range(2))
    assert one.shape == shape
    np.testing.assert_array_equal(one, two)
    assert not np.isnan(one).any()
    whole = draw_values(kind, shape, IndexBounds(-4, 9), np.random.default_rng(3))
    assert whole.shape == shape
    assert ((whole >= -4) & (whole <= 9) & (np.rint(whole) == whole)).all()


def test_kinds_are_what_they_are_called():
    shape = (1, 3, 32, 32)
    found = {kind: draw_values(kind, shape, None, np.random.default_rng(1)) for kind in INPUT_KINDS}
    image = found["image"]
    assert (image.min(), image.max()) == (0, 255)
    assert np.abs(np.diff(image, axis=-1)).max() < 60
    assert (found["one-hot"].sum(axis=-1) == 1).all()
    assert np.unique(found["constant"]).size == 1
    assert not found["zeros"].any()
    assert np.abs(found["speech"]).max() <= 1
    assert (found["speech"] == 0).mean() > 0.2
    assert np.abs(found["large"]).max() > 1e4
    assert np.abs(found["small"]).max() < 1e-5
    assert 0.1 < np.isneginf(found["masked"]).mean() < 0.5
    ends = draw_values("large", (200,), IndexBounds(0, 29), np.random.default_rng(1))
    assert set(ends.tolist()) == {0, 29}


def test_time_grows_by_half_at_most():
    assert [len(input_kinds.kinds_to_try(n)) for n in (1, 2, 3, 4, 9, 100)] == [0, 1, 1, 2, 4, len(TRIED_KINDS)]


def layer(*nodes: Any, **constants: Any) -> ModelProto:
    return make_model(
        [node("MatMul", "x w", "a"), *nodes], {"x": [1, 8]}, {"y": 2}, {"w": random(8, 6, seed=2), **constants}
    )


def compiled(model: ModelProto, folder: Path, **options: Any) -> Path:
    return raptor.compile(model, xbar=16, cores=4, **options).save(folder / "out")


@pytest.mark.parametrize("host", [False, True])
def test_kinds_are_named(host: bool, tmp_path: Path):
    model = layer(node("Relu", "a", "y", name="last"))
    out = compiled(model, tmp_path, **({"host_nodes": ("last",)} if host else {}))
    ran = CliRunner().invoke(
        build_commands(), ["validate", str(out), "--samples", "10", "--json", str(tmp_path / "v.json")]
    )
    assert ran.exit_code == 0
    assert ", one each of image, one-hot, constant, large, small in " in ran.output
    found = json.loads((tmp_path / "v.json").read_bytes())
    assert found["samples"] == 10
    assert found["kinds"] == [{"kind": kind, "verdict": "pass"} for kind in TRIED_KINDS]


def test_given_inputs_come_alone(tmp_path: Path):
    out = compiled(layer(node("Relu", "a", "y")), tmp_path)
    assert validate(out, inputs={"x": random(1, 8)}).kinds == ()
    assert validate(out, samples=1).kinds == ()


def test_what_overflows_in_onnxruntime_is_not_compared(tmp_path: Path):
    """Exp of large numbers is infinite; the verdict says so, and compares nothing."""
    out = compiled(layer(node("Exp", "a", "y")), tmp_path)
    verdict = validate(out, samples=10)
    assert verdict.passed
    assert {k.kind: k.verdict for k in verdict.kinds if k.verdict != "pass"} == {
        "image": "no finite numbers",
        "large": "no finite numbers",
    }


def clipped(limit: float) -> ModelProto:
    nodes = [node("Clip", "a low high", "c"), node("Neg", "c", "y", name="last")]
    return layer(*nodes, low=np.float32(-1e6), high=np.float32(limit))


@pytest.mark.parametrize("host", [False, True])
def test_a_kind_finds_what_normal_numbers_do_not(host: bool, tmp_path: Path):
    """A limit at 50 instead of 60: standard normal numbers never reach it, an image does."""
    out = compiled(clipped(50), tmp_path, **({"host_nodes": ("last",)} if host else {}))
    path = out / "segment_000" / "model.onnx" if host else out / "model.onnx"
    model = onnx.load(path)
    limit = next(t for t in model.graph.initializer if t.name == "high")
    limit.raw_data = np.float32(60).tobytes()
    path.write_bytes(model.SerializeToString(deterministic=True))
    verdict = validate(out, samples=10, check_hashes=False)
    assert not verdict.passed
    assert verdict.reason is not None
    assert verdict.reason.startswith("inputs of kind image: ")
    assert {k.kind for k in verdict.kinds if k.verdict == "mismatch"} == {"image", "large"}


def test_ids_at_both_ends(tmp_path: Path):
    model = make_model([node("Gather", "t x", "y")], {"x": [40]}, {"y": 2}, {"t": random(30, 4)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    out = compiled(model, tmp_path)
    verdict = validate(out, samples=10)
    assert verdict.passed
    assert {k.kind: k.verdict for k in verdict.kinds} == dict.fromkeys(TRIED_KINDS, "pass")
