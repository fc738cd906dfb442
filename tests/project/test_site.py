"""The documentation as people see it: built strictly, served, opened in a real Chromium."""

import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import browser
from tests.chromium import Chromium
from tests.paths import ROOT

pytestmark = pytest.mark.browser


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def _build(configuration: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "--site-dir", site]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serves the site and yields its address."""
    site = tmp_path_factory.mktemp("site")
    built = _build(ROOT / "mkdocs.yml", site)
    assert built.returncode == 0, built.stderr
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def opened(chromium: Chromium, url: str, profile: Path) -> tuple[str, list[str]]:
    """The page after its scripts have run, and what they wrote on the console."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=4000"]
    command = [chromium.program, *flags, f"--user-data-dir={profile}", "--dump-dom", url]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return ended.stdout, re.findall(r"CONSOLE.*", ended.stderr)


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ("index.html", "multiply matrices inside memory"),
        ("explanation/concepts.html", "drawings/timeline.svg"),
        ("explanation/walkthrough.html", "mbiw="),
        ("reference/api.html", "raptor.compile"),
        ("reference/cli.html", "raptor compile"),
        ("reference/checks.html#width-unset", "width-unset"),
        ("explanation/comparison.html#pimcomp", "PIMCOMP"),
        ("how-to/faq.html?h=quantise", "<mark data-md-highlight"),
    ],
)
def test_a_page_opens(chromium_paths: Chromium, address: str, page: str, seen: str, tmp_path: Path) -> None:
    dom, console = opened(chromium_paths, f"{address}/{page}", tmp_path)
    assert console == []
    assert "<h1" in dom
    assert seen in dom


def test_a_dead_link_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\nIt leads [nowhere](nowhere.md).\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    validation = settings[settings.index("validation:") : settings.index("theme:")]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: A site\n{validation}")
    built = _build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    assert "a link 'nowhere.md', but the target is not found" in built.stderr
    assert "mkdocs build --strict >" in (ROOT / "Makefile").read_text()  # --quiet would hide it


@pytest.mark.parametrize("name", ["quickstart", "cli", "design", "developers/design"])
def test_an_old_address_leads_to_the_page(chromium_paths: Chromium, address: str, name: str, tmp_path: Path) -> None:
    """Pages lay beside each other before they were sorted into folders; the design was one page before it was two."""
    dom, _ = opened(chromium_paths, f"{address}/{name}.html", tmp_path)
    assert "<h1" in dom
    assert "Redirecting" not in dom


def test_drawings_are_loaded(chromium_paths: Chromium, address: str, tmp_path: Path) -> None:
    """An SVG that is not well-formed has no size."""
    for drawing in sorted((ROOT / "docs" / "drawings").iterdir()):
        dom, console = opened(chromium_paths, f"{address}/drawings/{drawing.name}", tmp_path)
        assert console == []
        assert "parsererror" not in dom
        assert dom.count("<rect") > 5


def test_a_phone_shows_the_limits_of_operators(chromium_paths: Chromium, address: str) -> None:
    """Five columns do not fit beside each other."""
    with browser(chromium_paths) as chromium:
        size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        chromium.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        chromium.driver.get(f"{address}/reference/operators.html")
        cells = chromium.all("table td:last-child:not(:empty)")
        assert len(cells) > 20
        assert all(cell.rect["x"] + cell.rect["width"] <= 400 for cell in cells)
