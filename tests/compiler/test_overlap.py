"""Programs whose samples overlap: a core begins a sample before other cores have ended the one before."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.pim import sample_versions
from raptor.target import isa
from validator.checks import check
from validator.validate import validate

CHIP: dict[str, Any] = {"cores": 30}


def with_stages(model: Any, folder: Path, interval_ns: float, sample: int = 0, **options: Any) -> raptor.Program:
    """Compiles a model by its own mapping, in which samples overlap by the modulo schedule of an interval."""
    stored = folder / "mapping.json"
    raptor.compile(model, emit_mapping=stored, **CHIP, **options)
    text = json.loads(stored.read_text())
    text["decision"]["flow"]["stages"] = {"interval_ns": interval_ns, "patience_ns": 0.0, "sample": sample}
    stored.write_text(json.dumps(text))
    return raptor.compile(model, mapping=stored, **CHIP, **options)


def small_int8() -> Any:
    """A quantised LeNet-5."""
    return onnx.load_from_string(raptor.quantize(models.build("lenet5", seed=0)).onnx_bytes)


def saved(program: raptor.Program, folder: Path) -> Path:
    program.save(folder)
    return folder


def delays_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "resident.json").read_text()).get("delays", [])


def rewrite(folder: Path, name: str, text: dict[str, Any]) -> None:
    """Writes a JSON file of the same size as before."""
    size = (folder / name).stat().st_size
    (folder / name).write_text(json.dumps(text, separators=(",", ":")).ljust(size))


@pytest.fixture(scope="module")
def model() -> Any:
    return models.build("resnet8", seed=0)


@pytest.mark.parametrize(("interval_ns", "passes"), [(120_000.0, 2), (150_000.0, 1)])
def test_each_output_is_of_its_own_sample(model: Any, tmp_path: Path, interval_ns: float, passes: int):
    folder = saved(with_stages(model, tmp_path, interval_ns), tmp_path / "out")
    assert delays_of(folder) == [{"output": "fc_output", "passes": passes}]
    assert validate(folder, samples=passes + 5).verdict == "pass"
    assert not [finding for finding in check(folder) if finding.severity.value != "note"]


@pytest.mark.parametrize("more", [-1, 1])
def test_an_output_of_the_sample_beside_it_fails(model: Any, tmp_path: Path, more: int):
    folder = saved(with_stages(model, tmp_path, 120_000.0), tmp_path / "out")
    resident = json.loads((folder / "resident.json").read_text())
    resident["delays"][0]["passes"] += more
    rewrite(folder, "resident.json", resident)
    assert validate(folder, samples=4, check_hashes=False).verdict == "mismatch"


def test_a_copy_short_fails(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A reader that takes the newest value, and not the copy of the older one, works on the wrong sample."""
    monkeypatch.setattr(sample_versions.SampleVersions, "read", lambda self, value, core, turn: value)
    folder = saved(with_stages(model, tmp_path, 120_000.0), tmp_path / "out")
    assert validate(folder, samples=4).verdict == "mismatch"


def test_the_command_works_as_the_option_says(tmp_path: Path):
    """The option shortens the interval of a small quantised network, or leaves the program as it is."""
    before, after = (raptor.compile(small_int8(), overlap=n, **CHIP) for n in (1, 4))
    ns = [program.simulate(mode="throughput").interval_ns or 0 for program in (before, after)]
    assert ns[1] < 0.95 * ns[0]
    folder = saved(after, tmp_path / "out")
    assert delays_of(folder)
    assert validate(folder, samples=7).verdict == "pass"


def test_without_init_an_integer_program_is_refused(tmp_path: Path):
    program = raptor.compile(small_int8(), overlap=4, **CHIP)
    assert isinstance(program.artifacts, raptor.api.ProgramArtifacts)
    assert program.artifacts.resident is not None
    init = program.artifacts.resident.records["init"]
    for core in init:
        init[core] = np.zeros(0, isa.RECORD)
    folder = saved(program, tmp_path / "out")
    assert validate(folder, samples=2).verdict != "pass"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mapping": "raptor"}, "not with"),
        ({"rounds": True}, "not with"),
        ({"overlap": 9}, "expected"),
        ({"overlap": 0}, "expected"),
    ],
)
def test_it_is_refused_where_it_has_no_effect(model: Any, options: dict[str, Any], why: str):
    with pytest.raises(UserError, match=why):
        raptor.compile(model, **{"overlap": 2, **CHIP, **options})


def test_equal_bytes_without_the_option(model: Any, tmp_path: Path):
    first, second = (raptor.compile(model, **CHIP, **options) for options in ({}, {"overlap": 1}))
    folders = [saved(program, tmp_path / name) for program, name in ((first, "a"), (second, "b"))]
    names = sorted(p.name for p in folders[0].glob("core_*"))
    assert names
    assert not (folders[0] / "resident.json").exists()
    assert all((folders[0] / n).read_bytes() == (folders[1] / n).read_bytes() for n in names)
