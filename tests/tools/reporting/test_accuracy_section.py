"""The section of the page on accuracy: measurements that are made up, as `raptor accuracy --json` writes them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import raptor
from raptor.common.errors import UserError
from raptor.tools.reporting.accuracy_section import draw_sweep, make_accuracy_table, make_noise_table
from raptor.tools.reporting.figure_export import report_json
from raptor.tools.reporting.program_facts import ProgramFacts, gather_facts
from tests.pipeline import thesis_model
from tests.tools.reporting.measured import measured
from validator.accuracy.accuracy_report import read_report, to_json

EXACT = replace(measured("tiny"), crossbar="integer", device=None, settings={}, converters=(), layers=(), sweep=())


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> ProgramFacts:
    out = tmp_path_factory.mktemp("accuracies") / "out"
    raptor.compile(thesis_model(3, 3), xbar=3, xbars_per_core=5, cores=16).save(out)
    return gather_facts(out, accuracies=[measured("tiny"), EXACT])


def test_chips_side_by_side(facts: ProgramFacts) -> None:
    table = make_accuracy_table(facts.accuracies)
    rows = [dict(zip((c.name for c in table.columns), (cell.shown for cell in row), strict=True)) for row in table.rows]
    assert [row["crossbars"] for row in rows] == ["made-up (noisy)", "integer"]
    assert [row["lossless layers"] for row in rows] == ["0 of 1", ""]
    assert {row["top-1"] for row in rows} == {"75.0%"}
    assert rows[0]["95 %"] == "70.0% to 80.0%"
    assert rows[0]["onnxruntime"] == "95.0%"


def test_layers(facts: ProgramFacts) -> None:
    """Layers that the compiler does not know come last."""
    table = make_noise_table(facts)
    rows = [[cell.shown for cell in row] for row in table.rows]
    assert rows == [
        ["conv", "made-up (noisy)", "21.5", "25 of 100", "300", "9", "64", "2", "4"],
        ["head", "made-up (noisy)", "no difference", *[""] * 6],
    ]
    assert table.rows[0][3].share == 0.25


def test_a_line_for_each_value_of_the_other_setting(facts: ProgramFacts) -> None:
    figure = draw_sweep(facts.accuracies[0], "accuracy-0")
    assert [line["name"] for line in figure.data] == ["rows_at_once 64", "rows_at_once 128"]
    assert [line["x"] for line in figure.data] == [["4", "5"]] * 2
    assert figure.data[0]["y"] == pytest.approx([40, 50])
    assert figure.data[0]["error_y"]["array"] == pytest.approx([50, 40])


def test_a_file_is_read_as_it_was_written(facts: ProgramFacts, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    for report in facts.accuracies:
        path.write_bytes(to_json(report))
        assert read_report(path) == report


def test_json(facts: ProgramFacts) -> None:
    found = json.loads(report_json(facts))
    assert found["accuracies"] == [json.loads(to_json(report)) for report in facts.accuracies]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"samples": "many"}, "not what this version of raptor accuracy --json writes: samples"),
        ({"version": 1}, r"of another version \(format 1, not 2\): measure again"),
    ],
)
def test_files_that_are_none(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    path = tmp_path / "found.json"
    path.write_text(json.dumps(json.loads(to_json(EXACT)) | changed))
    with pytest.raises(UserError, match=message):
        read_report(path)


def test_a_measurement_of_another_model(facts: ProgramFacts) -> None:
    with pytest.raises(UserError, match="of model other; the program is of tiny"):
        gather_facts(Path(facts.profile.program), accuracies=[measured("other")])
