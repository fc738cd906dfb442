"""The page on silicon that no model has seen: each ratio is computed again from its row."""

import re

import pytest

from raptor.target.components.adc_model import estimate_adc
from tests.paths import ROOT

PAGE = ROOT / "docs" / "explanation" / "held-out.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}, {row[1]}")
def test_a_ratio_of_the_page(row: list[str]):
    _, figure, *numbers, source = row
    bits, gsps, node, published, computed, ratio = map(float, numbers)
    found = estimate_adc(bits, gsps, node)
    value = found.um2 if "um2" in figure else found.pj + found.static_mw / gsps
    if many := re.search(r"of (\d+) (ADCs|conversions)", figure):
        value *= int(many[1])
    assert f"{value:.3g}" == f"{computed:.3g}"
    assert f"{value / published:.3g}" == f"{ratio:.3g}"
    assert source


def test_no_chip_is_left_out():
    assert {row[0] for row in rows()} == {"Jia 2020", "NeuRRAM", "HERMES", "survey, 40 nm", "survey, 28 nm"}
    assert len(rows()) == 8
