"""Rubbish for the public Python API: it is accepted, or raises the errors of docs/reference/api.md and leaves no
files."""

import inspect
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import numpy as np
import pytest

import models
import raptor
from raptor.common.errors import InternalError, RaptorError
from raptor.integrations.onnx_backend import BACKEND_OPTIONS, RaptorBackend
from raptor.options import list_keywords
from tests.paths import ROOT
from tests.pipeline import conv_model
from tests.tiny_models import node, random

API = ROOT / "docs" / "reference" / "api.md"
MODEL = conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True, relu=True)
X = random(1, 5, 4, 4, seed=3)
CHIP = {"xbar": 8, "cores": 8}
NUMBERS = [-1, 0, 1.5, math.nan, math.inf, 10**30, -(10**30), 10**5000, 1j, np.float64(0.5), np.bool_(True)]
TEXTS = ["", "20", "xml", "128x", "a\0b", "\udc80", "\ud800", "x" * 5000, "a/" * 3000, "x\ny", b"bytes", b"\xff"]
NESTED = [[], {}, (), [1], (1,), (1, 2, 3), [None], {1: 2}, {"x": 1}, {"x": "a"}, {"x": [1.5]}, {"x": object()}, {"x"}]
OBJECTS = [None, True, False, object(), int, len, np.zeros((2, 2)), np.array(3), Path("missing"), Path("x" * 300)]
RUBBISH: list[Any] = [*NUMBERS, *TEXTS, *NESTED, *OBJECTS]

UNKNOWN = "no_such_option"


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments with which a function works, given a saved program; what it may raise; what its `**` stands for."""

    valid: Callable[[Path], Mapping[str, Any]] = lambda _: {}
    errors: tuple[type[Exception], ...] = (RaptorError,)
    more: tuple[str, ...] = ()


def trim_arguments(folder: Path) -> Mapping[str, Any]:
    """Returns arguments of `raptor.trim`: a trimmable program and inputs, made beside a saved one."""
    out, data = folder.parent / "trimmable", folder.parent / "x.npz"
    if not out.exists():
        np.savez(data, x=X)
        quantised = raptor.quantize(MODEL, samples=1).save(folder.parent / "int8.onnx")
        raptor.compile(quantised, trimmable=True, **CHIP).save(out)
    return {"folder": out, "data": data, "cells": "sonos"}


def harden_arguments(folder: Path) -> Mapping[str, Any]:
    """Returns arguments of `raptor.harden`: inputs, made beside a saved program."""
    np.savez(folder.parent / "x.npz", x=X)
    return {"model": MODEL, "data": folder.parent / "x.npz", "cells": "sonos"}


WITH_TORCH = {"raptor.train", "raptor.torch.harden"}
"""Functions that need PyTorch: tests/tools/train tries them."""

COMPILE = tuple(sorted(BACKEND_OPTIONS))
CASES: dict[str, Case] = {
    "raptor.compile": Case(lambda _: {"model": MODEL, **CHIP}),
    "raptor.harden": Case(harden_arguments),
    "raptor.inspect": Case(lambda _: {"model": MODEL, "xbar": 8}),
    "raptor.load": Case(lambda saved: {"folder": saved}),
    "raptor.quantize": Case(lambda _: {"model": MODEL, "samples": 1}),
    "raptor.search_policy": Case(lambda _: {"model": MODEL, "budget": {"latency": 0.999}, "samples": 1}),
    "raptor.simulate": Case(lambda saved: {"program": saved}),
    "raptor.trim": Case(trim_arguments),
    "raptor.device.open": Case(),
    "raptor.target.arch.load": Case(),
    "raptor.compiler.analysis.explain.explain": Case(lambda saved: {"folder": saved}),
    "raptor.api.Program.save": Case(lambda _: {"folder": "saved"}),
    "raptor.api.Program.run": Case(lambda _: {"inputs": {"x": X}}),
    "raptor.api.Program.validate": Case(lambda _: {"samples": 1}),
    "raptor.api.Program.simulate": Case(),
    "raptor.api.Program.check": Case(),
    "raptor.api.Program.explain": Case(),
    "raptor.integrations.onnx_backend.RaptorBackend.is_compatible": Case(lambda _: {"model": MODEL}),
    "raptor.integrations.onnx_backend.RaptorBackend.prepare": Case(lambda _: {"model": MODEL}, more=COMPILE),
    "raptor.integrations.onnx_backend.RaptorBackend.run_model": Case(
        lambda _: {"model": MODEL, "inputs": [X], **CHIP}, more=COMPILE
    ),
    "raptor.integrations.onnx_backend.RaptorBackend.run_node": Case(
        lambda _: {"node": node("Relu", "x", "y"), "inputs": [X], **CHIP}, more=(*COMPILE, "opset_version")
    ),
    "raptor.integrations.onnx_backend.RaptorBackend.supports_device": Case(lambda _: {"device": "CPU"}),
    "raptor.integrations.onnx_backend.RaptorRep.run": Case(lambda _: {"inputs": [X]}),
    "validator.simulate.builtin.simulate": Case(lambda saved: {"program": saved}),
    "validator.checks.check": Case(lambda saved: {"path": saved}),
    "validator.validate.validate": Case(lambda saved: {"out": saved, "samples": 1}),
    "models.build": Case(lambda _: {"name": "lenet5"}, (ValueError, models.UnknownModelError), ("classes", "pool")),
}


def _documented() -> Iterator[str]:
    """Yields functions of docs/reference/api.md and `raptor.__all__`, and methods of classes that are more than
    values."""
    names = re.findall(r"^::: (\S+)$", API.read_text(), re.MULTILINE) + [f"raptor.{name}" for name in raptor.__all__]
    for name in names:
        thing = resolve_name(name)
        if inspect.isfunction(thing):
            yield name
        elif thing in (raptor.Program, RaptorBackend):
            own = f"{thing.__module__}.{thing.__qualname__}"
            yield from (f"{own}.{m}" for m in vars(thing) if not m.startswith("_") and callable(getattr(thing, m)))


def _parameters(name: str) -> Iterator[str]:
    for parameter in inspect.signature(resolve_name(name)).parameters.values():
        if unpacked := get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else ():
            yield from sorted(list_keywords(unpacked[0]))
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from (*CASES[name].more, UNKNOWN)
        elif parameter.name not in ("self", "cls", "kwargs"):
            yield parameter.name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raptor.compile(MODEL, **CHIP).save(tmp_path_factory.mktemp("saved") / "out")


def _bound(name: str) -> Callable[..., Any]:
    """The function; a method is that of an object of its own."""
    if name.startswith("raptor.api.Program."):
        return getattr(raptor.compile(MODEL, **CHIP), name.rpartition(".")[2])
    return (
        RaptorBackend.prepare(MODEL, **CHIP).run
        if name == "raptor.integrations.onnx_backend.RaptorRep.run"
        else resolve_name(name)
    )


def test_every_documented_function_is_tried() -> None:
    documented = set(_documented())
    assert {"raptor.compile", "raptor.api.Program.save", "models.build"} <= documented
    assert documented <= {*CASES, *WITH_TORCH}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which also temporary files would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # It takes long, and has no argument that a caller gives.
    monkeypatch.setattr("raptor.tools.quantise.precision_search._PolicySearch.run", lambda *_: None)
    (tmp_path / "there.txt").write_text("already")
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_the_valid_arguments_work(name: str, saved: Path, folder: Path) -> None:
    _bound(name)(**CASES[name].valid(saved))


@pytest.mark.parametrize(("name", "parameter"), [(name, p) for name in CASES for p in _parameters(name)])
def test_rubbish(name: str, parameter: str, saved: Path, folder: Path) -> None:
    function, case = _bound(name), CASES[name]
    valid = dict(case.valid(saved))
    if parameter not in ("folder", UNKNOWN):
        function(**valid)  # a program's temporary directory is there from now on
    before = _listing(folder)
    for value in RUBBISH:
        error = _raised(lambda: function(**(valid | {parameter: value})))  # noqa: B023 called at once
        said = f"{name}({parameter}={_shown(value)}): {type(error).__name__}: {error}"
        assert error is None or isinstance(error, case.errors), said
        assert not isinstance(error, InternalError), said
        left = _listing(folder) - before
        assert error is None or (str(error) and not left), f"{said}, left {left}"
        _remove(folder, left)


def _raised(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:  # which class it is of is what the test asks
        return error
    return None


def _shown(value: Any) -> str:
    return "10**5000" if isinstance(value, int) and value > 10**40 else f"{value!r:.80}"


def test_messages_speak_python(tmp_path: Path) -> None:
    program = raptor.compile(MODEL, **CHIP)
    folder = program.save(tmp_path / "out")
    for call, message in (
        (lambda: raptor.compile(MODEL, cores=0), "cores=0: expected a whole number, 1 to 2147483647"),
        (lambda: raptor.compile(MODEL, cores="20"), "cores='20': expected a whole number, 1 to 2147483647"),
        (lambda: raptor.compile(MODEL, bits=True), "bits=True: expected a whole number, 1 to 32"),
        (lambda: raptor.compile(MODEL, mapping=3), "mapping=3: expected a file, or one of: rows, raptor, pixelwise"),
        (lambda: raptor.compile(MODEL, shapes={"z": (1,)}), "shapes: no input 'z'; the inputs are x"),
        (lambda: program.save(folder), f"{folder}: exists; choose another with folder=, or replace it with force=True"),
        (lambda: program.save("b", stream_format="xml"), "stream_format='xml': expected one of: json, pim, both"),
    ):
        error = _raised(call)
        assert isinstance(error, raptor.UserError)
        assert str(error) == message
        assert "--" not in str(error)


def test_levers_of_a_chip_too_small_speak_python() -> None:
    error = _raised(lambda: raptor.compile(MODEL, xbar=2, cores=1, xbars_per_core=1))
    assert isinstance(error, raptor.CapacityError)
    assert [lever.partition("=")[0] for lever in error.levers] == ["cores", "xbars_per_core", "larger crossbars (xbar"]


def test_a_size_as_the_command_line_has_it() -> None:
    wanted = raptor.compile(MODEL, xbar=(8, 16), cores=8).report
    assert raptor.compile(MODEL, xbar="8x16", cores=8).report == wanted
    assert raptor.compile(MODEL, xbar=[8, 16], cores=np.int64(8)).report == wanted


def _listing(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def _remove(folder: Path, paths: set[Path]) -> None:
    for path in sorted(paths):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
