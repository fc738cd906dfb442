"""Chromium, which a bare machine has not: tests that open pages are skipped there, unless `--browser=required`."""

from collections.abc import Iterable
from dataclasses import dataclass
from shutil import which

import pytest

INSTALL = "apt-get install chromium chromium-driver"
_MISSING = f"no Chromium; `{INSTALL}` brings it"


@dataclass(frozen=True)
class Chromium:
    """Paths of the program, and of what drives it."""

    program: str
    driver: str


def find(*, required: bool) -> Chromium:
    """Finds Chromium on the PATH. Without it the test is skipped or, if it is `required`, fails."""
    program, driver = which("chromium") or which("google-chrome"), which("chromedriver")
    if program is not None and driver is not None:
        return Chromium(program, driver)
    if required:
        pytest.fail(f"--browser=required, but there is {_MISSING}", pytrace=False)
    pytest.skip(_MISSING)


def summary(skipped: Iterable[pytest.TestReport]) -> str | None:
    """Returns one sentence if some of the skipped tests needed Chromium."""
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple | list))
    count = sum(_MISSING in reason for reason in reasons)
    if not count:
        return None
    tests = "1 test that opens a page in a browser was" if count == 1 else f"{count} tests that open pages were"
    return f"{tests} skipped: {_MISSING}"
