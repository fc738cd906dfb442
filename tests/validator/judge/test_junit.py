"""JUnit's XML of a validation: a case for each tensor, whole, and well formed whatever the names are."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.validator.test_cli import FIRST, gemm, second
from validator.__main__ import main
from validator.judge.comparison import TensorComparison
from validator.judge.junit import to_junit
from validator.judge.validation_report import IntegerFigures, LayerComparison, SegmentVerdict, ValidationReport

RIGHT = TensorComparison("y", (1, 5), 0.0, 0.0, (0, 1), 1.0, 1.0, passed=True)
WRONG = replace(RIGHT, name="z", max_absolute=np.inf, max_relative=np.inf, got=np.nan, passed=False)


def suite(report: ValidationReport, name: str = "out") -> ElementTree.Element:
    (found,) = ElementTree.fromstring(to_junit(report, name))
    return found


def test_each_tensor_is_a_case(tmp_path: Path) -> None:
    out = gemm().write(tmp_path / "out")
    assert main([str(out), "--layers", "--junit", str(tmp_path / "r.xml"), "--quiet"]) == 0
    (found,) = ElementTree.parse(tmp_path / "r.xml").getroot()
    cases = [(case.get("classname"), case.get("name"), len(case)) for case in found]
    assert cases == [("hand.layer gemm", "g", 0), ("hand.output", "y", 0)]


def test_a_failure_carries_the_difference(tmp_path: Path) -> None:
    out = gemm(cores=[FIRST, second("vvsub")]).write(tmp_path / "out")
    assert main([str(out), "--junit", str(tmp_path / "r.xml"), "--quiet"]) == 1
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "1", "0")
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert " got " in failure.get("message", "")
    assert "tolerance 0.0001" in (failure.text or "")


def test_a_run_that_did_not_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert main([str(tmp_path / "out"), "--junit", str(tmp_path / "r.xml")]) == 2
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    (case,) = root.iter("testcase")
    assert (case.get("classname"), case.get("name"), case[0].get("type")) == ("out.run", "run", "bad input")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((name, name) for name in ('<a & "b">', "]]>", "名\n前", "")),
        ("\x00\x1b[31m", r"\x00\x1b[31m"),
        ("\ud800", r"\ud800"),
        ("\ufffe", r"\ufffe"),
    ],
)
def test_odd_names(name: str, shown: str) -> None:
    layers = (LayerComparison(name, replace(WRONG, name=name)),)
    found = suite(ValidationReport("mismatch", 1e-4, model=name, outputs=(RIGHT,), layers=layers), name)
    assert (found.get("tests"), found.get("failures")) == ("2", "1")
    assert found[0].get("name") == (shown or "layer ")
    assert "inf" in (found[0][0].get("message") or "")


def test_integers_that_onnxruntime_computes_otherwise_fail() -> None:
    """All tensors equal their definition, and the verdict is a mismatch still."""
    figures: Any = IntegerFigures(10, 0, 10, departing=2, explained=1)
    found = suite(ValidationReport("mismatch", 0, model="m", outputs=(RIGHT,), integers=figures))
    assert [len(case) for case in found] == [0, 1]
    agreed = replace(figures, departing=1)
    found = suite(ValidationReport("pass", 0, model="m", outputs=(RIGHT,), integers=agreed))
    assert [len(case) for case in found] == [0, 0]


def test_a_segment_that_differs_fails_although_the_whole_does_not() -> None:
    layers = (LayerComparison("n", RIGHT),)
    chip = SegmentVerdict("segment_000", "chip", passed=False, cut=(RIGHT,), outputs=(WRONG,), layers=layers)
    host = SegmentVerdict("segment_001.onnx", "host", passed=True, cut=(RIGHT,))
    found = suite(ValidationReport("mismatch", 1e-4, model="m", outputs=(RIGHT,), segments=(chip, host)))
    assert [(case.get("classname"), case.get("name"), len(case)) for case in found] == [
        ("m.segment_000 layer n", "y", 0),
        ("m.segment_000 output", "z", 1),
        ("m.segment_000 cut", "y", 0),
        ("m.segment_001.onnx cut", "y", 0),
        ("m.output", "y", 0),
    ]


def test_every_mismatch_has_a_failure_and_every_pass_none() -> None:
    assert suite(ValidationReport("mismatch", 1e-4, outputs=(RIGHT, WRONG))).get("failures") == "1"
    assert suite(ValidationReport("pass", 1e-4, outputs=(RIGHT,))).get("failures") == "0"


@pytest.mark.parametrize("place", ["-", "missing/r.xml", "."])
def test_places_that_cannot_be_written(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused before the program runs."""
    path = place if place == "-" else str(tmp_path / place)
    assert main([str(tmp_path / "nothing"), "--junit", path]) == 2
    assert "--junit" in capsys.readouterr().err


def test_an_earlier_file_stays_if_the_new_one_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = gemm().write(tmp_path / "out"), tmp_path / "r.xml"
    file.write_text("before")

    def fail(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("validator.judge.junit.to_junit", fail)
    with pytest.raises(MemoryError):
        main([str(out), "--junit", str(file), "--quiet"])
    assert file.read_text() == "before"
