"""Normalisations against onnxruntime; some through the instruction streams."""

from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Filter
from raptor.integrations.onnx_backend import RaptorBackend
from tests.pipeline import check
from tests.tiny_models import compare, make_model, node, random, single

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 60}


def layer_norm(shape: tuple[int, ...], axis: int, *, bias: bool = True, before: Any = (), outputs: str = "y"):
    scale = shape[axis:]
    constants = {"w": random(*scale)} | ({"b": random(*scale, seed=1)} if bias else {})
    norm = node("LayerNormalization", "x w b" if bias else "x w", outputs, axis=axis, epsilon=1e-4)
    return make_model([norm], {"x": shape}, dict.fromkeys(outputs.split(), len(shape)), constants)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(shape: tuple[int, ...], axis: int, bias: bool):
    compare(layer_norm(shape, axis, bias=bias))


def test_the_matrix_of_a_mean_is_one_number_in_memory():
    """BERT-base has 48 of them; each would take 2.25 MiB."""
    nodes = load(layer_norm((3, 64), 1)).graph.nodes
    matrices = [n.operator.weights for n in nodes if isinstance(n.operator, Filter)]
    assert matrices
    assert all(m.shape == (1, 64, 64) and m.strides[1:] == (0, 0) for m in matrices)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_statistics_of_a_layer_normalization(axis: int):
    compare(layer_norm((2, 3, 4, 5), axis, outputs="y m s"))


def test_an_absent_statistic_beside_an_absent_input():
    """The names of both are empty, and nothing reads them."""
    norm = node("LayerNormalization", "x w", "y")
    norm.output.extend(["", "s"])
    nodes = [norm, node("Clip", "y - h", "c")]
    constants = {"w": random(4), "h": np.array(0.5, np.float32)}
    compare(make_model(nodes, {"x": (3, 4)}, {"c": 2, "s": 2}, constants))


def test_layer_normalization_of_channels_last():
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("LayerNormalization", "t w b", "n")]
    nodes.append(node("Transpose", "n", "y", perm=[0, 3, 1, 2], name="back"))
    model = make_model(nodes, {"x": (1, 6, 3, 2)}, ["y"], {"w": random(6), "b": random(6, seed=1)})
    compare(model)
    check(model, **CHIP)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 4, 6), (2, 2, 2, 3, 2)])
def test_instance_normalization(shape: tuple[int, ...]):
    constants = {"w": random(shape[1]), "b": random(shape[1], seed=1)}
    compare(make_model([node("InstanceNormalization", "x w b")], {"x": shape}, {"y": len(shape)}, constants))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (1, 6, 5)])
def test_group_normalization(groups: int, shape: tuple[int, ...]):
    """onnxruntime takes it apart, so that it needs no importer."""
    constants = {"w": random(6), "b": random(6, seed=1)}
    norm = node("GroupNormalization", "x w b", num_groups=groups)
    compare(make_model([norm], {"x": shape}, {"y": len(shape)}, constants, opset=21))


def test_a_group_normalization_that_the_standard_gave_up():
    """The first one, of operator set 18, whose scale and bias belong to groups."""
    norm = node("GroupNormalization", "x w b", num_groups=2)
    model = make_model([norm], {"x": (1, 6, 5)}, ["y"], {"w": random(2), "b": random(2, seed=1)}, opset=18)
    with pytest.raises(UnsupportedError, match=r"my_groupnormalization .*only supported from operator version 21 on"):
        load(model)


def test_group_normalization_of_what_onnxruntime_infers_no_shape():
    nodes = [node("MeanVarianceNormalization", "x", "m"), node("GroupNormalization", "m w b", num_groups=1)]
    compare(make_model(nodes, {"x": (3, 4, 2, 2)}, ["y"], {"w": random(4), "b": random(4, seed=1)}, opset=21))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_rms_normalization(axis: int):
    norm = node("RMSNormalization", "x w", axis=axis)
    constants = {"w": random(*(2, 3, 4)[axis:])}
    compare(make_model([norm], {"x": (2, 3, 4)}, {"y": 3}, constants, opset=23, ir_version=10))


# onnxruntime refuses even sizes.
@pytest.mark.parametrize("size", [1, 3, 5, 11])
@pytest.mark.parametrize("attributes", [{}, {"alpha": 2e-1, "beta": 0.5, "bias": 2.0}, {"alpha": 0.3, "beta": 1.25}])
def test_lrn(size: int, attributes: dict[str, float]):
    compare(single("LRN", (2, 7, 3, 4), size=size, **attributes))


@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 2.0])
def test_lrn_powers(beta: float):
    compare(single("LRN", (1, 5, 2, 2), size=3, alpha=0.9, beta=beta))


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (1, 2, 3), (-1,)])
def test_mean_variance_normalization(axes: tuple[int, ...]):
    compare(single("MeanVarianceNormalization", (2, 3, 4, 5), axes=list(axes)))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_lp_normalization(p: int, axis: int):
    compare(single("LpNormalization", (2, 3, 4), axis=axis, p=p))


def test_lp_normalization_of_zeros():
    nodes = [node("Mul", "x k", "z"), node("LpNormalization", "z", axis=1)]
    compare(make_model(nodes, {"x": (2, 3)}, {"y": 2}, {"k": np.array([[0], [1]], np.float32)}))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("size", [1e-18, 1e-25, 1e-35, 1e-42])
def test_lp_normalization_of_small_numbers(p: int, size: float):
    """Below 1e-22 all squares are 0 in float32: then the result is between 0, as in onnxruntime, and the right one."""
    x = (random(3, 4, seed=1) * size).astype(np.float32)
    (got,) = RaptorBackend.run_model(single("LpNormalization", (3, 4), axis=1, p=p), [x])
    want = x.astype(np.float64) / (np.abs(x.astype(np.float64)) ** p).sum(axis=1, keepdims=True) ** (1 / p)
    if p == 2 and size < 1e-22:
        assert (np.abs(got) <= np.abs(want) + 1e-6).all()
    else:
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6)


def test_batch_normalization_of_a_flattened_image():
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node("BatchNormalization", "f g b m v")]
    constants = {name: random(60, seed=i) for i, name in enumerate("gbm")} | {"v": random(60) ** 2}
    compare(make_model(nodes, {"x": (2, 3, 4, 5)}, {"y": 2}, constants))


END_TO_END = {
    "layer": layer_norm((2, 3, 6), -1),
    "layer of all": layer_norm((1, 6, 2, 3), 1),
    "instance": make_model(
        [node("InstanceNormalization", "x w b")], {"x": (2, 6, 3, 3)}, ["y"], {"w": random(6), "b": random(6)}
    ),
    "group": make_model(
        [node("GroupNormalization", "x w b", num_groups=2)],
        {"x": (2, 12, 2, 3)},
        ["y"],
        {"w": random(12), "b": random(12)},
        opset=21,
    ),
    "lrn": single("LRN", (1, 10, 3, 2), size=5, alpha=0.5),
    "lp": single("LpNormalization", (2, 6, 4), axis=1),
}


@pytest.mark.parametrize("name", END_TO_END)
def test_through_the_streams(name: str):
    check(END_TO_END[name], **CHIP)


def test_computed_scales_are_refused():
    model = make_model([node("LayerNormalization", "x w")], {"x": (2, 3), "w": (3,)}, {"y": 2})
    with pytest.raises(UnsupportedError, match="'w' must be a constant"):
        load(model)


def test_norms_of_groups_whose_shapes_onnxruntime_joins_twice():
    """Random graphs found it: the second run gave a joined shape the name that one of the first run had."""
    nodes = [
        node("MeanVarianceNormalization", "x", "m", name="m"),
        node("GroupNormalization", "m a b", "n", num_groups=2, name="n"),
        node("GroupNormalization", "x a b", "y", num_groups=2, name="y"),
        node("Reshape", "n s", "z", name="z"),
    ]
    constants = {"a": random(4), "b": random(4, seed=1), "s": np.array([1, 4, -1], np.int64)}
    compare(make_model(nodes, {"x": (1, 4, 3, 5)}, ["y", "z"], constants, opset=21, ir_version=10), 1e-4)
