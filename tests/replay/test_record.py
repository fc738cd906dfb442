"""Recordings of what a commit compiles: of a program, of a model that it does not have, of an error."""

from pathlib import Path

import pytest

from tests.models.test_models import small_options
from tests.paths import ROOT
from tests.replay.cases import Case
from tests.replay.compare import differences
from tests.replay.record import record

SIZES = small_options("mlp")
MLP = Case("small", "mlp", SIZES, {"mapping": "rows", "cores": 64})


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (MLP, {"mapping.json", "out"}),
        (Case("none", "no_such_model", {}), {"error.txt"}),
        (Case("one core", "mlp", SIZES, {"cores": 1, "xbar": 8, "xbars_per_core": 1}), {"error.txt"}),
    ],
)
def test_a_case_is_recorded(case: Case, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # record changes it
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("before", "after"):
        assert record(case.plain(), tmp_path / name) == case.name
        assert {path.name for path in (tmp_path / name).iterdir()} == found
    assert not list(differences(tmp_path / "before", tmp_path / "after"))
