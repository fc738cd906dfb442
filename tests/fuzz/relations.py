"""Changes of a model, or of the surroundings, that must not change the result."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from onnx import ModelProto

import raptor
from raptor.common.errors import CapacityError
from tests.all_graphs.cases import build
from tests.fuzz import programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.faults import content
from tests.fuzz.graphs import GROWN, chip
from tests.tiny_models import Array, make_model, node

Outputs = dict[str, Array]
Relation = Callable[[Draw, Path], None]
ROUNDING = 1e-5
"""Difference allowed if additions are in another order, relative to the largest output."""


def drawn(rng: Random) -> dict[str, Any]:
    """Draws a chip, and a strategy that takes any graph."""
    return chip(rng) | {"mapping": rng.choice(("raptor", "raptor", "rows"))}


def outputs(model: ModelProto, inputs: Outputs, chosen: dict[str, Any]) -> Outputs:
    """Compiles and runs a model and returns its outputs. The chip gets more cores or crossbars if the model needs them.

    It has few cores at first, because the network table grows with their square.
    """
    chosen = chosen | {"cores": min(chosen["cores"], 90)}
    for _ in range(4):
        try:
            return raptor.compile(model, **chosen).run(inputs)
        except CapacityError as e:
            chosen[GROWN[e.resource]] = e.needed
    return raptor.compile(model, **chosen).run(inputs)


def same(one: Outputs, two: Outputs, tolerance: float = 0.0) -> None:
    """Raises `BrokenError` if outputs, in order, differ by more than `tolerance` (relative to the largest)."""
    for (name, a), b in zip(one.items(), two.values(), strict=True):
        first, second = (np.asarray(x, np.float64) for x in (a, b))  # booleans have no difference
        worst = float(np.abs(first - second).max(initial=0)) if tolerance else float(not np.array_equal(a, b))
        if worst > tolerance * float(np.abs(first).max(initial=0)):
            raise BrokenError(f"output {name} differs by {worst}")


def keep(folder: Path, *models: ModelProto) -> None:
    """Writes the models of a case, to look into a failure."""
    for k, model in enumerate(models):
        (folder / f"model{k}.onnx").write_bytes(model.SerializeToString())


def renamed(rng: Draw, folder: Path) -> None:
    """Renames tensors and nodes: the outputs are equal, bit for bit."""
    graph, chosen = build(Random(rng.number), "all", 10), drawn(rng)
    one = graph.model()
    two = ModelProto.FromString(one.SerializeToString())
    names = {n for v in two.graph.node for n in (*v.input, *v.output) if n} | set(graph.inputs)
    new = {name: f"{rng.choice('zyx/.')}{k}_{name[::-1]}" for k, name in enumerate(sorted(names))}
    for vertex in two.graph.node:
        vertex.name = f"n{rng.randrange(10**9)}"
        for listed in (vertex.input, vertex.output):
            listed[:] = [new.get(n, n) for n in listed]
    for value in (*two.graph.input, *two.graph.output, *two.graph.initializer):
        value.name = new.get(value.name, value.name)
    keep(folder, one, two)
    found = outputs(two, {new[name]: array for name, array in graph.inputs.items()}, chosen)
    same(outputs(one, graph.inputs, chosen), found)


def more_cores(rng: Draw, folder: Path) -> None:
    """Adds cores: the outputs are equal. Fewer crossbars in each core change only the order of additions."""
    graph, chosen = build(Random(rng.number), "all", 10), drawn(rng)
    chosen.pop("mapping", None)
    model = graph.model()
    keep(folder, model)
    first = outputs(model, graph.inputs, chosen | {"cores": 40, "xbars_per_core": 64})
    same(first, outputs(model, graph.inputs, chosen | {"cores": 90, "xbars_per_core": 64}))
    same(first, outputs(model, graph.inputs, chosen | {"cores": 40, "xbars_per_core": 9}), 3 * ROUNDING)


def convnet(rng: Random, batch: int, *, channels: Array | None = None, hidden: Array | None = None) -> ModelProto:
    """Makes a model of two convolutions, a pool and a product.

    `channels` and `hidden`: orders of the channels of the input and of the first layer.
    """
    draw = np.random.default_rng(rng.randrange(2**32))
    ins, filters, outs = (rng.randint(2, 7) for _ in range(3))
    first = draw.standard_normal((filters, ins, 3, 3)).astype(np.float32)
    bias, second = draw.standard_normal(filters), draw.standard_normal((outs, filters, 3, 3))
    channels = np.arange(ins) if channels is None else channels[channels < ins]
    hidden = np.arange(filters) if hidden is None else hidden[hidden < filters]
    constants: dict[str, Any] = {"w": first[hidden][:, channels], "b": bias[hidden], "v": second[:, hidden]}
    constants |= {"m": draw.standard_normal((outs, 5))}
    nodes = [
        node("Conv", "x w b", "c", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "d", name="second", pads=[1, 1, 1, 1], strides=[1, 2]),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f m", "y"),
    ]
    constants = {name: np.asarray(a, np.float32) for name, a in constants.items()}
    return make_model(nodes, {"x": (batch, ins, 6, 6)}, {"y": 2, "d": 4}, constants)


def _image(model: ModelProto, rng: Random) -> Array:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(rng.randrange(2**32)).standard_normal(shape).astype(np.float32)


def permuted_channels(rng: Draw, folder: Path) -> None:
    """Permutes the channels of the input and of the first layer, and the weights with them."""
    chosen = drawn(rng)
    draw = np.random.default_rng(rng.number)
    one = convnet(Random(rng.number), 1)
    channels, hidden = draw.permutation(7), draw.permutation(7)
    two = convnet(Random(rng.number), 1, channels=channels, hidden=hidden)
    keep(folder, one, two)
    image = _image(one, rng)
    moved = np.ascontiguousarray(image[:, channels[channels < image.shape[1]]])
    same(outputs(one, {"x": image}, chosen), outputs(two, {"x": moved}, chosen), ROUNDING)


def split_batch(rng: Draw, folder: Path) -> None:
    """Computes a batch of images together and one by one."""
    chosen, batch = drawn(rng), rng.randint(2, 3)
    whole, single = (convnet(Random(rng.number), n) for n in (batch, 1))
    keep(folder, whole, single)
    images = _image(whole, rng)
    together = outputs(whole, {"x": images}, chosen)
    apart = [outputs(single, {"x": images[i : i + 1]}, chosen) for i in range(batch)]
    same(together, {name: np.concatenate([a[name] for a in apart]) for name in together}, ROUNDING)


def surroundings(rng: Draw, folder: Path) -> None:
    """Changes seed of hashes, folder, locale, number of threads and time zone: the files are equal."""
    graph = build(Random(rng.number), "all", 12)
    path = folder / "model.onnx"
    path.write_bytes(graph.model().SerializeToString())
    found = [_compiled_elsewhere(path, folder / f"run{k}", k, rng) for k in range(2)]
    if found[0] != found[1]:
        raise BrokenError("other surroundings, other bytes")


def _compiled_elsewhere(model: Path, folder: Path, seed: int, rng: Draw) -> Any:
    folder.mkdir()
    mapping = ("raptor", "rows")[rng.number % 2]
    chip = f"xbar=16, cores=60, xbars_per_core=4000, mapping={mapping!r}"
    code = f"import raptor; raptor.compile({str(model)!r}, {chip}).save('out', stream_format='both')"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed + 1),
        "LC_ALL": ("C", "C.UTF-8")[seed],
        "OMP_NUM_THREADS": str(seed + 1),
        "NUMBA_NUM_THREADS": str(seed + 1),
        "TZ": ("UTC", "Asia/Tokyo")[seed],
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    if result.returncode:
        raise BrokenError(f"does not compile: {result.stderr[-500:]}")
    return content(folder / "out")


RELATIONS: tuple[Relation, ...] = (
    renamed, renamed, more_cores, more_cores, permuted_channels, permuted_channels, split_batch, split_batch,
    surroundings,
)  # fmt: skip


def case(rng: Draw, folder: Path) -> str:
    """Tries one of `RELATIONS`."""
    relation = RELATIONS[rng.number % len(RELATIONS)]
    try:
        relation(rng, folder)
    except BrokenError as error:
        raise BrokenError(f"{relation.__name__}: {error}") from error
    return relation.__name__


METAMORPHIC = Part("relations", "changes that change nothing", short=9, long=500, case=case, prepare=programs.prepare)
