"""`raptor compile --from-mlir` refuses a wrong module with its line and status 2, and leaves nothing behind."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import raptor
from raptor import mlir
from raptor.common.errors import UserError
from raptor.compiler.pass_driver import Driver
from raptor.mlir.program_file import ProgramFile
from tests.mlir.mutations import text_of
from tests.mlir.wrong_modules import VERIFIED, WRONG
from tests.pipeline import THESIS_CHIP, thesis_model

ELSEWHERE = (
    "a core without a halt",
    "a brace too few",
    "a probe too few",
    "a core without its number",
    "a slot of another shape",
    "another version",
    "another kind of floats",
)
"""Modules whose fault shows at another line than the change."""


OPTIONS: dict[str, Any] = {"mapping": "raptor", **THESIS_CHIP}


def compile_from(path: Path, text: str, model: onnx.ModelProto | None = None) -> "raptor.Program":
    """Compiles the thesis's layer, and goes on with the program of a file."""
    path.write_text(text)
    found = ProgramFile.read(path)
    return raptor.compile(model or thesis_model(3, 5), driver=Driver(passes={found.after: found}), **OPTIONS)


def test_there_are_enough():
    assert sum(wrong.everywhere for wrong in WRONG.values()) >= 20


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_module(name: str):
    wrong = WRONG[name]
    with pytest.raises(UserError, match=f"^module: line \\d+: .*(?:{wrong.says})") as refused:
        mlir.load(wrong.text)
    if name not in ELSEWHERE and "twice" not in wrong.says:
        (line,) = re.findall(r"line (\d+)", str(refused.value))[:1]
        assert abs(int(line) - wrong.line) <= 1


@pytest.mark.parametrize("name", VERIFIED)
def test_a_program_that_the_verifier_refuses(name: str, tmp_path: Path):
    pattern, change, words = VERIFIED[name]
    text, count = re.subn(pattern, change, text_of("thesis"), count=1)
    assert count == 1
    with pytest.raises(UserError, match=f"changed.mlir.*: line [1-9]\\d*: .*(?:{words})"):
        compile_from(tmp_path / "changed.mlir", text)


def test_a_module_of_another_model(tmp_path: Path):
    with pytest.raises(UserError, match="was made from another model, chip or options"):
        compile_from(tmp_path / "changed.mlir", text_of("thesis"), thesis_model(4, 5))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "line 1: expected a module"),
        (b"ML\xefR\x0dMLIR19", "is bytecode; mlir-opt"),
        (b'"builtin.module"() ({\n\xff', "line 2: is no UTF-8"),
        (b"module {\n}\n", "line 1: the module does not say pim.version"),
        (b"module attributes {a = " + b"[" * 5000, "nested more than"),
        (b"module attributes {a = " + b"9" * 5000, "more than 64 bits"),
        (b"module attributes {a = 1 : i64, a = 2 : i64} {}", "given twice"),
        (b'module {} {-# dialect_resources: { builtin: { w: "0x08000000" } } #-}', "weights come from the model"),
        (b'module {\n"func.func"() ({\n}) : () -> ()\n}', "line 1: is no program; a model of the dialect onnx"),
        (b"func.func @f() { return }", "expected a module"),
    ],
)
def test_files_that_are_no_modules(content: bytes, says: str, tmp_path: Path):
    path = tmp_path / "x.mlir"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"x.mlir'?: .*{says}"):
        ProgramFile.read(path)


@pytest.mark.parametrize("path", ["missing.mlir", "."])
def test_no_file(path: str, tmp_path: Path):
    with pytest.raises(UserError, match="from_mlir"):
        ProgramFile.read(tmp_path / path)


@pytest.mark.parametrize(
    ("pattern", "change", "says"),
    [
        (r'layer = "\w+"', 'layer = "other"', "has no such matrix"),
        (r'name = "c"|name = "y"', 'name = "z"', "is another one in the model"),
    ],
)
def test_what_only_the_model_knows(pattern: str, change: str, says: str, tmp_path: Path):
    text = re.sub(pattern, change, text_of("thesis"), count=1)
    with pytest.raises(UserError, match=f"line \\d+: .*{says}"):
        compile_from(tmp_path / "changed.mlir", text)


def swapped(text: str) -> str:
    """The operands of every sum in the other order."""
    return re.sub(r'("pim\.vadd"\()(%\d+), (%\d+)', r"\1\3, \2", text)


def unchanged(text: str) -> str:
    return text


@pytest.mark.parametrize(("change", "is_changed"), [(unchanged, False), (swapped, True)])
def test_a_program_goes_on(change: Callable[[str], str], is_changed: bool, tmp_path: Path):
    own, options = thesis_model(3, 5), OPTIONS
    text = change(text_of("thesis"))
    program = compile_from(tmp_path / "changed.mlir", text)
    first = raptor.compile(own, **options).save(tmp_path / "first")
    second = program.save(tmp_path / "second")
    names = {path.name for path in first.rglob("*") if path.is_file() and "core" in path.name}
    differ = [
        path.name
        for path in first.rglob("*")
        if path.is_file() and path.read_bytes() != (second / path.relative_to(first)).read_bytes()
    ]
    assert names
    assert bool({*differ} - {"manifest.json", "report.json"}) == is_changed
    assert program.validate().passed
    assert any("has changed the result of lower" in warning for warning in program.report.warnings)
