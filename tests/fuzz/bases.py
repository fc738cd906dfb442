"""Makes good output directories, small ones of every kind, to be spoilt."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import raptor
from tests.pipeline import THESIS_CHIP
from tests.tiny_models import make_model, node, random


@cache
def bases() -> tuple[Path, ...]:
    """Returns the output directories. They are made once per process, and always with the same contents."""
    folder = Path(tempfile.mkdtemp(prefix="raptor-bases-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return (
        _thesis().save(folder / "json"),
        _thesis().save(folder / "pim", stream_format="pim", weight_format="npz"),
        _classifier().save(folder / "both", stream_format="both", weight_format="npz"),
        _rows().save(folder / "rows", stream_format="json", weight_format="npz"),
    )


def _thesis() -> raptor.Program:
    """Compiles the thesis's layer with a bias and an inner value as a second output, on twelve of sixteen cores."""
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("Add", "r k", "y")]
    constants = {"w": random(4, 8, 3, 3), "b": random(4), "k": random(1, 4, 4, 4)}
    return raptor.compile(
        make_model(nodes, {"x": (1, 8, 4, 4)}, ["y", "c"], constants), mapping="raptor", **THESIS_CHIP
    )


def _classifier() -> raptor.Program:
    """Compiles two branches, pooling and a softmax, with elements of two bytes."""
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Tanh", "p", "t"),
        node("Concat", "t p", "d", axis=1),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f v b", "s"),
        node("Softmax", "s", "y", axis=1),
    ]
    constants = {"w": random(5, 3, 3, 3), "v": random(10, 6), "b": random(6)}
    model = make_model(nodes, {"x": (1, 3, 6, 6)}, {"y": 2}, constants)
    return raptor.compile(model, xbar=(6, 4), xbars_per_core=4, cores=30, bits=16, cell_bits=16, mapping="raptor")


def _rows() -> raptor.Program:
    """Compiles two layers that stream, with copies."""
    nodes = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("Conv", "r v", "y", name="last")]
    constants = {"w": random(4, 3, 3, 3), "v": random(3, 4, 3, 3)}
    model = make_model(nodes, {"x": (1, 3, 6, 6)}, ["y"], constants)
    return raptor.compile(model, xbar=8, xbars_per_core=20, cores=12, mapping="rows")
