"""Settings by name and device files: what they change, what is refused, and that the page tells all of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from raptor.common.errors import UserError
from raptor.target import arch
from raptor.target.cell_models import ENCODINGS, INPUT_CODINGS
from raptor.target.device_file import device_presets, load_device
from raptor.tools.cli.app import build_commands
from tests.paths import ROOT
from validator.crossbar.chip_settings import CHIP_SETTINGS, make_setup

PAGE = (ROOT / "docs" / "how-to" / "analog.md").read_text()
EXAMPLES = {
    "encoding": "flipped",
    "inputs": "offset",
    "levels": "shared",
    "idle": "unformed",
    "adc_range": "unit",
    "adc_scope": "column",
    "compensation": "layer",
    "lossless_rows": "yes",
    "dac_bits": "2",
    "adc_bits": "5",
    "cut_weights": "0.5",
}

COMMAND = build_commands()
"""All commands, made once."""


def test_the_page_tells_every_setting_and_encoding():
    for name in (*CHIP_SETTINGS, *ENCODINGS, *INPUT_CODINGS):
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("name", CHIP_SETTINGS)
def test_every_setting_changes_the_chip(name: str):
    chip, device = arch.load("bench"), load_device("reram-milo")
    given = {"adc_bits": "7"} if name != "adc_bits" else {}
    before = make_setup("noisy", chip, device, given)
    after = make_setup("noisy", chip, device, given | {name: EXAMPLES.get(name, "1")})
    assert before != after


def test_what_nothing_names_comes_from_the_architecture():
    chip = arch.load("isaac")
    found = make_setup("sliced", chip, None, {})
    assert (found.cell_bits, found.dac_bits, found.rows_at_once, found.xbar) == (2, 1, 128, (128, 128))
    assert found.adc is None
    assert make_setup("sliced", chip, load_device("reram-milo"), {}).cell_bits == 4


def test_converters_of_differences_need_a_sign():
    given = {"adc_bits": "1", "encoding": "differential_analog"}
    with pytest.raises(UserError, match="need at least 2 bits"):
        make_setup("sliced", arch.load("isaac"), None, given)


@pytest.mark.parametrize("name", device_presets())
def test_presets_are_shown(name: str):
    done = CliRunner().invoke(COMMAND, ["arch", "device", name])
    assert done.exit_code == 0
    assert load_device(name).source in done.output
    assert name in CliRunner().invoke(COMMAND, ["arch", "device"]).output


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"off": 5.0, "on": 1.0}, "off 5 is not below on 1"),
        ({"off": 0.0, "on": 1.0, "unit": "nA", "wire_ohm": 1.0}, "wire_ohm needs conductances in uS"),
        ({"off": 0.0, "on": 1.0, "stuck_on": 0.6, "stuck_off": 0.6}, "more than all cells are stuck"),
        ({"off": 0.0, "on": 1.0, "noise": 1.0}, "no such field: 'noise'"),
    ],
)
def test_device_files_that_are_wrong(tmp_path: Path, cells: dict, message: str):
    (tmp_path / "d.json").write_text(json.dumps({"version": 1, "name": "x", "source": "y", "cells": cells}))
    with pytest.raises(UserError, match=message):
        load_device(tmp_path / "d.json")
