"""The models of `make bench-slow`: valid, each of which RAPTOR imports; and the table."""

import onnx
import pytest

from benchmarks.programs import slow_kinds
from benchmarks.programs.slow_models import KINDS, MODELS, build_model
from raptor.frontend import load


def test_each_kind_has_several_models_and_each_model_one_kind() -> None:
    assert all(len(models) >= 3 for models in KINDS.values())
    assert sum(map(len, KINDS.values())) == len(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_valid_and_can_be_imported(name: str) -> None:
    model = build_model(name)
    onnx.checker.check_model(model, full_check=True)
    assert load(model).graph.outputs == tuple(output.name for output in model.graph.output)


def test_a_model_is_always_the_same() -> None:
    assert build_model("sequence").SerializeToString() == build_model("sequence").SerializeToString()


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["slow_kinds", "sequence", "dense_rows", "--cores", "6", "12"])
    with pytest.raises(SystemExit) as ended:
        slow_kinds.main()
    assert ended.value.code == 0
    head, _, *rows, means, largest = (
        [cell.strip() for cell in line[2:-2].split(" | ")] for line in capsys.readouterr().out.splitlines()
    )
    assert head[:5] == ["model", "interval, 6 cores", "latency, 6 cores", "bound, 6 cores", "times, 6 cores"]
    assert [row[0] for row in rows] == ["sequence", "dense_rows"]
    for row in rows:
        for first in (1, 5):
            interval, latency, bound, times = map(float, row[first : first + 4])
            assert latency >= interval >= bound > 0
            assert times == pytest.approx(interval / bound, abs=0.01)
    for place in (4, 8):
        times = [float(row[place]) for row in rows]
        assert float(means[place]) == pytest.approx((times[0] * times[1]) ** 0.5, abs=0.01)
        assert float(largest[place]) == max(times)
    assert set(means[1:4]) == {""}


def test_a_wrong_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = slow_kinds.MeasuredProgram(interval_ns=3000, latency_ns=4000, bound_ns=1500, passed=False)
    assert slow_kinds.format_cells(wrong) == ("3", "4", "1.5", "2.00, wrong")
    monkeypatch.setattr("benchmarks.programs.slow_kinds.measure", lambda *_: wrong)
    monkeypatch.setattr("sys.argv", ["slow_kinds", "sequence"])
    with pytest.raises(SystemExit) as ended:
        slow_kinds.main()
    assert ended.value.code == 1
