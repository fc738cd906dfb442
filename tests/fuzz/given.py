"""Files that options name: mappings, architectures and inputs. A spoilt file is refused, or the result is right."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from onnx import ModelProto, numpy_helper

import raptor
from tests.fuzz import isolation, programs
from tests.fuzz.campaign import BrokenError, Part
from tests.fuzz.hostile import endless
from tests.fuzz.mutations import MisfitError, change_value, extend, flip_bits, splice, truncate
from tests.tiny_models import make_model, node, random

SPOIL = (flip_bits, flip_bits, truncate, extend, splice)
MAPPINGS = ("raptor", "rows", "pixelwise")
CHIP = {"xbar": 8, "xbars_per_core": 6, "cores": 20}


@cache
def given() -> Path:
    """Makes the good files once and returns their folder.

    It holds a model, its mappings `NAME.json`, a folder `arch` with an architecture file, and files of inputs.
    """
    folder = Path(tempfile.mkdtemp(prefix="raptor-given-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "model.onnx").write_bytes(_model().SerializeToString())
    for name in MAPPINGS:
        raptor.compile(folder / "model.onnx", mapping=name, emit_mapping=folder / f"{name}.json", **CHIP)
    searched = {"optimize": "throughput", "effort": 2, "emit_mapping": folder / "searched.json"}
    program = raptor.compile(folder / "model.onnx", **CHIP, **searched)
    out = program.save(folder / "out")
    (folder / "arch").mkdir()
    for name in ("arch.json", "network.json"):
        shutil.copy(out / name, folder / "arch")
    image = random(1, 3, 6, 6)
    np.save(folder / "x.npy", image)
    np.savez(folder / "x.npz", x=image)
    (folder / "x.pb").write_bytes(numpy_helper.from_array(image, "x").SerializeToString())
    return folder


def _model() -> ModelProto:
    """Makes a model of layers that stream, layers that do not, depthwise and pooling layers, layers of one pixel."""
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r d", "s", pads=[1, 1, 1, 1], group=6, name="depthwise"),
        node("MaxPool", "s", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "q", name="pointwise"),
        node("GlobalAveragePool", "q", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f u b", "y"),
    ]
    constants = {"w": random(6, 3, 3, 3), "d": random(6, 1, 3, 3), "v": random(9, 6, 1, 1)}
    constants |= {"u": random(9, 10), "b": random(10)}
    return make_model(nodes, {"x": (1, 3, 6, 6)}, {"y": 2}, constants)


def mapping(folder: Path, rng: Random) -> str:
    """Spoils a stored mapping and compiles with it."""
    name = rng.choice((*MAPPINGS, "rows", "searched", "searched"))
    done = _spoilt(given() / f"{name}.json", folder / "mapping", rng)
    chip = [part for option, value in CHIP.items() for part in (f"--{option.replace('_', '-')}", str(value))]
    files = ("--mapping", folder / "mapping" / f"{name}.json", "--emit-mapping", folder / "copy.json")
    return _compiled(folder, f"{name}: {done}", *chip, *files)


def architecture(folder: Path, rng: Random) -> str:
    """Spoils an architecture file or its network table and compiles for it."""
    done = _spoilt(given() / "arch", folder / "arch", rng)
    return _compiled(folder, done, "--arch", folder / "arch" / "arch.json")


def inputs(folder: Path, rng: Random) -> str:
    """Spoils a file of inputs. Exit status 1 is allowed: a changed bit may make an input infinite, or very large."""
    name = f"x.{rng.choice(('npy', 'npz', 'pb'))}"
    done = _spoilt(given() / name, folder / "input", rng)
    arguments = ("validate", given() / "out", "--input", folder / "input" / name, "--quiet")
    return f"validate {_status(done, *arguments, allowed=(0, 1, 2))}"


def _spoilt(source: Path, folder: Path, rng: Random) -> str:
    """Copies a file, or the files of a folder, into a new `folder`, and spoils one. Returns what was done."""
    if source.is_dir():
        shutil.copytree(source, folder)
    else:
        folder.mkdir()
        shutil.copy(source, folder)
    chosen = rng.choice(sorted(p for p in folder.iterdir()))
    while True:
        try:
            if chosen.suffix == ".json" and rng.random() < 0.9:
                return endless(folder, rng) if rng.random() < 0.1 else f"{chosen.name}: {change_value(chosen, rng)}"
            return rng.choice(SPOIL)(folder, rng)
        except MisfitError:
            pass


def _compiled(folder: Path, done: str, *options: str | Path) -> str:
    out = folder / "out"
    status = _status(done, "compile", given() / "model.onnx", "-o", out, "-q", *options)
    if status == 2:
        if out.exists() or (folder / "copy.json").exists():
            raise BrokenError(f"{done}: refused, but there is an output")
        return "refused"
    _status(done, "validate", out, "--quiet", allowed=(0,))
    status = _status(done, "simulate", out, "--quiet", allowed=(0,), excuse="but time is counted in picoseconds")
    return "compiled, right" if status == 0 else "compiled, right, too slow to simulate"


def _status(
    done: str, *arguments: str | Path, allowed: tuple[int, ...] = (0, 2), excuse: str | None = None
) -> int | None:
    """Runs `raptor` and returns its exit status. excuse: a message with which it may always refuse."""
    outcome = isolation.raptor(*arguments)
    refused = excuse is not None and excuse in outcome.err
    if fault := outcome.fault((*allowed, 2) if refused else allowed):
        raise BrokenError(f"{done}: {' '.join(map(str, arguments))}: {fault}")
    return outcome.status


WAYS: tuple[Callable[[Path, Random], str], ...] = (mapping, mapping, mapping, architecture, inputs)


def case(rng: Random, folder: Path) -> str:
    """Tries one of `WAYS`."""
    way = rng.choice(WAYS)
    return f"{way.__name__}: {way(folder, rng)}"


def prepare() -> None:
    programs.prepare()
    given()


GIVEN = Part("given", "files that options name", short=12, long=1000, case=case, prepare=prepare)
