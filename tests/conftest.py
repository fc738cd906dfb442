"""Golden texts, the browser, and one set of hypothesis settings: the same examples on every run, no deadline."""

import difflib
import gc
import re
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import chromium, tiers
from tests.paths import GOLDEN, ROOT

settings.register_profile(
    "raptor", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("raptor")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the texts in tests/golden instead of comparing"
    )
    parser.addoption("--graphs-seed", type=int, default=0, help="which random graphs the slow tests try")
    parser.addoption(
        "--browser",
        choices=("optional", "required"),
        default="optional",
        help="whether tests that open pages are skipped, or fail, where there is no Chromium",
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.mark(items)


def pytest_collection_finish() -> None:
    """Leaves ten thousand collected tests to themselves: to look at them again and again takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Prints last how many tests were skipped for lack of a browser, where people see it."""
    yield
    if sentence := chromium.summary(terminalreporter.getreports("skipped")):
        terminalreporter.write_line(sentence, yellow=True)


@pytest.fixture(scope="session")
def chromium_paths(request: pytest.FixtureRequest) -> chromium.Chromium:
    """Paths of Chromium; a test that asks for them does not run without."""
    return chromium.find(required=request.config.getoption("--browser") == "required")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text, part)`: the text is that of tests/golden/<folders>/<module>/<test>[.<part>].txt."""
    stem = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
    folder = GOLDEN / request.path.relative_to(ROOT / "tests").with_suffix("")

    def check(text: str, part: str = "") -> None:
        path = folder / f"{stem}{f'.{part}' if part else ''}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"{path} is missing; write it with: make goldens")
        _compare(text, path)

    return check


def _compare(text: str, path: Path) -> None:
    wanted = path.read_text()
    if text == wanted:
        return
    lines = difflib.unified_diff(wanted.splitlines(), text.splitlines(), f"{path.name}", "now", lineterm="")
    shown = "\n".join(lines)
    pytest.fail(f"{path} differs (if that is right: make goldens):\n{shown}", pytrace=False)
