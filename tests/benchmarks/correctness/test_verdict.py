"""The figures of docs/explanation/verdict.md: right programs pass, changed ones do not, and the table counts who is
wrong."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.correctness import verdict


def test_a_model_of_the_zoo_and_its_changes() -> None:
    lines = {line["defect"]: line for line in verdict.judge_zoo(1, 1, wrong=True)}
    assert {line["case"] for line in lines.values()} == {"lenet5"}
    assert all(lines["right"][rule] for rule in verdict.JUDGE_RULES)
    for change in verdict.CHANGES:
        assert not any(lines[change][rule] for rule in verdict.JUDGE_RULES)


def test_right_programs_only() -> None:
    assert [line["defect"] for line in verdict.graphs(1, 2, wrong=False)] == ["right", "right"]


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A right program that `old` refuses, a wrong one that `own` accepts, one that was not compiled."""
    rules = dict.fromkeys(verdict.JUDGE_RULES, True)
    lines = [
        {"part": "zoo", "defect": "right", **rules, "old": False},
        {"part": "zoo", "defect": "right", **rules},
        {"part": "graphs", "defect": "swapped", **dict.fromkeys(rules, False), "own": True},
        {"part": "graphs", "defect": "refused"},
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(sys, "argv", ["verdict.py", "-o", str(path)])
    verdict.main()
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| zoo | right | 2 | 1 | 0 | 0 | 0 |",
        "| graphs | swapped | 1 | 0 | 1 | 0 | 0 |",
    ]
