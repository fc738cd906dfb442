"""Channels that no result depends on leave the graph, and what is left computes the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import VerifyError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter, Graph, Move
from raptor.graph.streaming_layout import keeps_elements_in_place
from raptor.target import arch
from raptor.transforms.channels.drop_dead_channels import drop_dead_channels
from raptor.transforms.channels.select_channels import SelectedChannels, select_channels, verify_channels
from tests.pipeline import passes
from tests.tiny_models import make_model, node, random


def drop(graph: Graph, **chip: Any) -> SelectedChannels:
    return drop_dead_channels(graph, arch.load("bench", **chip))


def relu(given: str, made: str):
    return node("Relu", given, made, name=f"relu_{made}")


def network(seed: int, *, residual: bool = False, dead_made: int = 3, dead_read: int = 2):
    """A convolution, a depthwise one, a pool and a fully connected layer; some channels are made or read by zeros."""
    rng = np.random.default_rng(seed)
    first, second = random(12, 4, 3, 3, seed=seed), random(12, 12, 1, 1, seed=seed + 1)
    bias = random(12, seed=seed + 2)
    made, read = rng.permutation(12)[:dead_made], rng.permutation(12)[:dead_read]
    first[made], bias[made] = 0, -1
    second[:, read] = 0
    dense = random(12 * 4, 10, seed=seed + 3)
    dense.reshape(12, 4, 10)[rng.permutation(12)[:2]] = 0
    given = {"w": first, "b": bias, "d": random(12, 1, 3, 3), "v": second, "f": dense}
    nodes = [
        node("Conv", "x w b", "a", name="first", pads=[1] * 4),
        relu("a", "ar"),
        node("Conv", "ar d", "e", name="by_channel", group=12, pads=[1] * 4),
        node("MaxPool", "e", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "g", name="second"),
        *([node("Add", "g p", "s"), relu("s", "r")] if residual else [relu("g", "r")]),
        node("Flatten", "r", "t"),
        node("Gemm", "t f", "y", name="dense"),
    ]
    return make_model(nodes, {"x": (1, 4, 4, 4)}, ["y"], given)


def channels(graph: Graph) -> list[int]:
    return [n.operator.weights.shape[2] for n in graph.nodes if isinstance(n.operator, Filter)]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_graph_computes_the_same(seed: int, residual: bool):
    graph = load(network(seed, residual=residual)).graph
    found = drop(graph)
    verify_channels(found)
    given = {"x": random(1, 4, 4, 4, seed=seed)}
    before, after = (evaluate_graph(g, given)["y"] for g in (graph, found.graph))
    np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)
    if not residual:  # else a sum keeps channels of which one operand alone is 0
        assert channels(found.graph)[0] <= 12 - 3


def test_without_zeros_the_graph_stays():
    graph = load(make_model([node("Gemm", "x w", "y")], {"x": (1, 6)}, ["y"], {"w": random(6, 3)})).graph
    assert drop(graph).graph is graph


def two_layers(hidden: "np.ndarray", read: "np.ndarray", bias: "np.ndarray | None" = None):
    given = {"w": hidden, "v": read, "b": np.zeros(hidden.shape[1], np.float32) if bias is None else bias}
    nodes = [
        node("Gemm", "x w b", "h", name="made"),
        relu("h", "r"),
        node("Gemm", "r v", "y", name="reads"),
    ]
    return make_model(nodes, {"x": (1, len(hidden))}, ["y"], given)


def test_a_bias_keeps_a_channel_without_weights():
    hidden, read = random(8, 6), random(6, 4)
    hidden[:, 2:4] = 0
    bias = np.array([1, 1, -1, 1, 1, 1], np.float32)
    assert channels(drop(load(two_layers(hidden, read, bias)).graph).graph) == [5, 4]


def test_one_channel_stays():
    found = drop(load(two_layers(random(8, 6), np.zeros((6, 4), np.float32))).graph)
    verify_channels(found)
    assert channels(found.graph) == [1, 4]


def test_constants_of_zeros_between_features_are_dropped():
    """A Fourier transform of real numbers is exported so: all have 0 as their imaginary part."""
    nodes = [
        node("MatMul", "x v", "a", name="before"),
        node("Unsqueeze", "a last", "u"),
        node("Concat", "u zeros", "c", axis=3),
        node("Reshape", "c shape", "r"),
        node("MatMul", "r w", "y", name="complex"),
    ]
    given = {"v": random(6, 6), "w": random(12, 10), "zeros": np.zeros((1, 8, 6, 1), np.float32)}
    given |= {"last": np.array([3]), "shape": np.array([1, 8, 12])}
    graph = passes(make_model(nodes, {"x": (1, 8, 6)}, {"y": 3}, given, opset=13), mapping="rows").chosen
    layers = {each.name: each.operator for each in graph.nodes if isinstance(each.operator, Filter)}
    assert layers["complex"].in_channels == 6


def test_channels_stay_if_their_place_keeps_blocks_apart():
    """Blocks of 8 x 8 of the first layer end where crossbars do; without a channel they would not."""
    hidden = np.kron(np.eye(4, dtype=np.float32), random(8, 8)).astype(np.float32)
    hidden[:, 3] = 0
    graph = load(two_layers(hidden, random(32, 4))).graph
    assert drop(graph, xbar=8).graph is graph
    assert channels(drop(graph, xbar=64).graph) == [31, 4]


def test_what_only_dead_channels_read_is_dead():
    hidden, middle, last = random(8, 6), random(6, 5), random(5, 4)
    last[1:3] = 0
    middle[2, [0, 3, 4]] = 0  # channel 2 feeds dead channels alone
    nodes = [
        node("Gemm", "x a", "h", name="g1"),
        relu("h", "r"),
        node("Gemm", "r b", "g", name="g2"),
        relu("g", "s"),
    ]
    nodes.append(node("Gemm", "s c", "y", name="g3"))
    model = make_model(nodes, {"x": (1, 8)}, ["y"], {"a": hidden, "b": middle, "c": last})
    found = drop(load(model).graph)
    verify_channels(found)
    assert channels(found.graph) == [5, 3, 4]


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("residual", [False, True])
def test_programs_of_floats_and_integers(mapping: Any, residual: bool, tmp_path: Path):
    model = network(3, residual=residual)
    options: dict[str, Any] = {"xbar": 16, "cores": 40, "mapping": mapping}
    assert raptor.compile(model, **options).validate(samples=2).passed
    int8 = raptor.quantize(model).save(tmp_path / "int8.onnx")
    assert raptor.compile(int8, **options).validate(samples=2).passed


def test_the_verifier_finds_a_channel_that_counts():
    hidden, read = random(8, 6), random(6, 4)
    hidden[:, 2] = 0
    found = drop(load(two_layers(hidden, read)).graph)
    verify_channels(found)
    kept = np.arange(5)  # channel 5 is missing, and the dead one is there
    wrong = dict.fromkeys(found.chosen, kept)
    with pytest.raises(VerifyError, match=r"channel 5 is missing|weights are not the selected ones"):
        verify_channels(replace(found, chosen=wrong))
    with pytest.raises(VerifyError, match="input channel 5 is missing, but is not 0"):
        verify_channels(select_channels(found.before, wrong))
    part = dict(list(found.chosen.items())[1:])
    with pytest.raises(VerifyError):
        verify_channels(SelectedChannels(found.graph, found.before, part))


def spectrum(*, cut: bool = False):
    """The energy of 20 bins of 9 frames, of which 4 bands read 6: the others have weights of zero, or are cut off."""
    sines, bands = random(20, 1, 16), np.zeros((20, 4), np.float32)
    bands[1:7] = random(6, 4)
    if not cut:
        sines[0] = 0
    nodes = [
        node("Conv", "x cosines", "re", name="real", strides=[8]),
        node("Conv", "x sines", "im", name="imaginary", strides=[8]),
        *(node("Transpose", name, f"{name}t", name=f"turn_{name}", perm=[0, 2, 1]) for name in ("re", "im")),
        *(node("Mul", f"{name}t {name}t", f"{name}2", name=f"square_{name}") for name in ("re", "im")),
        node("Add", "re2 im2", "energy", name="energy"),
        *([node("Slice", "energy first last axis", "some", name="cut")] if cut else []),
        node("MatMul", "some bands" if cut else "energy bands", "y", name="bands"),
    ]
    numbers = {"first": np.array([1]), "last": np.array([7]), "axis": np.array([2])}
    given = {"cosines": random(20, 1, 16), "sines": sines, "bands": bands[1:7] if cut else bands, **numbers}
    return make_model(nodes, {"x": (1, 1, 80)}, {"y": 3}, given, opset=13)


@pytest.mark.parametrize("cut", [False, True])
def test_bins_that_no_band_reads_are_not_computed(cut: bool):
    """In the imported graph, the bins of the transposed spectrum are pixels; laid out as tokens, they are channels."""
    found = passes(spectrum(cut=cut), mapping="rows", cores=20, xbar=16)
    assert sorted(channels(found.chosen)) == [4, 6, 6]
    assert all(keeps_elements_in_place(each) for each in found.chosen.nodes if isinstance(each.operator, Move))
    assert raptor.compile(spectrum(cut=cut), cores=20, xbar=16).validate(samples=2).verdict == "pass"


@pytest.mark.parametrize("strategy", ["raptor", "pixelwise"])
def test_references_compute_all_bins(strategy: str):
    found = passes(spectrum(), mapping=strategy, cores=60, xbar=16)
    assert 20 in channels(found.chosen)
