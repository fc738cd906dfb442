"""Models as C programs: within 1e-5 of onnxruntime, and equal to the validator's engine, on x86 and on RISC-V."""

from pathlib import Path

import pytest
from onnx import ModelProto

import raptor
from tests.codegen.c.programs import (
    FLOATS,
    INTEGERS,
    assert_equal,
    build,
    build_int8,
    needs_compiler,
    needs_riscv,
    on_riscv,
)
from validator.validate import validate

pytestmark = needs_compiler

ON_RISCV = ("mlp", "lenet5", "mlp3", "wavenet", "resnet18")
LIBM = {"wavenet", "lstm", "bert"}
"""Models with functions of the C library, whose last bit may differ from the engine's."""


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPTOR_CC", "cc -O1")


def judge(model: ModelProto, folder: Path, samples: int = 2) -> None:
    out = raptor.compile(model, backend="c").save(folder / "out")
    has_integers = b'"numbers": "int"' in (out / "manifest.json").read_bytes()
    report = validate(out, samples=samples, tolerance=None if has_integers else 1e-5)
    assert report.verdict == "pass", report


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, tmp_path: Path) -> None:
    judge(build(name), tmp_path)
    if name not in LIBM:
        assert_equal(build(name))


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, tmp_path: Path) -> None:
    model = build_int8(name, tmp_path)
    judge(model, tmp_path)
    assert_equal(model)


@needs_riscv
@pytest.mark.parametrize("name", ON_RISCV)
def test_floats_on_riscv(name: str, tmp_path: Path) -> None:
    with on_riscv():
        judge(build(name), tmp_path, samples=1)
        if name not in LIBM:
            assert_equal(build(name))


@needs_riscv
@pytest.mark.parametrize("name", ON_RISCV)
def test_integers_on_riscv(name: str, tmp_path: Path) -> None:
    model = build_int8(name, tmp_path)
    with on_riscv():
        judge(model, tmp_path, samples=1)
        assert_equal(model)
