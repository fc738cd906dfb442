"""The table of exports, with an exporter that writes files of tests."""

import sys
from pathlib import Path

import pytest

from benchmarks.correctness import exported_decoders
from tests import decoder_models

FAKE = """
import sys
assert sys.argv[1] == "fake"
print("a line of the exporter's own")
print("right", "fp32", {right!r}, sep="\\t")
print("broken", "fp32", {broken!r}, sep="\\t")
print("other", "int4", "failed: no such operator", sep="\\t")
"""


def test_a_cell_is_a_time_and_the_equal_tokens_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, broken, script = (tmp_path / name for name in ("right.onnx", "broken.onnx", "make.py"))
    right.write_bytes(decoder_models.plain_decoder(layers=1).SerializeToString())
    broken.write_bytes(b"none")
    script.write_text(FAKE.format(right=str(right), broken=str(broken)))
    monkeypatch.setattr(exported_decoders, "MAKE_EXPORTS", script)
    monkeypatch.setattr(sys, "argv", ["exported_decoders", f"fake={sys.executable}"])
    exported_decoders.main()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    head, _, *rows = lines
    assert head == ["model", "fake, fp32", "fake, int4"]
    assert [row[0] for row in rows] == ["right", "broken", "other"]
    assert rows[0][1].endswith(" us, 16 of 16")
    assert float(rows[0][1].partition(" us")[0]) > 1
    assert str(broken) in rows[1][1]
    assert rows[2][1:] == ["-", "not exported (no such operator)"]
