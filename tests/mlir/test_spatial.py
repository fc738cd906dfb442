"""SpatialIR written as MLIR and read back gives the same streams; cores and order may be changed, and are verified."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import models
import raptor
from raptor import mlir
from raptor.common.errors import UserError
from raptor.compiler.pass_driver import Driver
from raptor.mlir.program_file import ProgramFile
from raptor.output.writer import ProgramArtifacts
from tests.mlir.mutations import lookup_model, mutate, pooled_model
from tests.mlir.test_round_trip import MLIR_OPT, mlir_opt
from tests.models.test_models import small_options
from tests.pipeline import THESIS_CHIP, thesis_model

LEVELS = ("partition", "place_cores", "schedule")
SMALL: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "thesis": (lambda: thesis_model(3, 5), {"mapping": "raptor", **THESIS_CHIP}),
    "lines": (pooled_model, {"xbar": 8, "cores": 8}),
    "lookup": (lookup_model, {"xbar": 8, "cores": 4}),
}
QUICK = ("mlp", "lenet5", "lstm", "wavenet_cell")
ZOO = (*QUICK, "bert_tiny", "mlp3", "resnet18", "mobilenet_v2", "googlenet", "vit_tiny", "unet", "densenet121")


def compile_with(model: onnx.ModelProto, options: dict[str, Any], driver: Driver) -> dict[int, bytes]:
    """The streams of a compilation."""
    artifacts = raptor.compile(model, driver=driver, **options).artifacts
    assert isinstance(artifacts, ProgramArtifacts)
    return {core: records.tobytes() for core, records in artifacts.machine.records.items()}


def dumped(model: onnx.ModelProto, options: dict[str, Any], folder: Path) -> tuple[dict[int, bytes], dict[str, Path]]:
    """The streams, and the MLIR files of the levels."""
    streams = compile_with(model, options, Driver(dump=folder, dump_format="mlir"))
    return streams, {name: next(folder.glob(f"*-{name}.mlir")) for name in LEVELS}


def go_on(path: Path, model: onnx.ModelProto, options: dict[str, Any]) -> dict[int, bytes]:
    found = ProgramFile.read(path)
    return compile_with(model, options, Driver(passes={found.after: found}))


@pytest.mark.parametrize("name", SMALL)
def test_small_programs(name: str, tmp_path: Path):
    make, options = SMALL[name]
    streams, files = dumped(make(), options, tmp_path)
    for path in files.values():
        assert go_on(path, make(), options) == streams


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_models_of_the_zoo(name: str, tmp_path: Path):
    model, options = models.build(name, seed=0, **small_options(name)), {"cores": 1024}
    streams, files = dumped(model, options, tmp_path)
    for path in files.values():
        assert go_on(path, model, options) == streams


@pytest.mark.skipif(MLIR_OPT is None, reason="there is no mlir-opt here (Debian: apt install mlir-19-tools)")
@pytest.mark.parametrize("name", SMALL)
def test_through_mlir_opt(name: str, tmp_path: Path):
    make, options = SMALL[name]
    streams, files = dumped(make(), options, tmp_path)
    for path in files.values():
        path.write_bytes(mlir_opt(path.read_text(), "--mlir-print-debuginfo"))
        assert go_on(path, make(), options) == streams


def change(path: Path, pattern: str, to: str | Callable[[re.Match[str]], str], count: int = 1) -> None:
    text, found = re.subn(pattern, to, path.read_text(), count=count)
    assert found
    path.write_text(text)


def test_another_place_is_verified_and_used(tmp_path: Path):
    make, options = SMALL["thesis"]
    streams, files = dumped(make(), options, tmp_path)
    swapped = {"0": "1", "1": "0"}
    change(
        files["place_cores"],
        r"(?<=[ ,{]core = )[01](?= :)",
        lambda found: swapped[found[0]],
        0,
    )
    other = go_on(files["place_cores"], make(), options)
    assert other != streams
    assert other.keys() == streams.keys()


@pytest.mark.parametrize(
    ("level", "pattern", "to", "says"),
    [
        ("place_cores", r" core = 1 :", " core = 0 :", "stands for 2 others"),
        ("place_cores", r" core = 1 :", " core = 99 :", "core 99 of 16"),
        ("place_cores", r"position = \d\.\d+", "position = 0.75", "only their place may"),
        ("place_cores", r"number = 1 :", "number = 0 :", "not each there once"),
        ("schedule", r" core = 1 :", " core = 2 :", "cores differ"),
        ("schedule", r'kind = "vadd"', 'kind = "vmul"', "no such form|only their place"),
        ("partition", r"taps = array<i64: 0, 1", "taps = array<i64: 0, 2", "conv"),
        ("partition", r"taps = array<i64: \d", "taps = array<i64: 999", "cannot be verified|conv"),
        ("partition", r'(name = "x)', r"\1y", "xy|conv|verified"),
        ("partition", r"tensor<(\d+)x", r"tensor<9\1x", "line"),
        ("partition", r'    "spat\.yield".*\n', "", "a compute ends with"),
        ("partition", r'layer = "y"', 'layer = "z"', "no matrices of"),
        ("partition", r", number = \d+ : i64|number = \d+ : i64, ", "", "number is missing"),
        ("partition", r"matrices = @m0", "matrices = @m99", "no matrices of"),
        ("partition", r"rows = array<i64: 0, 3>", "rows = array<i64: 0, 1>", "conv|verified"),
        ("partition", r"relu = false", "relu = true", "another window or relu"),
        ("partition", r"pads = array<i64: 1", "pads = array<i64: 0", "another window or relu"),
        ("partition", r"position = [\d.e-]+ : f64", 'position = "low"', "position is no f64"),
        ("partition", r' loc\("conv"\)', "", "no ONNX node"),
    ],
)
def test_wrong_modules(level: str, pattern: str, to: str, says: str, tmp_path: Path):
    make, options = SMALL["thesis"]
    _, files = dumped(make(), options, tmp_path)
    change(files[level], pattern, to)
    with pytest.raises(UserError, match=f"{level}.mlir'?: .*(?:{says})"):
        go_on(files[level], make(), options)


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_of_another_level(level: str, tmp_path: Path):
    make, options = SMALL["thesis"]
    _, files = dumped(make(), options, tmp_path)
    change(files[level], r'spat\.pass = "\w+"', 'spat.pass = "lower"')
    with pytest.raises(UserError, match="was made from another"):
        go_on(files[level], make(), options)


def outcome(path: Path, text: str, name: str) -> str:
    make, options = SMALL[name]
    path.write_text(text)
    try:
        go_on(path, make(), options)
    except UserError as e:
        known = r"line \d+: |cannot be verified|expected one of|was made from"
        return "refused" if re.search(known, str(e)) else str(e)
    return "right"


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SMALL)
def test_mutated_text(name: str, level: str, tmp_path: Path):
    make, options = SMALL[name]
    _, files = dumped(make(), options, tmp_path)
    text, rng = files[level].read_text(), random.Random(f"{name} {level}")
    found = Counter(outcome(tmp_path / "x.mlir", mutate(text, rng), name) for _ in range(60))
    assert found.keys() <= {"refused", "right"}
    assert found["refused"] > 5


def test_the_reader_alone(tmp_path: Path):
    make, options = SMALL["lines"]
    _, files = dumped(make(), options, tmp_path)
    assert mlir.load(files["schedule"].read_text()).made_by == "schedule"
