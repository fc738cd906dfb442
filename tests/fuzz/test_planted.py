"""Checks that the table of planted defects keeps step with the code; `make planted` plants them."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import planted
from tests.fuzz.campaign import BrokenError, Draw
from tests.fuzz.decisions import WRONG
from tests.fuzz.defects import DEFECTS, ROOT, Defect

ALL = (*DEFECTS, *(wrong.defect for wrong in WRONG))


@pytest.mark.parametrize("defect", ALL, ids=lambda d: f"{d.file}: {d.old[:40]}")
def test_the_text_is_there_and_the_change_is_python(defect: Defect):
    """The change must be more than a comment or a line break."""
    assert ast.dump(ast.parse(defect.source())) != ast.dump(ast.parse((ROOT / defect.file).read_text()))


def test_a_text_that_is_gone_is_told():
    with pytest.raises(BrokenError, match="mend this table"):
        Defect("raptor/common/errors.py", "no such text", "").source()


def test_no_two_defects_make_the_same_compiler():
    """Two defects may be equal although they are written differently, with a longer text of the same place."""
    assert [found for found, count in Counter((d.file, d.source()) for d in ALL).items() if count > 1] == []


@pytest.mark.parametrize("test", sorted({wrong.test for wrong in WRONG}))
def test_the_test_that_must_see_it_is_there(test: str):
    file, _, name = test.partition("::")
    assert f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_seeds_in_a_row_draw_every_defect_once():
    for first in (0, 1, planted.seed_of_commit()):
        assert {planted.drawn(first + i) for i in range(len(DEFECTS))} == set(DEFECTS)


def test_the_dozen_depends_on_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planted, "ROOT", tmp_path)
    assert planted.seed_of_commit() == 0  # no history here
    seeds: list[int] = []
    _git(tmp_path, "init", "--quiet")
    for message in ("one", "two"):
        _git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", message)
        seeds.append(planted.seed_of_commit())
        assert planted.seed_of_commit() == seeds[-1]
    dozens = [{planted.drawn(seed + i) for i in range(planted.PLANTED.short)} for seed in seeds]
    assert [len(dozen) for dozen in dozens] == [12, 12]
    assert dozens[0] != dozens[1]


def _git(folder: Path, *words: str) -> None:
    """Runs git with fixed names and dates, so that the commits have the same hashes everywhere."""
    options = ("user.name=a", "user.email=a@b", "commit.gpgsign=false")
    date = {"GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z"}
    flags = [word for option in options for word in ("-c", option)]
    environment = date | {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    subprocess.run(["git", *flags, *words], cwd=folder, env=environment, check=True)


@pytest.mark.slow
def test_a_defect_is_caught_and_a_change_of_nothing_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    """A campaign that plants no defect, or reports every defect as caught, fails here."""
    monkeypatch.setattr(planted, "CASES", planted.CASES[:1])
    wrong = Defect(
        "raptor/graph/window.py", "at = output * stride - pad + tap * dilation", "at = output * stride - pad + tap"
    )
    harmless = Defect(wrong.file, wrong.old, f"{wrong.old} + 0")
    with capfd.disabled():  # the child prints to the real output
        monkeypatch.setattr(planted, "drawn", lambda _: wrong)
        assert planted.case(Draw("planted", 0), tmp_path).startswith("caught by ")
        monkeypatch.setattr(planted, "drawn", lambda _: harmless)
        with pytest.raises(BrokenError, match="nothing catches"):
            planted.case(Draw("planted", 0), tmp_path)
