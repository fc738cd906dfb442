"""The directory of a program in segments is not trusted, and an error in it has one owner."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import raptor
from raptor.common.errors import UserError
from raptor.output import files
from tests.segmented_models import CHIP, compiled, sandwich
from tests.tiny_models import node, random
from validator.load.segmented_program import load_segmented
from validator.validate import validate

HOST, CHIP_FOLDER = "segment_001.onnx", "segment_000"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments; the one in the middle is on the host, and has a weight."""
    folder = tmp_path_factory.mktemp("hosted") / "out"
    model = sandwich([node("Mul", "a s", "b", name="middle")], {"s": random(6, seed=1)})
    compiled(model, folder, host_nodes=("middle",))
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "out")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes segments.json."""
    path = folder / files.SEGMENTS
    listed = json.loads(path.read_bytes())
    change(listed)
    path.write_text(json.dumps(listed))


def scale_weight(path: Path) -> None:
    """Changes the weight of the model on the host."""
    model = onnx.load(path)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    onnx.save(model, path)


def test_a_host_segment_that_changed_on_disk(out: Path):
    scale_weight(out / HOST)
    for run in (lambda: raptor.load(out).run({"x": random(1, 3, 6, 6)}), lambda: validate(out)):
        with pytest.raises(UserError, match=rf"{HOST}: changed since it was compiled"):
            run()


def test_a_program_that_changed_on_disk(out: Path):
    path = out / CHIP_FOLDER / files.MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"tool": "raptor', b'"tool": "rapto_'))
    with pytest.raises(UserError, match=r"manifest.json: changed since it was compiled"):
        validate(out)


def test_a_wrong_host_segment_is_the_owner_of_the_error(out: Path):
    """Somebody changes a segment and its hash: its own comparison fails, and no other one."""
    scale_weight(out / HOST)
    content = (out / HOST).read_bytes()

    def rehash(listed: dict[str, Any]) -> None:
        listed["segments"][1] |= {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}

    edit(out, rehash)
    verdict = validate(out, samples=2)
    assert verdict.verdict == "mismatch"
    assert verdict.first_deviation == HOST
    assert [s.passed for s in verdict.segments] == [True, False, True]


def test_a_wrong_program_is_the_owner_of_the_error(out: Path):
    """A program of the chip for another model of the same tensors: only its program differs from its ONNX model."""
    other = sandwich([node("Mul", "a s", "b", name="middle")], {"s": random(6, seed=1)})
    weights = numpy_helper.to_array(other.graph.initializer[0])
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights * np.float32(1.01), "first.w"))
    program = raptor.compile(other, **CHIP, host=True, host_nodes=("middle",))
    wrong = program.save(out.parent / "wrong", stream_format="pim", weight_format="npz")
    shutil.copytree(wrong / CHIP_FOLDER / files.WEIGHTS, out / CHIP_FOLDER / files.WEIGHTS, dirs_exist_ok=True)
    verdict = validate(out, samples=2, check_hashes=False)
    assert verdict.verdict == "mismatch"
    assert [s.passed for s in verdict.segments] == [False, True, True]
    assert all(c.passed for c in verdict.segments[0].cut)


def test_a_wrong_cut_is_caught(out: Path):
    """The two segments of the chip in place of each other's ONNX models: the cut differs from the whole model."""
    listed = raptor.load(out).validate(samples=1)
    assert listed.passed
    path = out / CHIP_FOLDER / files.MODEL
    model = onnx.load(path)
    scaled = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(-1)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(scaled, model.graph.initializer[0].name))
    onnx.save(model, path)
    content = path.read_bytes()
    manifest = out / CHIP_FOLDER / files.MANIFEST
    entries = json.loads(manifest.read_bytes())
    entries["files"][files.MODEL] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(entries))
    text = manifest.read_bytes()

    def rehash(found: dict[str, Any]) -> None:
        found["segments"][0] |= {"sha256": hashlib.sha256(text).hexdigest(), "size_bytes": len(text)}

    edit(out, rehash)
    verdict = validate(out, samples=1)
    assert verdict.first_deviation == CHIP_FOLDER
    assert not verdict.segments[0].cut[0].passed


def _first(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda listed: listed["segments"][0].update(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_first({"path": "../segment_000"}), "path"),
        (_first({"path": "segment_001"}), "segment 0 is segment_001, not segment_000"),
        (_first({"kind": "host"}), "segment 0 is segment_000, not segment_000.onnx"),
        (_first({"reads": ["y"]}), "reads 'y', which nothing before it makes"),
        (_first({"makes": ["x"]}), "makes 'x' a second time"),
        (_first({"secret": 1}), "no such field: 'secret'"),
        (lambda listed: listed["segments"].reverse(), "segment 0 is segment_002"),
        (lambda listed: listed["crossings"].pop(), "tensors and borders disagree"),
        (lambda listed: listed["files"].update({"../x": listed["files"]["model.onnx"]}), "files: expected model.onnx"),
        (lambda listed: listed.update(version=2), "version"),
        (lambda listed: listed["crossings"][1]["shape"].append(7), "has shape"),
        (lambda listed: listed["segments"][1].update(size_bytes=5), f"{HOST}: .* bytes, but segments.json says 5"),
        (lambda listed: listed["segments"].pop(), "tensors and borders disagree"),
    ],
)
def test_bad_lists_are_refused(out: Path, change: Callable[[dict[str, Any]], None], message: str):
    edit(out, change)
    with pytest.raises(UserError, match=message):
        load_segmented(out)


def test_files_that_are_not_the_program_s_own(out: Path):
    (out / "segment_007").mkdir()
    with pytest.raises(UserError, match=r"segment_007: a segment that segments.json does not list"):
        load_segmented(out)
    (out / "segment_007").rmdir()
    shutil.move(out / CHIP_FOLDER, out.parent / "elsewhere")
    (out / CHIP_FOLDER).symlink_to(out.parent / "elsewhere")
    with pytest.raises(UserError, match="not a directory of this program"):
        load_segmented(out)


def test_segments_that_share_a_core(out: Path):
    """Both segments compiled as if they had the chip for themselves."""
    for number, name in ((0, CHIP_FOLDER), (2, "segment_002")):
        source = out / name / files.MODEL
        shutil.copy(source, out.parent / f"{number}.onnx")
        shutil.rmtree(out / name)
        raptor.compile(out.parent / f"{number}.onnx", **CHIP).save(out / name)
        size = (out / name / files.MANIFEST).stat().st_size
        edit(out, lambda listed, at=number, size=size: listed["segments"][at].update(size_bytes=size))
    with pytest.raises(UserError, match="both use core 0, but they share one chip"):
        load_segmented(out, check_hashes=False)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": random(1, 3, 6, 6), "z": random(1)}, "'z' is no input of the model"),
        ({"x": random(1, 3, 6)}, "expected shape 1x3x6x6"),
        ({"x": np.array(["a"])}, "expected shape"),
    ],
)
def test_inputs_that_do_not_fit(made: Path, inputs: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        raptor.load(made).run(inputs)


def test_replacing_needs_force(out: Path):
    program = raptor.compile(sandwich([node("Relu", "a", "b", name="r")]), **CHIP, host_nodes=("r",))
    with pytest.raises(UserError, match=r"exists; choose another"):
        program.save(out)
    program.save(out, force=True)
    assert load_segmented(out).segments.segments[1].nodes == ("r",)
