"""The page of the full ResNet-18: how large it is, and that it is drawn without errors."""

from pathlib import Path

import pytest

import models
import raptor
from raptor.tools.reporting.program_facts import gather_facts
from raptor.tools.reporting.report_page import render_report
from tests.browser import browser
from tests.chromium import Chromium

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mapping", ["raptor", "rows"])
def test_the_page_is_small_and_drawn(chromium_paths: Chromium, tmp_path: Path, mapping: str):
    program = raptor.compile(models.build("resnet18", seed=0), xbar=128, cores=200, mapping=mapping)
    out = program.save(tmp_path / "out", stream_format="pim", weight_format="npz")
    page = tmp_path / "page.html"
    page.write_text(render_report(gather_facts(out)))
    assert page.stat().st_size < 8e6
    with browser(chromium_paths) as chromium:
        chromium.open(page)
        assert chromium.errors() == []
