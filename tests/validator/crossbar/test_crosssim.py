"""Slices, converters and errors of programming against stored outputs of CrossSim (`vectors/make_vectors.py`)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor.target.cell_models import Adc
from raptor.target.device_file import load_device
from tests.validator.crossbar.chips import Case, defined, products
from validator.crossbar.cells import program_cells
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.converters import ConverterRanges
from validator.crossbar.programmed_chip import ProgrammedChip

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "crosssim.json").read_text())


def chip(case: Case, largest: int) -> ProgrammedChip:
    """Returns a chip whose converters reach over so many levels."""
    made = case.chip
    step = np.full(made.arrays[0].factor.shape, largest / made.codes.high)
    return replace(made, arrays=(replace(made.arrays[0], ranges=ConverterRanges(np.zeros_like(step), step)),))


@pytest.mark.parametrize("vector", VECTORS["cases"], ids=lambda v: f"{v['encoding']}-{v['cell_bits']}-{v['adc_bits']}")
def test_products(vector: dict[str, Any]):
    setup = ChipSetup(
        "sliced",
        vector["encoding"],
        "twos_complement",
        vector["cell_bits"],
        1,
        256,
        (256, 256),
        adc=Adc(bits=vector["adc_bits"]),
        levels="shared",
    )
    case = Case(np.array(VECTORS["matrix"]), np.array([VECTORS["x"]]), 8, 8, setup)
    made = chip(case, vector["largest"])
    wanted = np.clip(np.rint(vector["products"]), *made.arrays[0].product_bounds(case.x[0]))
    assert products(case, made).tolist() == [wanted.tolist()]
    assert defined(case, made).tolist() == [wanted.tolist()]
    other = chip(case, vector["largest"] + 1)
    is_cut = np.array_equal(
        wanted, made.arrays[0].product_bounds(case.x[0])[0]
    )  # then coarser converters change nothing
    assert products(case, other).tolist() != [wanted.tolist()] or vector["largest"] == 255 or is_cut
    assert (np.rint(vector["products"]) < 0).all() or not is_cut


@pytest.mark.parametrize("name", VECTORS["spreads"])
def test_errors_of_programming(name: str):
    cells = load_device(name).cells
    assert cells is not None
    setup = ChipSetup("noisy", "offset", "twos_complement", 4, 1, 256, (256, 256), levels="shared")
    for level, wanted in enumerate(VECTORS["spreads"][name]):
        found = program_cells(np.full((1, 200, 250), level), (4,), setup, cells, (0, level, 0)).levels / 15
        if level or name != "sonos":  # CrossSim lets a current of nearly 0 become negative, here it stays 0
            assert found.std() == pytest.approx(wanted, rel=0.02)
