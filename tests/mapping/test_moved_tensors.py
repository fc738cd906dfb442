"""Computed tensors that are moved, broadcast or reduced as a whole have many cores."""

from typing import Any

import numpy as np
import pytest

import raptor
from benchmarks.programs.block_models import BlockBuilder
from benchmarks.programs.slow_models import (
    attentive_pool,
    class_margins,
    coordinates,
    fixed_graph,
    fourier_steps,
    graph_sums,
    group_moments,
    harmonics,
    interleaved_signals,
    key_points,
    log_shares,
    neighbour_sums,
    octaves,
    one_hot,
    pixel_classes,
    point_neighbours,
    points,
    recommender,
    refined_maxima,
    repeated_vector,
    restored_image,
    rotated_points,
    softmax_pixels,
    state_space,
    summed_bags,
)
from raptor.compiler.pipeline import MappedGraph, prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Move
from raptor.graph.streaming_layout import can_stream
from raptor.mapping.decision import LineGrid, LineUnfolding
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.modes.epilogue_cost import find_epilogues
from raptor.mapping.modes.line_readers import LineReader, find_line_readers
from raptor.mapping.strategies import ROWS
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from raptor.transforms.lay_out_free_tensors import lay_out_free_tensors
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from raptor.transforms.turn_columns import turn_columns
from tests.pipeline import by_line, line_flow, passes
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP: dict[str, Any] = {"arch": "bench", "cores": 48}


def model_of(name: str) -> Any:
    builder = BlockBuilder()
    built = {
        "one_hot": lambda: one_hot(builder, 256, 100, 16),
        "group_moments": lambda: group_moments(builder, 128, 4, 16),
        "pixel_classes": lambda: pixel_classes(builder, 24, 16),
        "harmonics": lambda: harmonics(builder, 40, 80, (0, 12, 19, 24)),
        "octaves": lambda: octaves(builder, 64, 12, 4, (0,)),
        "octaves_harmonics": lambda: octaves(builder, 64, 12, 4, (0, 5, 9, 12)),
        "interleaved_signals": lambda: interleaved_signals(builder, 256, 16, 6),
        "softmax_pixels": lambda: softmax_pixels(builder, 24, 16),
        "key_points": lambda: key_points(builder, 24, 17),
        "attentive_pool": lambda: attentive_pool(builder, 192, 64),
        "repeated_vector": lambda: repeated_vector(builder, 24, 32),
        "points": lambda: points(builder, 256),
        "fourier_steps": lambda: fourier_steps(builder, 24, 16, 16),
        "refined_maxima": lambda: refined_maxima(builder, 32, 48),
        "coordinates": lambda: coordinates(builder, 512, 2),
        "state_space": lambda: state_space(builder, 16, 64, 8),
        "recommender": lambda: recommender(builder, 24, 5, 16),
        "graph_sums": lambda: graph_sums(builder, 24, 64, 16),
        "point_neighbours": lambda: point_neighbours(builder, 32, 4, 16),
        "neighbour_sums": lambda: neighbour_sums(builder, 32, 64, 16),
        "fixed_graph": lambda: fixed_graph(builder, 24, 64, 32),
        "summed_bags": lambda: summed_bags(builder, 12, 4, 16),
        "class_margins": lambda: class_margins(builder, 64, 32),
        "log_shares": lambda: log_shares(builder, 64, 32),
        "rotated_points": lambda: rotated_points(builder, 64, 16),
        "restored_image": lambda: restored_image(builder, 24, 16),
    }
    return builder.finish(name, built[name]())


def mapped(model: Any) -> MappedGraph:
    chip = load_chip(ChipOptions(**CHIP))
    return rewrite_and_map(prepare_graph(load(model).graph, chip), chip, ROWS)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        *(("one_hot", 2), ("group_moments", 2), ("harmonics", 2), ("pixel_classes", 3), ("softmax_pixels", 2)),
        *(("octaves", 2), ("octaves_harmonics", 2), ("interleaved_signals", 2)),
        *(("fourier_steps", 2), ("refined_maxima", 3)),
        *(("key_points", 2), ("attentive_pool", 3), ("repeated_vector", 2), ("points", 2), ("coordinates", 2)),
        *(("state_space", 2), ("recommender", 2), ("graph_sums", 1.4), ("point_neighbours", 3)),
        *(("neighbour_sums", 2), ("fixed_graph", 2), ("restored_image", 2)),
        *(("rotated_points", 2), ("log_shares", 1.3), ("summed_bags", 3), ("class_margins", 1.3)),
    ],
)
def test_no_core_does_most_of_the_work(name: str, times: float):
    # 4 to 30 times where the first operand is, or where all elements of a reduction come together
    model = model_of(name)
    bounds = evaluate((done := mapped(model)).graph, done.decision, load_chip(ChipOptions(**CHIP))).bounds
    assert bounds.busiest_ns < times * max(bounds.total_ns / CHIP["cores"], bounds.port_ns)
    assert raptor.compile(model, **CHIP).validate(samples=2).verdict == "pass"


def test_classes_of_pixels_stay_an_image():
    """Each line of classes is there when the line of the image is; one line of all pixels would be there at the end."""
    graph = mapped(model_of("pixel_classes")).graph
    moves = [node for node in graph.nodes if isinstance(node.operator, Move)]
    images = [graph.tensors[name].image for node in moves for name in (*node.inputs, node.output)]
    assert images
    assert all(image.rows > 1 for image in images)


def test_short_runs_of_a_computed_tensor_are_gathered_on_cores_of_their_own():
    done = mapped(model_of("harmonics"))
    (moved,) = [n for n in done.graph.nodes if isinstance(n.operator, Move) and len(n.inputs) > 1]
    assert not {*moved.inputs} & {*done.graph.inputs}
    assert len(line_flow(done.decision).loaders[moved.output]) > 1


def test_numbers_as_rows_of_zeros_with_a_one():
    kinds = np.arange(7, dtype=np.float32).reshape(1, 1, 7)
    nodes = [
        node("Unsqueeze", "x two", "u"),
        node("Equal", "u kinds", "e"),
        node("Cast", "e", "f", to=1),
        node("MatMul", "f w", "y", name="layer"),
    ]
    model = make_model(
        nodes, {"x": (1, 300)}, {"y": 3}, {"kinds": kinds, "w": random(7, 5), "two": np.array([2])}, opset=13
    )
    before = lay_out_tokens(load(model).graph)
    after = lay_out_free_tensors(before)
    after.verify()
    layer = next(n for n in after.nodes if n.output == "y")
    assert not isinstance(next(n for n in after.nodes if n.output == layer.inputs[0]).operator, Move)
    values = {"x": np.random.default_rng(3).integers(0, 9, (1, 300)).astype(np.float32)}
    made = evaluate_graph(after, values)["y"]
    assert np.array_equal(made, evaluate_graph(before, values)["y"])
    assert len(np.unique(made.reshape(-1, 5), axis=0)) == 8  # seven rows of weights, and none
    assert len(by_line(passes(model, mapping="rows", cores=24, xbar=16).decision)["y"].grid.cols) > 4
    assert raptor.compile(model, cores=24, xbar=16).validate(inputs=values).verdict == "pass"


def test_lines_of_one_token_become_a_line():
    nodes = [
        node("Mul", "x scale", "m"),
        node("Transpose", "m", "t", perm=[0, 3, 1, 2]),
        node("Conv", "t w", "y", name="layer"),
    ]
    model = make_model(nodes, {"x": (1, 40, 1, 6)}, {"y": 4}, {"scale": random(6), "w": random(5, 6, 3, 1)}, opset=13)
    done = passes(model, mapping="rows", cores=24, xbar=16)
    assert turn_columns(lay_out_tokens(load(model).graph)).tensors["m"].image.rows == 1
    assert len(by_line(done.decision)["y"].grid.cols) > 4
    assert raptor.compile(model, cores=24, xbar=16).validate(samples=2).verdict == "pass"


def test_a_signal_that_a_sum_makes_of_an_image_is_a_line():
    nodes = [
        node("ReduceSum", "x two", "s", keepdims=0),
        node("Sqrt", "s", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1]),
        node("Unsqueeze", "t one", "u"),
        node("Conv", "u w", "y", name="layer"),
    ]
    constants = {"two": np.array([2]), "one": np.array([1]), "w": random(4, 1, 3, 3)}
    model = make_model(nodes, {"x": (1, 12, 2, 40)}, {"y": 4}, constants, opset=13)
    graph = mapped(model).graph
    assert all(can_stream(graph.tensors[name].image) for name in ("s", "r", "y"))


@pytest.mark.parametrize(("kernel", "stride", "found"), [(1, 1, ["y"]), (5, 2, ["y"]), (3, 1, ["y"])])
def test_layers_of_one_line_read_a_view(kernel: int, stride: int, found: list[str]):
    nodes = [node("Relu", "x", "r"), node("Conv", "r w", "y", name="layer", strides=[1, stride])]
    graph = load(make_model(nodes, {"x": (1, 3, 2, 20)}, {"y": 4}, {"w": random(4, 3, 1, kernel)})).graph
    readers = list(find_line_readers(graph, graph.readers(), "x"))
    assert [each.output for each, _ in readers] == found
    width = (20 - kernel) // stride + 1
    grid = LineGrid(((0, width // 2), (width // 2, width)), (((0, 3),),), ((0, 4),), 1, 1, 0, 1)
    middle, image = width // 2 * 20 // width, graph.tensors["x"].image
    assert LineReader(LineUnfolding(grid, (7, 9)), (0, 3)).cells(image, 1) == [((0, middle), 7), ((middle, 20), 9)]
    lanes = LineReader(LineUnfolding(replace(grid, lanes=((0, 1), (1, 2))), (7, 9, 2, 4)), (0, 3))
    assert [lanes.cells(image, y) for y in (0, 1)] == [
        [((0, middle), 7), ((middle, 20), 9)],
        [((0, middle), 2), ((middle, 20), 4)],
    ]


def test_a_layer_that_reads_several_tokens_of_a_line_streams():
    nodes = [
        *(node("MatMul", "x v", "a", name="first"), node("Reshape", "a joined", "b")),
        *(node("MatMul", "b w", "c", name="second"), node("Relu", "c", "y")),
    ]
    constants = {"v": random(16, 32), "w": random(128, 16), "joined": np.array([1, 64, 128])}
    done = mapped(make_model(nodes, {"x": (1, 256, 16)}, {"y": 3}, constants, opset=13))
    assert len(by_line(done.decision)) == 2


def test_a_depthwise_layer_behind_a_gate_is_work_of_the_layer_that_makes_its_pixels():
    nodes = [
        *(node("Conv", "x w", "a", name="layer", pads=[1] * 4), node("GlobalAveragePool", "a", "m")),
        *(node("Conv", "m g", "s", name="gate"), node("Sigmoid", "s", "t"), node("Mul", "a t", "b", name="mul")),
        node("Conv", "b d", "y", name="depthwise", group=32, pads=[3] * 4),
    ]
    constants = {"w": random(32, 3, 3, 3), "g": random(32, 32, 1, 1), "d": random(32, 1, 7, 7)}
    done = mapped(make_model(nodes, {"x": (1, 3, 24, 24)}, {"y": 4}, constants, opset=13))
    found = find_epilogues(done.graph, load_chip(ChipOptions(**CHIP)))
    assert found["a"].stencils
    assert not found["s"].stencils


def test_layers_read_a_view_through_a_concatenation_as_later_channels():
    nodes = [node("Relu", "x", "r"), node("Concat", "r x", "b", axis=1), node("Conv", "b w", "y", name="layer")]
    graph = load(make_model(nodes, {"x": (1, 3, 2, 20)}, {"y": 4}, {"w": random(4, 6, 1, 1)})).graph
    assert [first for _, first in find_line_readers(graph, graph.readers(), "x")] == [0, 3]


def test_a_layer_of_several_lines_reads_no_view():
    nodes = [node("Relu", "x", "r"), node("Conv", "r w", "y", name="layer", pads=[1, 0, 1, 0])]
    graph = load(make_model(nodes, {"x": (1, 3, 6, 20)}, {"y": 4}, {"w": random(4, 3, 3, 1)})).graph
    assert not list(find_line_readers(graph, graph.readers(), "x"))
