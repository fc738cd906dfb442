"""Everything that README and docs/ show is run, and prints what they say; generated pages are those of the code."""

import difflib
import re
import shutil
from pathlib import Path

import pytest

import models
import raptor
from docgen import stored_figures
from docgen.generated_files import generate_files
from tests.project.documents import GIVEN, ROOT, RUN, SHOWN, Page, blocks, pages
from validator.checks.rule_registry import RULES
from validator.simulate.builtin import simulate

HISTORY = ("CHANGELOG.md", "docs/lab", "docs/developers/decisions")
"""Pages about the past, which name files of the past."""


@pytest.mark.parametrize("name", pages())
def test_what_a_page_shows(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run pytest --update-golden if the output printed now is right."""
    if (given := GIVEN / Path(name).stem).is_dir():
        shutil.copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    page = Page((ROOT / name).read_text())
    page.run()
    if request.config.getoption("--update-golden"):
        (ROOT / name).write_text(page.updated())
        return
    lines = difflib.unified_diff(page.text.splitlines(), page.updated().splitlines(), name, "now", lineterm="")
    assert not page.edits, "\n".join(lines)


def test_the_learning_pages_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers follow the pages in one directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("tutorials/quickstart", "explanation/walkthrough", "how-to/faq", "reference/api"):
        page = Page((ROOT / "docs" / f"{name}.md").read_text())
        page.run()
        assert not page.edits, name


@pytest.mark.parametrize("name", pages())
def test_no_block_escapes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert {block.language for block in blocks(text)} <= {*RUN, *SHOWN}
    prose = "".join(re.split(r"^```\w*\n.*?^```$", text, flags=re.MULTILINE | re.DOTALL))
    assert "```" not in prose
    assert not re.findall(r"\n\n(?: {4}|\t).*", prose), "indented blocks are not run: fence them"
    assert not re.findall(r"^(?!#)\S.*\n1[.)] .*", prose, re.MULTILINE), (
        "a sentence's end that CommonMark reads as a list"
    )


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    """Links of docs/ are checked by `make docs`."""
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())
    assert all((ROOT / target).exists() for target in targets if not target.startswith("https://"))


@pytest.mark.parametrize("name", [p for p in pages() if not p.startswith(HISTORY)])
def test_paths_in_prose_exist(name: str) -> None:
    """Parts in capitals stand for a name, and a recipe makes new files."""
    text = re.sub(r"In the new file `[^`]+`", "", (ROOT / name).read_text())
    found = re.findall(r"`((?:raptor|validator|tests|models|benchmarks|docs|docgen|examples)/[\w./-]+)`", text)
    assert not [path for path in found if not re.search(r"[A-Z]{3}", path) and not (ROOT / path).exists()]


def test_the_readme_names_every_folder() -> None:
    text = (ROOT / "README.md").read_text()
    for folder in sorted(path.parent.name for path in (ROOT / "raptor").glob("*/__init__.py")):
        assert text.count(f"`raptor/{folder}`") == 1, folder


def test_the_figures_of_the_readme_are_those_of_the_code() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"[{len(RULES)} checks]" in text
    passed, cases = re.findall(r"(\d+) of the (\d+) cases", " ".join(text.split()))[0]
    assert f"{passed} of {cases}" in (ROOT / "docs" / "reference" / "conformance.md").read_text()


@pytest.mark.slow
def test_the_times_of_the_readme_are_those_of_the_simulation(tmp_path: Path) -> None:
    model = models.build("resnet18")
    for mapping, shown in zip(("rows", "raptor"), stored_figures.read_table("readme").rows, strict=True):
        assert shown[0].startswith(f"`{mapping}`")
        out = raptor.compile(model, mapping=mapping).save(tmp_path / mapping, stream_format="pim", weight_format="npz")
        found = simulate(out, out / "arch.json", mode="throughput")
        assert (found.latency_ns or 0) / 1e6 == pytest.approx(float(shown[1]), rel=0.001)
        assert found.samples_per_s == pytest.approx(float(shown[2]), rel=0.005)


def test_generated_files_are_up_to_date() -> None:
    """Run `make docs-generate` if this fails."""
    for name, content in generate_files().items():
        assert (ROOT / "docs" / name).read_bytes() == content, name


def test_drawings_hold_what_was_compiled() -> None:
    """54 matrices on 11 cores (thesis, figure 4.8), 12 messages between them."""
    drawings = {name: content.decode() for name, content in generate_files().items() if name.endswith(".svg")}
    assert drawings["drawings/cores.svg"].count('class="w"') == 54
    assert drawings["drawings/messages.svg"].count("marker-end") == 12
    assert drawings["drawings/timeline.svg"].count(">core ") == 11
    assert drawings["drawings/overlap.svg"].count('class="w"') == 6 + 6 + 5 + 4
