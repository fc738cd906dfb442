"""The output directory of a C program: `make` alone, the hook of a matrix unit, refusals, faults of files and tools."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.codegen.c.back_end import REFUSED
from raptor.codegen.c.c_files import C_FILES, MATRICES, STEPS
from raptor.codegen.c.program_code import generate_c, verify_c
from raptor.codegen.c.step_table import CAPTURE, END, FORM_STEP, LOAD_STEP, MESSAGE, STORE_STEP
from raptor.common.errors import UserError, VerifyError
from raptor.options import CompileOptions, OutputOptions, collect_options
from raptor.output import files
from tests.codegen.c.programs import build, inputs, needs_compiler
from tests.paths import ROOT
from tests.pipeline import passes, thesis_model
from tests.stateful_models import recurrent_step
from validator.execution.run import prepare_machine, run_program
from validator.load.output_directory import load_output
from validator.validate import validate

CHIP: dict[str, Any] = {"xbar": 3, "xbars_per_core": 5, "cores": 16, "mapping": "raptor"}

UNIT = """
#include "pim.h"
#include <stdio.h>
/* A matrix unit with one row at a time, which says how often it is used. */
static long products;
void pim_mvm(const pim_matrix *m, pim_type x_type, const void *x, pim_type y_type, void *y) {
    if (x_type != PIM_F32 || y_type != PIM_F32 || m->type != PIM_F32) pim_fail("floats only");
    for (int j = 0; j < m->cols; j++) pim_st_f32(y, j, 0);
    for (int i = 0; i < m->rows; i++)
        for (int j = 0; j < m->cols; j++) {
            float product = pim_ld_f32(x, i) * ((const float *)m->weights)[i * m->cols + j];
            pim_st_f32(y, j, pim_ld_f32(y, j) + product);
        }
    products++;
}
__attribute__((destructor)) static void report(void) { printf("%ld products\\n", products); }
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raptor.compile(thesis_model(4, 8), backend="c", **CHIP).save(tmp_path_factory.mktemp("c") / "out")


def copied(out: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-r", out, folder / "copy"], check=True)
    return folder / "copy"


def run(words: list[Any], folder: Path) -> str:
    return subprocess.run([str(w) for w in words], cwd=folder, check=True, capture_output=True, text=True).stdout


def executed(folder: Path, *more: str) -> tuple[Any, Any]:
    """Returns global memory after `./chip`, and after the validator's run, both from the constants on."""
    program = load_output(folder, check_hashes=False)
    given = inputs(thesis_model(4, 8))
    state = prepare_machine(program, given)
    constants = slice(program.memory.constants.address, program.memory.constants.address + len(program.constants))
    state.memory[: constants.start].tofile(folder / "in.bin")
    said = run(["./chip", ".", "in.bin", "out.bin", *more], folder)
    wanted = run_program(load_output(folder, check_hashes=False), given).outputs["y"]
    return (np.fromfile(folder / "out.bin", np.float32), said), wanted


@needs_compiler
def test_make_alone_builds_a_program_that_runs(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    run(["make"], folder)
    (memory, said), wanted = executed(folder)
    assert said == ""
    assert sorted(memory.tolist()) == sorted(wanted.ravel().tolist())
    (_, said), _ = executed(folder, "-n", "3")
    assert said.endswith(" s per sample\n")
    run(["make", "clean"], folder)
    assert not (folder / "chip").exists()


@needs_compiler
def test_captured_tensors_are_those_of_layers_json(out: Path) -> None:
    report = validate(out, layers=True, samples=2, tolerance=1e-5)
    assert report.verdict == "pass"
    assert [layer.node for layer in report.layers] == ["conv"]


@needs_compiler
def test_a_matrix_unit_replaces_every_product(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    (folder / "unit.c").write_text(UNIT)
    run(["make", "EXTRA=unit.c"], folder)
    (memory, said), wanted = executed(folder)
    layer = json.loads((folder / files.REPORT).read_text())["layers"][0]
    pixels = 16 * layer["matrices"] - layer["products_skipped"]
    assert said == f"{pixels} products\n"
    assert sorted(memory.tolist()) == sorted(wanted.ravel().tolist())


def test_equal_compilations_give_equal_bytes(out: Path, tmp_path: Path) -> None:
    again = raptor.compile(thesis_model(4, 8), backend="c", **CHIP).save(tmp_path / "again")
    for path in out.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (again / path.relative_to(out)).read_bytes(), path.name


def test_the_manifest_names_the_machine_and_every_file(out: Path) -> None:
    manifest = json.loads((out / files.MANIFEST).read_text())
    assert manifest["backend"] == "c"
    assert manifest["streams"] == []
    assert {*C_FILES, STEPS, MATRICES, files.CONSTANTS} <= manifest["files"].keys()
    assert not list(out.glob("core_*"))


def test_every_refused_option_exists() -> None:
    options = collect_options(CompileOptions)
    assert REFUSED.keys() <= options.keys()
    assert OutputOptions  # --format and --weights are of the command alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_isa": True}, "base_isa=True: not with backend='c', which has no instruction set"),
        ({"rounds": True}, "rounds=True: not with backend='c', whose crossbars are written once"),
        ({"emit_ops": "flow.txt"}, "emit_ops="),
        ({"trimmable": True}, "trimmable=True: not with backend='c', whose products are exact"),
        ({"overlap": 2}, "overlap=2: not with backend='c', whose programs forget everything between two samples"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        raptor.compile(thesis_model(4, 8), backend="c", **CHIP, **options)
    assert str(caught.value).startswith(message)


def test_a_search_is_refused() -> None:
    with pytest.raises(UserError, match="not with backend='c', which has no model of time and energy"):
        raptor.compile(build("mlp3"), backend="c", optimize="energy")


def test_a_mapping_that_pimsim_has_searched(tmp_path: Path) -> None:
    file = tmp_path / "mapping.json"
    searched = raptor.compile(build("mlp3"), optimize="latency", effort=2, emit_mapping=file)
    program = raptor.compile(build("mlp3"), backend="c", mapping=str(file))
    assert program.report.xbars_used == searched.report.xbars_used
    assert program.validate(samples=2).verdict == "pass"


def test_the_list_of_steps_is_one_schedule(out: Path) -> None:
    """Every message is one entry, whose sender has its data by then: no core waits."""
    words = np.fromfile(out / STEPS, "<i4").tolist()
    sample = words[1 + words[0] :]
    found = entries(sample)
    assert found[-1] == len(sample) - 1
    kinds = Counter(sample[at] for at in found)
    report = json.loads((out / files.REPORT).read_text())["instructions"]
    assert kinds[MESSAGE] == report["send"] == report["receive"] > 0
    assert kinds[LOAD_STEP] == report["load"]
    assert kinds[FORM_STEP] == sum(report.values()) - sum(report[k] for k in ("send", "receive", "load", "store"))


def entries(words: list[int]) -> list[int]:
    """Returns where each entry of a list of steps begins."""
    sizes, found = {LOAD_STEP: 5, STORE_STEP: 5, MESSAGE: 6, CAPTURE: 5}, [0]
    while words[found[-1]] != END:
        found.append(found[-1] + (sizes.get(words[found[-1]]) or 5 + words[found[-1] + 4]))
    return found


@pytest.mark.parametrize(("kind", "word"), [(LOAD_STEP, 0), (LOAD_STEP, 1), (MESSAGE, 3), (FORM_STEP, 1)])
def test_a_step_of_another_kind_core_or_form_is_found(kind: int, word: int) -> None:
    """The verifier follows the forms of each core."""
    made = passes(thesis_model(4, 8), **CHIP)
    code = generate_c(made.program, made.arch)
    verify_c(code, made.program)
    at = next(at for at in entries(code.sample.tolist()) if code.sample[at] == kind)
    sample = code.sample.copy()
    sample[at + word] += 1
    with pytest.raises(VerifyError, match="the list of steps is not its program"):
        verify_c(replace(code, sample=sample), made.program)


def test_a_capture_that_is_missing_is_found() -> None:
    made = passes(thesis_model(4, 8), **CHIP)
    code = generate_c(made.program, made.arch)
    at = next(at for at in entries(code.sample.tolist()) if code.sample[at] == CAPTURE)
    with pytest.raises(VerifyError, match="captures of"):
        verify_c(replace(code, sample=np.delete(code.sample, np.s_[at : at + 5])), made.program)


def test_states_are_refused() -> None:
    with pytest.raises(UserError, match="not with backend='c', whose programs forget everything between two samples"):
        raptor.compile(recurrent_step("LSTM"), backend="c", states="auto")


@pytest.mark.parametrize("words", [["--format", "pim"], ["--weights", "npz"]])
def test_formats_of_other_files_are_refused(words: list[str]) -> None:
    command = [sys.executable, "-m", "raptor", "compile", "nothing.onnx", "--backend", "c", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert f"{' '.join(words)}: not with --backend c" in done.stderr


def test_an_engine_is_refused(out: Path) -> None:
    with pytest.raises(UserError, match="whose programs take no engine"):
        validate(out, engine="python")


@pytest.mark.parametrize("command", ["check", "simulate", "explain", "report"])
def test_commands_for_streams_say_that_there_are_none(command: str, out: Path) -> None:
    words = [sys.executable, "-m", "raptor", command, str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "made with --backend c, so it has no instruction streams" in done.stderr


def test_without_a_compiler(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPTOR_CC", "no-such-compiler -O2")
    with pytest.raises(UserError, match="needs a C compiler, and 'no-such-compiler -O2' is none; set RAPTOR_CC"):
        validate(out)


@needs_compiler
def test_a_program_that_does_not_build_shows_the_error(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    text = (folder / "program.c").read_text()
    (folder / "program.c").write_text(text.replace("const int pim_unit", "const in? pim_unit"))
    with pytest.raises(UserError, match=r"make: failed \(2\): (.|\n)*program.c"):
        validate(folder, check_hashes=False)
    with pytest.raises(UserError, match=r"program\.c"):
        validate(folder)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "wrong"),
    [(STEPS, b""), (STEPS, bytes(4) + b"\x63\x00\x00\x00"), (MATRICES, b"few"), (files.CONSTANTS, b"no array here")],
)
def test_wrong_files_end_the_run_with_a_sentence(name: str, wrong: bytes, out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    run(["make"], folder)
    (folder / name).write_bytes(wrong)
    (folder / "in.bin").write_bytes(bytes(4 * 64))
    done = subprocess.run(["./chip", ".", "in.bin", "out.bin"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("chip: ")


@needs_compiler
def test_wrong_usage_of_the_program(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    run(["make"], folder)
    for words in ([], ["."], [".", "a", "b", "c", "d"], [".", "missing", "b"], [".", "a", "b", "-n", "0"]):
        done = subprocess.run(["./chip", *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("chip: ")


@needs_compiler
def test_host_segments_run_beside_c_programs(tmp_path: Path) -> None:
    program = raptor.compile(build("lenet5"), backend="c", host_ops=("AveragePool",))
    assert program.check() == ()
    out = program.save(tmp_path / "out")
    assert len(list(out.glob("segment_*/program.c"))) > 1
    assert validate(out, samples=1).verdict == "pass"


@needs_compiler
def test_warnings_of_the_compiler_are_none(out: Path, tmp_path: Path) -> None:
    folder = copied(out, tmp_path)
    done = subprocess.run(["make", "CFLAGS=-O2 -Wextra"], cwd=folder, capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr
    assert os.access(folder / "chip", os.X_OK)
