"""PimIR written as MLIR and read back gives the same streams, also through mlir-opt."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from raptor import mlir, pim
from raptor.codegen import pimsim
from raptor.pim import PimProgram
from raptor.pim.ir import TensorTrace
from tests.mlir.mutations import programs
from tests.models.test_models import small_options
from tests.pipeline import THESIS_CHIP, Passes, passes, thesis_model

MLIR_OPT = shutil.which("mlir-opt") or next(
    (found for version in range(30, 15, -1) if (found := shutil.which(f"mlir-opt-{version}"))), None
)
QUICK = ("mlp", "lenet5", "lstm", "bert_tiny", "mlp3", "wavenet_cell")


def levels(of: Passes) -> dict[str, PimProgram]:
    return {"lower": of.placed, "reuse_operands": of.reused, "allocate": of.program}


def streams(program: PimProgram, made_by: str, of: Passes) -> pimsim.InstructionStreams:
    """The passes after the one that made the program."""
    if made_by == "lower":
        program = pim.reuse_operands(program)
    return pimsim.generate(program if made_by == "allocate" else pim.allocate(program, of.arch), of.arch)


def assert_equal_streams(text: str, of: Passes) -> None:
    module = mlir.load(text)
    found, wanted = streams(module.program, module.made_by, of).cores, of.streams.cores
    assert found.keys() == wanted.keys()
    for core, stream in wanted.items():
        assert found[core].records.tobytes() == stream.records.tobytes()
        assert np.array_equal(found[core].step_ends, stream.step_ends)


def content(trace: TensorTrace) -> tuple[Any, ...]:
    places = trace.core.tolist(), trace.step.tolist()
    return trace.tensor, trace.node, trace.image, trace.regions, *places, trace.element, trace.coding


@pytest.mark.parametrize("made_by", ["lower", "reuse_operands", "allocate"])
@pytest.mark.parametrize("name", ["thesis", "integers", "lines", "lookup"])
def test_every_level(name: str, made_by: str):
    of = programs()[name]
    program = levels(of)[made_by]
    text = mlir.dump(program, made_by)
    assert_equal_streams(text, of)
    read = mlir.load(text).program
    assert mlir.dump(read, made_by) == text
    assert [content(trace) for trace in read.traces] == [content(trace) for trace in program.traces]
    assert str(read) == str(program)
    for core in program.cores.values():
        assert (read.cores[core.core].groups, read.cores[core.core].local_bytes) == (core.groups, core.local_bytes)


def test_names_with_quotes_and_other_letters():
    model = thesis_model(3, 4)
    model.graph.node[0].name = 'the "first" \\ Schicht für Ö\n'
    of = passes(model, **THESIS_CHIP)
    for made_by, program in levels(of).items():
        text = mlir.dump(program, made_by)
        assert str(mlir.load(text).program) == str(program)
        assert_equal_streams(text, of)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in models.MODELS]
)
def test_models_of_the_zoo(name: str):
    of = passes(models.build(name, seed=0, **small_options(name)), mapping="rows", cores=1024)
    for made_by, program in levels(of).items():
        assert_equal_streams(mlir.dump(program, made_by), of)


def mlir_opt(text: str, *flags: str) -> bytes:
    assert MLIR_OPT is not None
    done = subprocess.run(
        [MLIR_OPT, "--allow-unregistered-dialect", *flags], input=text.encode(), capture_output=True, check=False
    )
    assert not done.returncode, done.stderr.decode()[:500]
    return done.stdout


@pytest.mark.skipif(MLIR_OPT is None, reason="there is no mlir-opt here (Debian: apt install mlir-19-tools)")
@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ["thesis", "integers", "lines", "lookup"])
def test_through_mlir_opt(name: str, generic: bool, tmp_path: Path):
    of = programs()[name]
    flags = ["--mlir-print-debuginfo", *(["--mlir-print-op-generic"] if generic else [])]
    for made_by, program in levels(of).items():
        text = mlir.dump(program, made_by)
        assert_equal_streams(mlir_opt(text, *flags).decode(), of)
        bytecode = tmp_path / "program.mlirbc"
        bytecode.write_bytes(mlir_opt(text, "--emit-bytecode"))
        assert_equal_streams(mlir_opt("", *flags, str(bytecode)).decode(), of)


@pytest.mark.slow
def test_resnet18_is_written_in_1_s_and_read_in_2():
    of = passes(models.build("resnet18", seed=0), mapping="rows")
    start = time.process_time()
    text = mlir.dump(of.placed, "lower")
    written = time.process_time()
    mlir.load(text)
    assert (written - start < 1, time.process_time() - written < 2) == (True, True)
    assert_equal_streams(text, of)
