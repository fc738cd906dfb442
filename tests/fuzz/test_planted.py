"""Checks that the table of planted defects keeps step with the code; `make planted` plants them."""

import ast
import builtins
import keyword
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz import planted
from tests.fuzz.campaign import BrokenError, Draw
from tests.fuzz.defects import ALL, DEFECTS, ROOT, WRONG_DECISIONS, Defect

TAP = Defect("floats", "Window._positions", "* 3/3 -> _1")


@pytest.mark.parametrize("defect", ALL, ids=lambda d: f"{d.function}: {d.rewrite}")
def test_the_place_is_there_and_the_change_is_one(defect: Defect):
    assert ast.dump(defect.tree()) != ast.dump(ast.parse(defect.file.read_text()))


def test_what_a_defect_changes_is_told():
    assert str(TAP) == "Window._positions: tap * dilation -> tap"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"function": "Window._nowhere"}, "0 functions Window._nowhere"),
        ({"function": "__post_init__"}, "functions __post_init__: ['raptor."),
        ({"rewrite": "* 3/4 -> _1"}, r"3 nodes have the words '\*':"),
        ({"rewrite": "* 3/3 -> _1.nothing"}, "the module has no nothing"),
        ({"rewrite": "* -> _1"}, "WORDS k/n"),
    ],
)
def test_a_defect_that_does_not_fit_the_code_is_told(change: dict[str, str], told: str):
    with pytest.raises(BrokenError, match=told.replace("[", r"\[")):
        replace(TAP, **change).tree()


def test_places_are_not_found_by_names_of_raptor():
    """A renaming in RAPTOR needs no edit of the table."""
    words = {word.removesuffix("()") for defect in ALL for word in defect.rewrite.partition(" -> ")[0].split()}
    names = {word.partition(".")[0] for word in words if word.replace(".", "").isidentifier()}
    others = {*dir(ast), *dir(builtins), *keyword.kwlist, "np", "math"}
    assert {"Call", "min", "np", "or"} <= names <= others


def test_no_two_defects_make_the_same_compiler():
    assert [found for found, count in Counter((d.file, ast.dump(d.tree())) for d in ALL).items() if count > 1] == []


@pytest.mark.parametrize("test", sorted({wrong.check for wrong in WRONG_DECISIONS}))
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
    harmless = replace(TAP, rewrite="* 3/3 -> _ + 0")
    with capfd.disabled():  # the child prints to the real output
        monkeypatch.setattr(planted, "drawn", lambda _: TAP)
        assert planted.case(Draw("planted", 0), tmp_path).startswith("caught by ")
        monkeypatch.setattr(planted, "drawn", lambda _: harmless)
        with pytest.raises(BrokenError, match="nothing catches"):
            planted.case(Draw("planted", 0), tmp_path)
