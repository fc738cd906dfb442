"""Programs with steps after power-up and with states as MLIR: the same output after the detour, and wrong modules."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import raptor
from raptor import mlir
from raptor.common.errors import UserError
from raptor.compiler.pass_driver import Driver
from raptor.mlir.program_file import ProgramFile
from tests.mlir.mutations import pooled_model
from tests.mlir.test_round_trip import MLIR_OPT, mlir_opt
from tests.stateful_models import recurrent_step

PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "constants": (pooled_model, {"resident_constants": True, "xbar": 8, "cores": 8}),
    "states": (partial(recurrent_step, "LSTM"), {"states": "auto", "cores": 8}),
    "both": (partial(recurrent_step, "GRU"), {"states": "auto", "resident_constants": True, "cores": 8}),
}
LEVELS = ("lower", "keep_constants", "reuse_operands", "allocate")


def saved(name: str, driver: Driver, folder: Path) -> dict[str, bytes]:
    """The files of a compilation, but for those with a note about where it went on."""
    make, options = PROGRAMS[name]
    raptor.compile(make(), driver=driver, **options).save(folder)
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes() for name, path in files.items() if path.name not in ("manifest.json", "report.json")
    }


def go_on(name: str, path: Path, folder: Path) -> dict[str, bytes]:
    found = ProgramFile.read(path)
    return saved(name, Driver(passes={found.after: found}), folder)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_output(name: str, tmp_path: Path):
    wanted = saved(name, Driver(dump=tmp_path / "ir", dump_format="mlir"), tmp_path / "first")
    assert any(file.startswith("init/") for file in wanted)
    for level in LEVELS:
        (path,) = (tmp_path / "ir").glob(f"*-{level}.mlir")
        text = path.read_text()
        assert mlir.dump(mlir.load(text).program, level) == text
        assert go_on(name, path, tmp_path / level) == wanted
        if MLIR_OPT is not None:
            path.write_bytes(mlir_opt(text, "--mlir-print-debuginfo"))
            assert go_on(name, path, tmp_path / f"{level} by mlir-opt") == wanted
    assert '"pim.init"' in text
    assert ('"pim.state"' in text) == ("states" in PROGRAMS[name][1])


@pytest.mark.parametrize(
    ("pattern", "change", "says"),
    [
        (r'(    "pim\.init".*\n)', r"\1\1", "line \\d+: pim.init: there is another one"),
        (r'(    "pim\.probe".*\n(?:(?!.*pim\.halt).*\n)*)', r'\1    "pim.init"() : () -> ()\n', "or a probe"),
        (
            r'(    "pim\.load"\((%\d+)\) .* : (\(memref<\w+>\)) -> \(\)( loc.*\n))(    "pim\.init")',
            r'\1    "pim.store"(\2) {globalDst = 0 : i64} : \3 -> ()\4\5',
            r"line [1-9]\d*: .*meets another core or stores",
        ),
    ],
)
def test_a_wrong_module(pattern: str, change: str, says: str, tmp_path: Path):
    saved("states", Driver(dump=tmp_path / "ir", dump_format="mlir"), tmp_path / "first")
    (path,) = (tmp_path / "ir").glob("*-lower.mlir")
    text, count = re.subn(pattern, change, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        go_on("states", path, tmp_path / "again")
