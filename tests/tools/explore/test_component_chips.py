"""Studies that vary components: one value changes energy, time, area and accuracy together."""

from pathlib import Path

import numpy as np
import pytest

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.tools.explore.study.study_file import read_study
from raptor.tools.explore.study_driver import run_study

STUDY = """
objectives = {{ area_mm2 = "min", energy_pj = "min", top1 = "max" }}
constraints = {{ power_peak_w = "<= 10 W" }}
study = {{ name = "bits", models = ["digits.onnx"], sampler = "grid", trials = 4, components = "example" }}
accuracy = {{ data = ["test.npz"], crossbar = "sliced" }}
space = {{ components.chip.cores = [16], components.adc.bits = {bits} }}
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trained network of integers, and 30 labelled images."""
    folder = tmp_path_factory.mktemp("digits")
    training, test = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[:100])
    np.savez(folder / "test.npz", x=test.pixels[:30], y=test.digits[:30])
    raptor.quantize(MODEL, data=folder / "calibration.npz", per_channel=True).save(folder / "digits.onnx")
    return folder


def test_bits_of_a_converter_change_all_figures(digits: Path):
    (digits / "study.toml").write_text(STUDY.format(bits="[3, 5, 7, 8]"))
    outcomes = run_study(read_study(digits / "study.toml"))
    failed, *found = sorted(outcomes, key=lambda one: one.trial.point["components.adc.bits"])
    assert (failed.state, failed.reason[:60]) == (
        "infeasible",
        "digits.onnx: components: adc: the model of ADCs is for 4 to ",
    )
    five, seven, eight = (one.figures for one in found)
    assert [one["adc_bits"] for one in (five, seven, eight)] == [5, 7, 8]
    for name in ("energy_pj", "area_mm2", "power_peak_w"):
        assert five[name] < seven[name] < eight[name], name
    assert five["latency_ns"] < eight["latency_ns"]
    assert seven["latency_ns"] < 1.005 * eight["latency_ns"]
    assert five["top1"] < 0.5 < 0.9 < seven["top1"] == eight["top1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STUDY.format(bits="[8]").replace(', components = "example"', ""), "needs study.components"),
        (STUDY.format(bits="[8]") + "options = { cores = 4 }", "cores: study.components says it"),
        (STUDY.format(bits="[8]") + 'options = { arch = "isaac" }', "arch: study.components says it"),
    ],
)
def test_components_that_contradict_the_study(digits: Path, text: str, said: str):
    (digits / "wrong.toml").write_text(text)
    with pytest.raises(UserError, match=said):
        read_study(digits / "wrong.toml")
