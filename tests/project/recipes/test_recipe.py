"""The places that the steps of CONTRIBUTING.md name are there. Other tests follow the steps, at night."""

import re

import pytest

from tests.paths import ROOT
from tests.project.recipes.recipe import steps

SECTIONS = re.findall("^## (.*, step by step)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_place_of_each_step_is_there_once(heading: str) -> None:
    found = steps(heading)
    assert found
    for step in (step for step in found if step.place != "In the new file"):
        content = (ROOT / step.file).read_text()
        assert step.anchor is None or len(step.find_places(content)) == 1, step
