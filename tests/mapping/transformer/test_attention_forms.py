"""Attentions as models write them: of one head, with scaled keys, of wide heads, of images. All of them stream."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from raptor.common.errors import VerifyError
from raptor.graph.ir import Filter
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.operations import ApplyLine, Dot
from tests.pipeline import Passes, check, passes
from tests.tiny_models import Array, make_model, node, random
from tests.values import replace

CHIP: dict[str, Any] = {"xbar": (16, 16), "xbars_per_core": 40, "cores": 20, "mapping": "rows"}
TOKENS = 10


def weights(channels: int) -> dict[str, Array]:
    made = {f"w{name}": random(channels, channels, seed=i) / channels**0.5 for i, name in enumerate("qkvo")}
    return {**made, "s": np.array(channels**-0.5, np.float32), "r": np.array(channels**-0.25, np.float32)}


def queries_keys_values(keys: str = "x") -> list[NodeProto]:
    return [node("MatMul", f"{x} w{name}", name, name=name) for name, x in zip("qkv", ("x", keys, keys), strict=True)]


def means(scores: str = "scores") -> list[NodeProto]:
    return [
        node("Softmax", scores, "p", axis=-1),
        node("MatMul", "p v", "mean", name="mean"),
        node("MatMul", "mean wo", "y", name="o"),
    ]


def one_head(channels: int = 16) -> ModelProto:
    """Scales the products."""
    products = [
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "products", name="products"),
        node("Mul", "products s", "scores"),
    ]
    return model([*queries_keys_values(), *products, *means()], channels)


def scaled_operands() -> ModelProto:
    """Scales queries and keys by the root of that, the keys behind their transposition, as PyTorch exports it."""
    products = [
        node("Mul", "q r", "qr", name="scale_q"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("Mul", "kt r", "kr", name="scale_k"),
        node("MatMul", "qr kr", "scores", name="products"),
    ]
    return model([*queries_keys_values(), *products, *means()], 16)


def einsum() -> ModelProto:
    products = [
        node("Einsum", "q k", "products", name="products", equation="bqd,bkd->bqk"),
        node("Mul", "products s", "scores"),
    ]
    return model([*queries_keys_values(), *products, *means()], 16)


def other_keys() -> ModelProto:
    products = [
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores", name="products"),
    ]
    return model([*queries_keys_values("z"), *products, *means()], 16, {"z": (1, 7, 16)})


def model(nodes: Sequence[NodeProto], channels: int, more: dict[str, tuple[int, ...]] | None = None) -> ModelProto:
    used = {name for n in nodes for name in n.input}
    constants = {name: value for name, value in weights(channels).items() if name in used}
    return make_model(nodes, {"x": (1, TOKENS, channels), **(more or {})}, {"y": 3}, constants)


def of_an_image(inner: int = 8, size: int = 5) -> ModelProto:
    """Builds a non-local block: each pixel of an image looks at all others."""
    constants = {
        **{name: random(inner, 12, 1, 1, seed=i) for i, name in enumerate(("t", "f", "g"))},
        "w": random(12, 3, 3, 3),
        "o": random(12, inner, 1, 1),
        "line": np.array([1, inner, size * size]),
        "image": np.array([1, inner, size, size]),
    }
    nodes = [node("Conv", "x w", "a", pads=[1] * 4, name="stem")]
    for name in ("t", "f", "g"):
        nodes.append(node("Conv", f"a {name}", f"{name}0", name=f"conv_{name}"))
        nodes.append(node("Reshape", f"{name}0 line", f"{name}1", name=f"reshape_{name}"))
    nodes += [
        node("Transpose", "t1", "t2", perm=[0, 2, 1], name="transpose_t"),
        node("MatMul", "t2 f1", "scores", name="products"),
        node("Softmax", "scores", "p", axis=-1),
        node("Transpose", "g1", "g2", perm=[0, 2, 1], name="transpose_g"),
        node("MatMul", "p g2", "mean", name="mean"),
        node("Transpose", "mean", "turned", perm=[0, 2, 1], name="transpose_mean"),
        node("Reshape", "turned image", "b", name="reshape"),
        node("Conv", "b o", "z", name="conv_o"),
        node("Add", "z a", "y"),
    ]
    return make_model(nodes, {"x": (1, 3, size, size)}, ["y"], constants)


FORMS: dict[str, Callable[[], ModelProto]] = {
    "one head": one_head,
    "a head wider than a crossbar": lambda: one_head(24),
    "scaled operands": scaled_operands,
    "einsum": einsum,
    "other keys": other_keys,
    "of an image": of_an_image,
    "of an image, wider than a crossbar": lambda: of_an_image(20),
}


@pytest.mark.parametrize("form", FORMS)
def test_values(form: str):
    check(FORMS[form](), **CHIP)


def cores_of(compiled: Passes, node_name: str) -> set[int]:
    """Returns the cores that compute an ONNX node."""
    placed = zip(compiled.spatial.computes, compiled.partition.cores, strict=True)
    return {core for compute, core in placed if compute.node == node_name}


def on_lines(compiled: Passes) -> bool:
    """Tells whether all layers are computed by line."""
    layers = {n.name for n in compiled.graph.nodes if isinstance(n.operator, Filter)}
    return layers == {c.node for c in compiled.spatial.computes if isinstance(c.body[0], ApplyLine)}


@pytest.mark.parametrize("form", FORMS)
def test_products_and_layers_are_computed_by_line(form: str):
    compiled = passes(FORMS[form](), **CHIP)
    assert len(compiled.spatial.product_of) == 2
    assert min(len(cores_of(compiled, name)) for name in ("products", "mean")) >= 4
    assert on_lines(compiled)


@pytest.fixture(scope="module")
def wide() -> Passes:
    """A product whose result has two ranges of channels, 16 and 8, in front of a layer."""
    return passes(one_head(24), **CHIP)


def refused(graph: SpatialGraph, message: str, compiled: Passes) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_spatial(graph, compiled.arch)


def test_a_range_of_other_columns_is_refused(wide: Passes):
    computes = list(wide.spatial.computes)
    ranges = {op.first for c in computes for op in c.body if isinstance(op, Dot)}
    assert ranges == {0, 16}
    at, op = next((i, c.body[0]) for i, c in enumerate(computes) if isinstance(c.body[0], Dot) and c.body[0].first)
    assert isinstance(op, Dot)
    computes[at] = replace(computes[at], body=(replace(op, first=8),))
    broken = replace(wide.spatial, computes=tuple(computes))
    refused(broken, "is not one product of all channels with its columns", wide)


def test_a_range_that_is_missing_is_refused(wide: Passes):
    mean = wide.spatial.tensors["mean"]
    kept = tuple(part for part in mean.parts if part.region.channels == (0, 16))
    broken = replace(wide.spatial, tensors={**wide.spatial.tensors, "mean": replace(mean, parts=kept)})
    refused(broken, "mean", wide)


@pytest.mark.parametrize("channels", [12, 20])
@pytest.mark.parametrize("layer", [False, True])
def test_a_softmax_over_the_channels_of_a_signal(channels: int, layer: bool):
    """Softmax of fewer and of more channels than a crossbar has rows, with a layer behind it and without."""
    constants = {"w": random(channels, 4, 3), "v": random(3, channels, 1)}
    nodes = [node("Conv", "x w", "a", pads=[1, 1]), node("Softmax", "a", "p" if layer else "y", axis=1)]
    nodes += [node("Conv", "p v", name="last")] if layer else []
    used = {name: value for name, value in constants.items() if layer or name == "w"}
    built = make_model(nodes, {"x": (1, 4, 9)}, {"y": 3}, used)
    check(built, **CHIP)
    compiled = passes(built, **CHIP)
    assert len(cores_of(compiled, "my_softmax")) > 1
    assert on_lines(compiled)


def test_a_mean_over_the_channels_of_a_signal_stays_where_it_is():
    """Means are sums over the channels on the vector unit, if that is quicker than crossbars."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1]),
        node("ReduceMean", "a", "m", axes=[1], name="mean"),
        node("Sub", "a m"),
    ]
    built = make_model(nodes, {"x": (1, 4, 30)}, {"y": 3}, {"w": random(16, 4, 3)})
    check(built, xbar=128, cores=8)
    compiled = passes(built, xbar=128, cores=8, mapping="rows")
    assert len(cores_of(compiled, "mean")) > 1


def shared_keys() -> ModelProto:
    """Builds an attention whose heads share keys and values two by two."""
    constants = {**weights(16), "wk": random(16, 8), "wv": random(16, 8, seed=1)}
    used = {name: constants[name] for name in ("wq", "wk", "wv", "wo")}
    used |= {"split": np.array([1, TOKENS, 4, 4]), "two": np.array([1, TOKENS, 2, 4]), "axis": np.array([2])}
    nodes = [*queries_keys_values(), node("Reshape", "q split", "qr", name="rq")]
    nodes.append(node("Transpose", "qr", "qt", name="tq", perm=[0, 2, 1, 3]))
    for name, perm, shape in (("k", [0, 2, 3, 1], (4, TOKENS)), ("v", [0, 2, 1, 3], (TOKENS, 4))):
        used |= {f"{name}twice": np.array([1, 2, 2, *shape]), f"{name}heads": np.array([1, 4, *shape])}
        nodes += [
            node("Reshape", f"{name} two", f"{name}r", name=f"r{name}"),
            node("Transpose", f"{name}r", f"{name}t", name=f"t{name}", perm=perm),
            node("Unsqueeze", f"{name}t axis", f"{name}u", name=f"u{name}"),
            node("Expand", f"{name}u {name}twice", f"{name}e", name=f"e{name}"),
            node("Reshape", f"{name}e {name}heads", f"{name}h", name=f"h{name}"),
        ]
    used["all"] = np.array([1, TOKENS, 16])
    nodes += [
        node("MatMul", "qt kh", "scores", name="products"),
        node("Softmax", "scores", "p", axis=-1),
        node("MatMul", "p vh", "mean", name="mean"),
        node("Transpose", "mean", "mt", name="tm", perm=[0, 2, 1, 3]),
        node("Reshape", "mt all", "mr", name="rm"),
        node("MatMul", "mr wo", "y", name="o"),
    ]
    return make_model(nodes, {"x": (1, TOKENS, 16)}, {"y": 3}, used)


def test_heads_that_share_keys():
    compiled = passes(shared_keys(), **CHIP)
    assert min(len(cores_of(compiled, name)) for name in ("products", "mean")) >= 4
    assert on_lines(compiled)
    check(shared_keys(), **CHIP)


def test_a_depthwise_convolution_of_a_signal():
    nodes = [
        node("MatMul", "x u", "a", name="first"),
        node("Transpose", "a", "t", perm=[0, 2, 1]),
        node("Conv", "t w", "d", pads=[2, 2], group=12, name="depthwise"),
        node("Transpose", "d", "b", perm=[0, 2, 1], name="back"),
        node("MatMul", "b v", "y", name="last"),
    ]
    weights = {"u": random(8, 12), "w": random(12, 1, 5), "v": random(12, 6)}
    built = make_model(nodes, {"x": (1, 30, 8)}, {"y": 3}, weights)
    check(built, **CHIP)
    assert len(cores_of(passes(built, **CHIP), "depthwise")) >= 4
