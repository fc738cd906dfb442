"""The plug-in of mlir-opt, built from the source that the table makes: accepts RAPTOR's modules, refuses wrong ones."""

import shutil
import subprocess
from pathlib import Path

import pytest

from raptor import mlir
from raptor.mlir import plugin
from raptor.mlir.dialect import all_dialects
from tests.mlir.mutations import programs
from tests.mlir.test_round_trip import assert_equal_streams, levels
from tests.mlir.wrong_modules import WRONG

LLVM = next(
    (
        folder
        for folder in sorted(Path("/usr/lib").glob("llvm-*"), reverse=True)
        if all((folder / "bin" / tool).is_file() for tool in ("mlir-opt", "mlir-tblgen"))
    ),
    None,
)
needs_llvm = pytest.mark.skipif(
    LLVM is None or shutil.which("make") is None or shutil.which("g++") is None,
    reason="no mlir-opt with headers here (Debian: apt install libmlir-19-dev llvm-19-dev mlir-19-tools g++)",
)


def test_the_source_has_every_operation(tmp_path: Path):
    assert plugin.main([str(tmp_path / "plugin")]) == 0
    for dialect, specs in all_dialects().items():
        source = (tmp_path / "plugin" / f"{dialect.capitalize()}.td").read_text()
        assert all(f"def {spec.class_name} : {dialect.capitalize()}_Op<" in source for spec in specs.values())


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert [plugin.main([]), plugin.main(["--help"]), plugin.main([str(tmp_path / "file")])] == [2, 2, 2]
    assert "usage" in capsys.readouterr().err


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    plugin.write_plugin(folder)
    subprocess.run(["make", "-s", f"LLVM={LLVM}"], cwd=folder, check=True, capture_output=True)
    return folder / "Raptor.so"


def run_plugin(library: Path, text: str) -> subprocess.CompletedProcess[bytes]:
    command = [f"{LLVM}/bin/mlir-opt", f"--load-dialect-plugin={library}", "--mlir-print-debuginfo"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=False)


@needs_llvm
@pytest.mark.slow
def test_accepted_and_printed(library: Path):
    for of in programs().values():
        for made_by, program in levels(of).items():
            done = run_plugin(library, mlir.dump(program, made_by))
            assert not done.returncode, done.stderr.decode()[:500]
            assert_equal_streams(done.stdout.decode(), of)
        done = run_plugin(library, mlir.dump(of.schedule, "schedule"))
        assert not done.returncode, done.stderr.decode()[:500]
        assert mlir.load(done.stdout.decode()).made_by == "schedule"


@needs_llvm
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.everywhere])
def test_a_wrong_module(library: Path, name: str):
    done = run_plugin(library, WRONG[name].text)
    assert done.returncode == 1
    assert b"error:" in done.stderr
