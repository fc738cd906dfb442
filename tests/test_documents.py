"""Everything that README and docs/ show is run, and prints what they say; generated pages are those of the code."""

import difflib
import re
from pathlib import Path

import pytest

from docgen.everything import files
from tests.documents import ROOT, RUN, SHOWN, Page, blocks, pages


@pytest.mark.parametrize("name", pages())
def test_what_a_page_shows(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If what is printed now is right: pytest --update-golden."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    page = Page((ROOT / name).read_text())
    page.run()
    if request.config.getoption("--update-golden"):
        (ROOT / name).write_text(page.updated())
        return
    lines = difflib.unified_diff(page.text.splitlines(), page.updated().splitlines(), name, "now", lineterm="")
    assert not page.edits, "\n".join(lines)


@pytest.mark.parametrize("name", pages())
def test_no_block_escapes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert {block.language for block in blocks(text)} <= {*RUN, *SHOWN}
    prose = "".join(re.split(r"^```\w*\n.*?^```$", text, flags=re.MULTILINE | re.DOTALL))
    assert "```" not in prose
    assert not re.findall(r"\n\n(?: {4}|\t).*", prose), "indented blocks are not run: fence them"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Those of docs/ are checked by `make docs`."""
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
    assert all((ROOT / target).exists() for target in targets if not target.startswith("https://"))


def test_generated_files_are_up_to_date() -> None:
    """If not: make docs-generate."""
    for name, content in files().items():
        assert (ROOT / "docs" / name).read_bytes() == content, name


def test_drawings_hold_what_was_compiled() -> None:
    """54 matrices on 11 cores (thesis, figure 4.8), 12 messages between them."""
    drawings = {name: content.decode() for name, content in files().items() if name.endswith(".svg")}
    assert drawings["drawings/cores.svg"].count('class="w"') == 54
    assert drawings["drawings/messages.svg"].count("marker-end") == 12
    assert drawings["drawings/timeline.svg"].count(">core ") == 11
