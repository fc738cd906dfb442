"""Constants are made by a product on each core: they are right, and mistakes are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import models
from raptor.common.errors import VerifyError
from raptor.mapping.decision import LineFlow, Matrix
from raptor.mapping.refinement import ProducedConstants
from raptor.pim.ir import Load
from raptor.spatial import verify_spatial
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.operations import ApplyLine, Move, Stencil
from raptor.spatial.refinement.make_constants import ConstantUses, make_constants
from tests.pipeline import Passes, check, line_flow, passes
from tests.spatial.verification.test_verify_lines import plus
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP = {"xbar": 64, "xbars_per_core": 24, "cores": 40}
MODEL = models.build("bert_tiny", seed=0, depth=1, dim=64, heads=2, tokens=16)


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(MODEL, **CHIP, mapping="rows")


CHANNELS, WINDOW = 48, 7


def depthwise(stride: int) -> onnx.ModelProto:
    """A 1x1 convolution, and a depthwise layer on the vector unit of the cores that compute its columns."""
    constants = {
        "w": random(CHANNELS, 3, 1, 1),
        "v": random(CHANNELS, 1, WINDOW, WINDOW),
        "b": random(CHANNELS),
    }
    strides = {"pads": [WINDOW // 2] * 4, "strides": [stride] * 2}
    nodes = [
        node("Conv", "x w", "t", name="pointwise"),
        node("Conv", "t v b", "y", name="depthwise", group=CHANNELS, **strides),
    ]
    return make_model(nodes, {"x": (1, 3, 6, 24)}, ["y"], constants)


ROOMY = {"xbar": 64, "xbars_per_core": 64, "cores": 4}
STRIDES = {"pixels together": 1, "pixel by pixel": 2}


def products(graph: SpatialGraph, stem: str = "constants@") -> list[int]:
    """The numbers of the computes that make constants."""
    return [i for i, c in enumerate(graph.computes) if c.layer.startswith(stem)]


def test_cores_load_one_number_in_place_of_their_constants(compiled: Passes):
    assert line_flow(compiled.decision).makes_constants
    made = {compiled.partition.cores[i] for i in products(compiled.spatial)}
    assert len(made) > 10
    assert all(isinstance(m, Matrix) for i in products(compiled.spatial) for m in compiled.spatial.computes[i].matrices)
    loads = [s.operation for c in compiled.program.cores.values() for s in c.steps if isinstance(s.operation, Load)]
    assert sum(load.result.name == "constants@one" for load in loads) == len(made)


def test_a_tensor_of_the_model_may_have_such_a_name():
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    first = model.graph.node[0].output[0]
    for each in model.graph.node:
        for names in (each.input, each.output):
            names[:] = ["constants@0" if name == first else name for name in names]
    assert products(passes(model, **CHIP, mapping="rows").spatial, "constants'@")


def test_constants_that_are_no_numbers_are_loaded():
    """A crossbar cannot hold the minus infinity of a mask."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    read = next(n for n in model.graph.node if n.name == "layer.0.mlp.fc1.add")
    read.output[0], limited = "limited", read.output[0]
    low = np.full((1, 1, 4 * 64), -np.inf, np.float32)
    low[..., ::2] = 0.1
    model.graph.initializer.append(onnx.numpy_helper.from_array(low, "low"))
    model.graph.node.insert(
        [*model.graph.node].index(read) + 1, onnx.helper.make_node("Max", ["limited", "low"], [limited], name="mask")
    )
    found = passes(model, **CHIP, mapping="rows")
    assert products(found.spatial)
    check(model, tolerance=1e-4, **CHIP)


def test_the_program_is_right():
    check(MODEL, tolerance=1e-4, **CHIP)


def test_without_free_crossbars_constants_are_loaded():
    tight = passes(MODEL, **CHIP | {"xbars_per_core": 6}, mapping="rows")
    flow = tight.decision.flow
    if isinstance(flow, LineFlow) and flow.makes_constants:
        assert len(products(tight.spatial)) < len(set(tight.partition.cores))


@pytest.mark.parametrize("stride", STRIDES.values(), ids=[*STRIDES])
def test_weights_of_a_depthwise_layer(stride: int):
    found = passes(depthwise(stride), **ROOMY, mapping="rows")
    stencils = [op for c in found.spatial.computes for op in c.body if isinstance(op, Stencil)]
    assert {op.together > 1 for op in stencils} == {stride == 1}
    pairs = zip(found.partition.cores, found.spatial.computes, strict=True)
    assert len({core for core, c in pairs if c.node == "depthwise"}) > 1
    made = {name for name, constant in found.spatial.made.items() if constant.pixels == WINDOW**2}
    assert made == {op.vectors.name for op in stencils if op.vectors}
    check(depthwise(stride), **ROOMY)


@pytest.mark.parametrize("stride", STRIDES.values(), ids=[*STRIDES])
def test_weights_of_two_taps_in_another_order(stride: int):
    found = passes(depthwise(stride), **ROOMY, mapping="rows")
    graph, i = found.spatial, next(i for i, c in enumerate(found.spatial.computes) if c.layer.startswith("constants@"))
    made = found.spatial.made
    weights = next(
        op for op in graph.computes[i].body if isinstance(op, Move) and made[op.result.name].pixels == WINDOW**2
    )
    runs = weights.runs.copy()
    last = CHANNELS * WINDOW**2 - 1
    if len(runs) == 1:
        runs = np.array([[0, 0, 1, 1, last], [last, 0, 0, 1, 1]])
    else:
        runs[[0, -1], 2] = runs[[-1, 0], 2]
    body = tuple(replace(weights, runs=runs) if op is weights else op for op in graph.computes[i].body)
    changed = replace(graph.computes[i], body=body)
    with pytest.raises(VerifyError, match="not the constant"):
        verify_spatial(replace(graph, computes=(*graph.computes[:i], changed, *graph.computes[i + 1 :])), found.arch)


def _matrix(change: Callable[[Any], Any]) -> Callable[[SpatialGraph, int], SpatialGraph]:
    def changed(graph: SpatialGraph, i: int) -> SpatialGraph:
        key = graph.computes[i].layer
        layer = graph.filters[key]
        return replace(graph, filters={**graph.filters, key: replace(layer, weights=change(layer.weights))})

    return changed


def _op(kind: type[Any], change: Callable[[Any], Any]) -> Callable[[SpatialGraph, int], SpatialGraph]:
    def changed(graph: SpatialGraph, i: int) -> SpatialGraph:
        compute = graph.computes[i]
        at = next(k for k, op in enumerate(compute.body) if isinstance(op, kind))
        body = (*compute.body[:at], change(compute.body[at]), *compute.body[at + 1 :])
        return replace(graph, computes=(*graph.computes[:i], replace(compute, body=body), *graph.computes[i + 1 :]))

    return changed


MISTAKES: dict[str, tuple[Callable[[SpatialGraph, int], SpatialGraph], str]] = {
    "another value": (_matrix(lambda weights: weights + np.float32(1)), "not the constant"),
    "constants in another order": (_matrix(lambda weights: np.roll(weights, 1)), "not the constant"),
    "another constant": (_op(Move, lambda op: replace(op, runs=plus(op.runs, 0, 2, 1))), "not the constant"),
    "a part left out": (_op(Move, lambda op: replace(op, runs=plus(op.runs, 0, 4, -1))), "not covered exactly"),
    "another place": (_op(ApplyLine, lambda op: replace(op, products=plus(op.products, 0, 3, 1))), "at 1, not 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake(compiled: Passes, mistake: str):
    graph = compiled.spatial
    change, message = MISTAKES[mistake]
    with pytest.raises(VerifyError, match=message):
        verify_spatial(change(graph, products(graph)[0]), compiled.arch)


def test_equal_numbers_of_different_pixels():
    """Least numbers of four pixels with two channels, and of one with eight, are the same, but fill other tiles."""
    same = random(8)
    nodes = [
        node("Conv", "x w", "t", name="narrow"),
        node("Max", "t each", "s", name="each"),
        node("Conv", "s v", "u", name="wide"),
        node("Max", "u all", "y", name="all"),
    ]
    constants = {
        "w": random(2, 3, 1, 1),
        "each": same.reshape(1, 4, 2).transpose(2, 0, 1),
        "v": random(8, 2, 1, 1),
        "all": same.reshape(8, 1, 1),
    }
    found = passes(make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], constants), **ROOMY | {"cores": 1}, mapping="rows")
    uses = ConstantUses.from_partition(found.partition)
    graph = make_constants(found.partition, uses, [ProducedConstants(0, 1, ())], found.arch).graph
    assert {(tile.pixels, tile.channels) for tile in graph.made.values()} == {(4, 2), (1, 8)}
    verify_spatial(graph, found.arch)
