"""Option `--arch` with another chip: refused if the program's matrices do not fit, a warning if its sizes differ."""

import json
from pathlib import Path
from typing import Any

import pytest

import models
import raptor
from raptor.common.errors import UserError
from tests.pipeline import arch_file
from validator.profile.profiled_program import read_profiled_program as read_profile
from validator.simulate.builtin import simulate

MATRIX = "matrix_config"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet-5 on crossbars of 128x128."""
    return raptor.compile(models.build("lenet5", seed=0)).save(tmp_path_factory.mktemp("program") / "out")


def chip(folder: Path, **changed: Any) -> Path:
    path = arch_file(folder)
    raw = json.loads(path.read_text())
    raw["chip_config"]["core_config"][MATRIX] |= changed
    path.write_text(json.dumps(raw))
    return path


@pytest.mark.parametrize("run", [simulate, read_profile])
@pytest.mark.parametrize("changed", [{"xbar_size": [64, 128]}, {"xbar_size": [128, 64]}, {"cell_precision": 4}])
def test_matrices_that_do_not_fit(run: Any, changed: dict[str, Any], program: Path, tmp_path: Path):
    small = chip(tmp_path, dac_count=64, adc_count=16, **changed)
    with pytest.raises(UserError, match=r"the matrix of .* in array group \d+ of core \d+ does not fit"):
        run(program, small)


@pytest.mark.parametrize("run", [simulate, read_profile])
def test_more_crossbars_than_a_core_has(run: Any, program: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"core \d+ has \d+ crossbars, but a core of .* has 1"):
        run(program, chip(tmp_path, xbar_array_count=1))


def test_larger_crossbars_are_simulated_with_a_warning(program: Path, tmp_path: Path):
    large = chip(tmp_path, xbar_size=[256, 256], xbar_array_count=65)
    (warning,) = simulate(program, large).warnings
    assert "xbar_array_count 64 there, 65 here, xbar_size 128x128 there, 256x256 here" in warning
    assert "edit " in warning
    assert str(program / "arch.json") in warning


def test_weights_of_4_bits_need_half_the_columns(tmp_path: Path):
    model = raptor.quantize(models.build("lenet5", seed=0), weights=4).save(tmp_path / "int4.onnx")
    program = raptor.compile(model).save(tmp_path / "out")
    (warning,) = simulate(program, chip(tmp_path, xbar_size=[128, 64], adc_count=16)).warnings
    assert "xbar_size 128x128 there, 128x64 here" in warning
    with pytest.raises(UserError, match="which hold 128x64 weights"):
        simulate(program, chip(tmp_path, xbar_size=[128, 32], adc_count=16))


def test_another_speed_is_no_warning(program: Path, tmp_path: Path):
    assert simulate(program, chip(tmp_path, adc_latency_cycle=1)).warnings == ()


def test_a_program_of_another_compiler_has_nothing_to_compare_with(program: Path, tmp_path: Path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in [*program.glob("core_*"), program / "config.json"]:
        (bare / path.name).write_bytes(path.read_bytes())
    assert simulate(bare, chip(tmp_path, xbar_size=[64, 64], dac_count=64)).warnings == ()
