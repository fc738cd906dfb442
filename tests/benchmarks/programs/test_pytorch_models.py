"""benchmarks/programs/pytorch_models.py without PyTorch, which is not here: the rows of its table."""

from pathlib import Path

import onnx
import pytest

from benchmarks.programs import pytorch_models
from benchmarks.programs.block_models import BLOCKS


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def export(name: str, path: Path) -> None:
        onnx.save(BLOCKS[name](), path)

    monkeypatch.setattr(pytorch_models, "export_network", export)


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *given: str) -> tuple[int, list[str]]:
    """Returns the exit status and the rows behind the head."""
    monkeypatch.setattr("sys.argv", ["pytorch_models.py", *given])
    with pytest.raises(SystemExit) as ended:
        pytorch_models.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out.splitlines()[2:]


def test_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, rows = printed(capsys, monkeypatch, "sdpa", "deconv1d", "--cores", "20")
    assert status == 0
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [each[:2] for each in cells] == [["sdpa", "pass"], ["deconv1d", "pass"]]
    for _, _, *numbers in cells:
        latency, interval, even, busiest, port, times = map(float, numbers)
        assert latency >= interval >= max(even, busiest, port) > 0
        assert times == pytest.approx(interval / even, rel=0.05)


def test_a_network_that_does_not_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_models, "MODELS", ("ffn_relu",))
    monkeypatch.setattr("raptor.compile", lambda *_, **options: (_ for _ in ()).throw(pytorch_models.RaptorError("no")))
    status, rows = printed(capsys, monkeypatch)
    assert (status, rows) == (1, ["| ffn_relu | no |"])
