"""The places that the steps of CONTRIBUTING.md name are in the sources; slow tests follow the steps."""

import re

import pytest

from tests.paths import ROOT
from tests.project.recipes.recipe import steps

SECTIONS = re.findall(r"^## (.*, step by step)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_each_place_is_one_line(section: str) -> None:
    found = [step for step in steps(section) if step.anchor is not None]
    missing = [step.anchor for step in found if (ROOT / step.file).read_text().count(step.anchor or "") != 1]
    assert found
    assert missing == []
