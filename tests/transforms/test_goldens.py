"""The text of a small graph before and after each rewrite, with equal values. `make goldens` writes the texts anew."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.compiler import pipeline
from raptor.compiler.pass_driver import Driver
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph
from raptor.mapping.strategies import ROWS
from tests.paths import GOLDEN
from tests.pipeline import chip
from tests.tiny_models import make_model, node, random

TEXTS = GOLDEN / "transforms"


def relu() -> ModelProto:
    nodes = [node("Conv", "x w", "c", name="conv"), node("Relu", "c", "y", name="relu")]
    return make_model(nodes, {"x": (1, 3, 2, 2)}, ["y"], {"w": random(2, 3, 1, 1)})


def branches() -> ModelProto:
    """RepVGG: a kernel of 3x3, one of 1x1, and the image itself."""
    nodes = [
        node("Conv", "x a", "wide", name="wide", pads=[1, 1, 1, 1]),
        node("Conv", "x b", "narrow", name="narrow"),
        node("Add", "wide narrow", "both", name="add"),
        node("Add", "both x", "y", name="skip"),
    ]
    return make_model(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"a": random(2, 2, 3, 3), "b": random(2, 2, 1, 1)})


def loop() -> ModelProto:
    """The four columns of an image through a dense layer, one after another, as a loop reads them."""
    nodes = [node("Conv", "x a", "c", name="conv"), node("Reshape", "c flat", "f", name="columns")]
    for i in range(4):
        nodes.append(node("Gather", f"f at{i}", f"x{i}", name=f"take{i}", axis=2))
        nodes.append(node("MatMul", f"x{i} w", f"d{i}", name=f"read{i}"))
    nodes.append(node("Concat", "d0 d1 d2 d3", "y", name="join", axis=1))
    numbers = {f"at{i}": np.array(i) for i in range(4)} | {"flat": np.array([1, 4, 4])}
    return make_model(nodes, {"x": (1, 1, 2, 4)}, {"y": 2}, {"a": random(2, 1, 1, 1), "w": random(4, 3), **numbers})


def depthwise() -> ModelProto:
    nodes = [node("Conv", "x w", "y", name="depthwise", group=4)]
    return make_model(nodes, {"x": (1, 4, 4, 4)}, ["y"], {"w": random(4, 1, 3, 3)})


def blocks() -> ModelProto:
    nodes = [node("SpaceToDepth", "x", "s", name="blocks", blocksize=2), node("Conv", "s w", "y", name="conv")]
    return make_model(nodes, {"x": (1, 2, 4, 4)}, ["y"], {"w": random(3, 8, 1, 1)})


def weights_of_pixels() -> ModelProto:
    """A softmax of each channel over all pixels."""
    nodes = [
        *(node("Conv", "x a", "c", name="scores"), node("Reshape", "c flat", "f", name="flatten")),
        *(node("Softmax", "f", "s", name="softmax", axis=2), node("Reshape", "s image", "i", name="unflatten")),
        node("Conv", "i b", "y", name="layer"),
    ]
    weights = {"a": random(2, 3, 1, 1), "b": random(2, 2, 1, 1)}
    shapes = {"flat": np.array([1, 2, 6]), "image": np.array([1, 2, 2, 3])}
    return make_model(nodes, {"x": (1, 3, 2, 3)}, ["y"], weights | shapes)


def attention() -> ModelProto:
    """Scores of an attention, with the factor after the transposition of the keys, which are half of the channels."""
    nodes = [
        node("MatMul", "x w", "both", name="layer"),
        node("Split", "both", "queries keys", name="split", axis=2),
        node("Transpose", "keys", "turned", name="turn", perm=[0, 2, 1]),
        node("Mul", "turned half", "scaled", name="scale"),
        node("MatMul", "queries scaled", "y", name="scores"),
    ]
    weights = {"w": random(4, 12), "half": np.array(0.5, np.float32)}
    return make_model(nodes, {"x": (1, 5, 4)}, {"y": 3}, weights, opset=12)


def attention_with_channels_first() -> ModelProto:
    """Values times transposed shares, and scores that are scaled and turned before."""
    nodes = [
        node("Transpose", "k", "turned", name="turn", perm=[0, 2, 1]),
        node("MatMul", "turned q", "scores", name="scores"),
        node("Mul", "scores half", "scaled", name="scale"),
        node("Softmax", "scaled", "shares", name="softmax", axis=1),
        node("MatMul", "v shares", "values", name="values"),
        node("Conv", "values w", "y", name="layer"),
    ]
    weights = {"w": random(3, 4, 1), "half": np.array(0.5, np.float32)}
    return make_model(nodes, {"k": (1, 2, 6), "q": (1, 2, 5), "v": (1, 4, 6)}, {"y": 3}, weights, opset=13)


def grey() -> ModelProto:
    """A grey image without an axis of channels, scaled."""
    nodes = [
        node("Mul", "x scale", "scaled", name="scale"),
        node("Unsqueeze", "scaled one", "image", name="image"),
        node("Conv", "image w", "y", name="layer"),
    ]
    weights = {"scale": random(1, 1, 32), "one": np.array([1]), "w": random(2, 1, 3, 3)}
    return make_model(nodes, {"x": (1, 32, 32)}, ["y"], weights, opset=13)


def attention_to_an_image() -> ModelProto:
    """Two heads of queries on keys that are the pixels of an image."""
    nodes = [
        node("Conv", "x q", "wide", name="queries"),
        node("Reshape", "wide heads", "h", name="heads"),
        node("Transpose", "h", "queries", name="turn", perm=[0, 1, 3, 2]),
        node("Conv", "x k", "image", name="keys"),
        node("Reshape", "image flat", "keys", name="flatten"),
        node("MatMul", "queries keys", "y", name="scores"),
    ]
    shapes = {"heads": np.array([1, 2, 4, 6]), "flat": np.array([1, 1, 4, 6])}
    return make_model(nodes, {"x": (1, 3, 2, 3)}, ["y"], {"q": random(8, 3, 1, 1), "k": random(4, 3, 1, 1), **shapes})


def detector() -> ModelProto:
    """The pixels of two images, one after another in a long line."""
    nodes = [
        node("Conv", "x v", "large", name="large"),
        node("Conv", "x w", "small", name="small", strides=[2, 2]),
        node("Reshape", "large flat", "l", name="l"),
        node("Reshape", "small flat", "s", name="s"),
        node("Concat", "l s", "all", name="all", axis=2),
        node("Sigmoid", "all", "y", name="sigmoid"),
    ]
    weights = {"v": random(2, 3, 1, 1), "w": random(2, 3, 1, 1), "flat": np.array([1, 2, -1])}
    return make_model(nodes, {"x": (1, 3, 8, 8)}, ["y"], weights)


def column() -> ModelProto:
    """An image of width 1, the last part of which is read by a kernel that is wider than it."""
    nodes = [
        node("Conv", "x v", "a", name="long", pads=[1, 0, 1, 0]),
        node("Add", "a scale", "b", name="add"),
        node("Conv", "b w", "y", name="square", pads=[1, 1, 1, 1]),
    ]
    weights = {"v": random(3, 2, 3, 1), "w": random(4, 3, 3, 3), "scale": random(1, 1, 8, 1)}
    return make_model(nodes, {"x": (1, 2, 8, 1)}, ["y"], weights)


def signal() -> ModelProto:
    nodes = [node("Conv", "x w", "y", name="conv", pads=[1, 1])]
    return make_model(nodes, {"x": (1, 2, 8)}, ["y"], {"w": random(3, 2, 3)})


def module() -> ModelProto:
    """Three branches of an Inception module."""
    nodes = [
        *(node("Conv", f"x {i} {i}0", f"{i}1", name=i) for i in "abc"),
        *(node("Relu", f"{i}1", f"{i}2", name=f"relu of {i}") for i in "abc"),
        node("Concat", "a2 b2 c2", "y", name="both", axis=1),
    ]
    weights = {name: random(3, 5, 1, 1) for name in "abc"} | {f"{name}0": random(3) for name in "abc"}
    return make_model(nodes, {"x": (1, 5, 6, 7)}, ["y"], weights)


def shuffle() -> ModelProto:
    """The halves of an image, one after the other in another order, before a layer."""
    nodes = [
        node("Split", "x", "a b", name="split", axis=1),
        node("Concat", "b a", "c", name="swap", axis=1),
        node("Slice", "c first last axis", "d", name="slice"),
        node("Conv", "d w", "y", name="conv", pads=[1, 1, 1, 1]),
    ]
    weights = {"w": random(2, 3, 3, 3), "first": np.array([0]), "last": np.array([3]), "axis": np.array([1])}
    return make_model(nodes, {"x": (1, 4, 4, 4)}, ["y"], weights, opset=12)


def spectrogram() -> ModelProto:
    """Twenty frames of three bands, scaled by band."""
    nodes = [
        node("Mul", "x bands", "scaled", name="scale"),
        node("Conv", "scaled w", "a", name="first", pads=[1, 1, 0, 1], strides=[2, 1]),
        node("Conv", "a v", "y", name="second", pads=[1, 1, 1, 1]),
    ]
    weights = {"bands": random(1, 1, 1, 3), "w": random(4, 1, 2, 3), "v": random(4, 4, 3, 3)}
    return make_model(nodes, {"x": (1, 1, 20, 3)}, ["y"], weights, opset=13)


def norm(tokens: int = 1) -> ModelProto:
    """A norm of a token between two layers, the second one with a bias."""
    nodes = [
        node("MatMul", "x v", "m", name="first"),
        node("LayerNormalization", "m gain bias", "n", name="norm", axis=-1),
        node("MatMul", "n w", "p", name="layer"),
        node("Add", "p b", "y", name="sum"),
    ]
    weights = {"gain": random(6), "bias": random(6, seed=1), "w": random(6, 4), "b": random(4)}
    weights["v"] = random(3, 6)
    return make_model(nodes, {"x": (1, tokens, 3)}, ["y"], weights)


def turned() -> ModelProto:
    """A rotary embedding of the result of a layer for one token: each half times sines is added to the other one."""
    nodes = [
        node("MatMul", "x w", "p", name="layer"),
        node("Split", "p", "a b", name="halves", axis=-1),
        node("Neg", "b", "n", name="negated"),
        node("Concat", "n a", "r", name="exchanged", axis=-1),
        node("Mul", "r sines", "s", name="by sines"),
        node("Mul", "p cosines", "c", name="by cosines"),
        node("Add", "s c", "y", name="sum"),
    ]
    inputs = {"x": (1, 1, 4), "sines": (1, 1, 4), "cosines": (1, 1, 4)}
    return make_model(nodes, inputs, ["y"], {"w": random(4, 4)})


MODELS = {
    "fold_gains": norm,
    "fold_relu": relu,
    "fuse_parallel_branches": branches,
    "join_steps": loop,
    "use_vector_unit": depthwise,
    "fold_space_to_depth": blocks,
    "turn_products": attention_with_channels_first,
    "lay_out_tokens": attention,
    "sink_transposes": attention,
    "lay_out_free_tensors": grey,
    "lay_out_matmuls": attention_to_an_image,
    "split_rows": detector,
    "turn_columns": column,
    "lift_to_2d": signal,
    "reduce_in_place": weights_of_pixels,
    "multiply_moved": turned,
    "narrow_sums": norm,
    "turn_images": spectrogram,
    "fuse_horizontally": module,
    "compose_gathers": shuffle,
}


@dataclass
class Rewritten(Driver):
    """A driver that keeps the graph after each pass."""

    graphs: dict[str, Graph] = field(default_factory=dict[str, Graph])

    def run(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run(step, *args, **kwargs)
        if isinstance(result, Graph):
            self.graphs[step.__name__] = result
        return result


def rewritten(model: ModelProto, cores: int = 8) -> dict[str, Graph]:
    """The graph as it was loaded, and after each pass that rewrites it, by the name of the pass."""
    arch, driver = chip((16, 16), xbars_per_core=16, cores=cores), Rewritten()
    loaded = load(model).graph
    pipeline.rewrite_and_map(pipeline.prepare_graph(loaded, arch, driver=driver), arch, ROWS, driver=driver)
    return {"load": loaded, **driver.graphs}


def test_every_rewrite_has_a_text():
    """But for the arithmetic of requantisations, which texts of graphs do not show."""
    rewrites = rewritten(relu()).keys() - {"load", "choose_recipes"}
    assert rewrites == MODELS.keys(), "add a small model that the rewrite changes to MODELS; then make goldens"


@pytest.mark.parametrize("name", MODELS)
def test_the_text_before_and_after(name: str, request: pytest.FixtureRequest):
    graphs = rewritten(MODELS[name]())
    before = [*graphs.values()][[*graphs].index(name) - 1]
    assert str(graphs[name]) != str(before), "the rewrite does something"
    given = {name: random(*before.tensors[name].shape) for name in before.inputs}
    computed = evaluate_graph(graphs[name], given)
    for output in before.outputs:
        np.testing.assert_allclose(computed[output], evaluate_graph(before, given)[output], atol=1e-5)
    text, path = f"// before {name}\n{before}\n// after {name}\n{graphs[name]}", TEXTS / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        TEXTS.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.read_text() == text, "if that is right: make goldens"
