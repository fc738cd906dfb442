"""The blocks of `make bench-blocks`: valid models, each of which RAPTOR imports; and a row of the table."""

import onnx
import pytest

from benchmarks.programs import small_blocks
from benchmarks.programs.block_models import BLOCKS
from raptor.frontend import load


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_a_model_that_can_be_imported(name: str) -> None:
    model = BLOCKS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert load(model).graph.outputs == tuple(output.name for output in model.graph.output)


def test_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["blocks.py", "deconv1d", "--cores", "8"])
    with pytest.raises(SystemExit) as ended:
        small_blocks.main()
    assert ended.value.code == 0
    (row,) = capsys.readouterr().out.splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["deconv1d", "pass"]
    latency, interval, even, port = map(float, cells[2:6])
    assert latency >= interval >= max(even, port) > 0
    assert float(cells[-1]) == pytest.approx(interval / max(even, port), abs=0.2)
