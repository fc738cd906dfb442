"""Operators that put elements in another order, against onnxruntime; some through the instruction streams."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.ir import Map, Move, Rename
from tests.pipeline import check, count_ops, passes
from tests.tiny_models import Array, compare, make_model, node, random, single

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 40}


def of_inputs(op_type: str, shape: tuple[int, ...], rank: int, constants: dict[str, Array], **attributes: Any):
    """y = op(x, constants...)."""
    opset = attributes.pop("opset", 18)
    inputs = " ".join(["x", *constants])
    return make_model([node(op_type, inputs, **attributes)], {"x": shape}, {"y": rank}, constants, opset=opset)


@pytest.mark.parametrize("perm", [None, *permutations(range(4))])
def test_transpose(perm: tuple[int, ...] | None):
    compare(single("Transpose", (2, 3, 4, 5), **({} if perm is None else {"perm": perm})))


def test_channels_last_is_free():
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Relu", "t", "r")]
    nodes.append(node("Transpose", "r", "y", perm=[0, 3, 1, 2], name="back"))
    model = make_model(nodes, {"x": (2, 6, 3, 5)}, ["t", "y"])
    assert set(count_ops(passes(model, **CHIP).streams)) == {"sldi", "setbw", "ld", "st", "vrelu"}
    compare(model)
    check(model, **CHIP)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((0, 0), (3, 10), (0, 1), (1, 1)),
        ((0, 0, 3), (20, 10, 4), None, None),
        ((1,), (1000,), (1,), (1,)),
        ((0,), (-1,), (1,), (1,)),
        ((20, 10, 4), (0, 0, 1), (0, 1, 2), (-1, -3, -2)),
        ((0, 0, 3), (20, 10, 4), (0, -2, -1), None),
        ((-1,), (-1000,), (2,), (-1,)),
        ((-1,), (-(2**63),), (1,), (-2,)),
        ((-1000,), (2**63 - 1,), (2,), (2,)),
    ],
)
def test_slice(starts: Any, ends: Any, axes: Any, steps: Any):
    given = {"s": starts, "e": ends, "a": axes, "t": steps}
    constants = {k: np.array(v) for k, v in given.items() if v is not None}
    compare(of_inputs("Slice", (20, 10, 5), 3, constants))


def test_slice_of_old():
    compare(single("Slice", (4, 6, 5), opset=9, starts=[1, 0], ends=[3, -1], axes=[0, 2]))
    compare(single("Slice", (4, 6, 5), opset=9, starts=[1, 0], ends=[100, 3]))
    compare(single("Slice", (4, 6, 5), opset=9, starts=[0, 1], ends=[-1, 3], axes=[2, 0]))


def test_an_early_slice_behind_which_a_transposition_moves():
    """onnxruntime swaps its axes, which stay attributes; onnx infers a shape only of axes in order."""
    nodes = [
        node("Transpose", "x", "t", name="turn", perm=[2, 1, 0]),
        node("Slice", "t", "y", name="slice", starts=[-3, 0], ends=[1000, 1], axes=[1, 2]),
        node("Relu", "x", "r", name="relu"),
        node("Transpose", "r", "u", name="again", perm=[2, 1, 0]),
        node("Slice", "u", "z", name="part", starts=[-3, 0], ends=[1000, 1], axes=[1, 2]),
        node("Tanh", "u", "v", name="tanh"),
    ]
    compare(make_model(nodes, {"x": (3, 4, 5)}, {"y": 3, "z": 3, "v": 3}, opset=9))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("even", [True, False])
def test_split(axis: int, opset: int, even: bool):
    sizes = [3, 3] if even else [1, 2, 3]
    outputs = ["y", "z"] if even else ["y", "z", "u"]
    constants: dict[str, Array] = {}
    attributes: dict[str, Any] = {"axis": axis}
    if opset == 11 and not even:
        attributes["split"] = sizes
    elif not even:
        constants["s"] = np.array(sizes)
    elif opset == 18:
        attributes["num_outputs"] = 2
    split = node("Split", " ".join(["x", *constants]), " ".join(outputs), **attributes)
    model = make_model([split], {"x": (6, 6, 6)}, dict.fromkeys(outputs, 3), constants, opset=opset)
    assert load(model).graph.outputs == tuple(outputs)
    compare(model)


def test_split_into_uneven_parts():
    model = make_model([node("Split", "x", "y z u", num_outputs=3)], {"x": (7,)}, dict.fromkeys("yzu", 1), opset=18)
    compare(model)


def test_split_of_whole_tiles_is_free_and_an_unused_output_is_not_made():
    nodes = [node("Split", "x", "a b c", axis=1), node("Relu", "a", "y"), node("Tanh", "c", "z")]
    model = make_model(nodes, {"x": (1, 12, 3, 3)}, ["y", "z"], opset=13)
    compare(model)
    assert set(count_ops(passes(model, **CHIP).streams)) == {"sldi", "setbw", "ld", "st", "vrelu", "vtanh"}
    check(model, **CHIP)


PADS = (0, 1, 2, 0, 1, 0, 1, 2)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("opset", [2, 11, 13, 18, 21])
def test_pad(mode: str, opset: int):
    shape = (2, 3, 4, 5)
    if opset == 2:
        pads = PADS if mode == "constant" else (0, 0, 2, 0, 0, 0, 1, 2)
        compare(single("Pad", shape, opset=8, pads=pads, mode=mode, value=0.5))
    else:
        value = {"v": np.float32(-1.5)} if mode == "constant" else {}
        compare(of_inputs("Pad", shape, 4, {"p": np.array(PADS), **value}, mode=mode, opset=opset))


def test_pad_wraps():
    compare(of_inputs("Pad", (2, 3, 4), 3, {"p": np.array([0, 1, 2, 1, 2, 0])}, mode="wrap", opset=19))


@pytest.mark.parametrize("axes", [(1, 3), (-3, -1), (3, 2)])
def test_pad_of_axes(axes: tuple[int, int]):
    constants = {"p": np.array([1, 2, 0, 1]), "v": np.float32(1.2), "a": np.array(axes)}
    compare(of_inputs("Pad", (1, 3, 4, 5), 4, constants))


@pytest.mark.parametrize("pads", [(0, -1, 1, 0, 0, -1), (-1, 0, 0, 0, 0, -2), (0, 0, -1, 0, 2, 3)])
def test_negative_pads(pads: tuple[int, ...]):
    compare(of_inputs("Pad", (2, 4, 5), 3, {"p": np.array(pads), "v": np.float32(2)}))


@pytest.mark.parametrize(("shape", "target"), [((3, 1), (2, 1, 6)), ((1, 3, 1, 1), (1, 3, 4, 5)), ((4,), (2, 4))])
def test_expand(shape: tuple[int, ...], target: tuple[int, ...]):
    compare(of_inputs("Expand", shape, len(target), {"s": np.array(target)}))


@pytest.mark.parametrize("repeats", [(1, 2, 3), (2, 1, 1), (1, 1, 1)])
def test_tile(repeats: tuple[int, ...]):
    compare(of_inputs("Tile", (2, 3, 4), 3, {"r": np.array(repeats)}))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array([0, 2]), np.array([[1, -1], [0, 0]]), np.array(1)])
def test_gather(axis: int, indices: Array):
    compare(of_inputs("Gather", (3, 4, 3), 2 + indices.ndim, {"i": indices}, axis=axis))


def test_gather_elements_and_tuples():
    compare(of_inputs("GatherElements", (3, 3), 2, {"i": np.array([[1, 2, 0], [2, -3, 0]])}, axis=0))
    compare(of_inputs("GatherElements", (3, 4, 5), 3, {"i": np.arange(12).reshape(3, 4, 1) % 5}, axis=2))
    compare(of_inputs("GatherND", (2, 3, 4), 2, {"i": np.array([[0, 1], [1, -1]])}))
    compare(of_inputs("GatherND", (2, 3, 4), 2, {"i": np.array([[[1], [0]], [[2], [1]]])[:, 0]}, batch_dims=1))
    compare(of_inputs("GatherND", (2, 3, 4), 2, {"i": np.array([[[1, 0], [0, 3]], [[2, 1], [1, -1]]])}, batch_dims=1))


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_scatter(op_type: str):
    indices = np.array([[1, -1], [0, 2]]) if op_type == "ScatterElements" else np.array([[1], [3]])
    attributes = {"axis": 1} if op_type == "ScatterElements" else {}
    updates = (2, 2) if op_type == "ScatterElements" else (2, 5)
    model = make_model(
        [node(op_type, "x i u", **attributes)], {"x": (4, 5), "u": updates}, {"y": 2}, {"i": indices}, opset=18
    )
    compare(model)
    constant = {"i": indices, "u": random(*updates)}
    compare(make_model([node(op_type, "x i u", **attributes)], {"x": (4, 5)}, {"y": 2}, constant, opset=18))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str):
    compare(single("DepthToSpace", (2, 8, 2, 3), blocksize=2, mode=mode))


def test_space_to_depth():
    compare(single("SpaceToDepth", (2, 3, 4, 6), blocksize=2))


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("DepthToSpace", {"mode": "CRD"}), ("DepthToSpace", {"mode": "DCR"}), ("SpaceToDepth", {})],
)
def test_blocks_of_pixels_are_an_image_again(op_type: str, attributes: dict[str, Any]):
    """All channels of a pixel are read behind them, also where runs along other axes would be longer."""
    graph = load(single(op_type, (1, 16, 6, 8), blocksize=2, **attributes)).graph
    assert all(graph.tensors[name].image.channel_axis == 1 for name in graph.outputs)


@pytest.mark.parametrize(("batch_axis", "time_axis"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch_axis: int, time_axis: int):
    lengths = {"n": np.array([1, 4, 2, 3])}
    compare(of_inputs("ReverseSequence", (4, 4, 2), 3, lengths, batch_axis=batch_axis, time_axis=time_axis))


def test_where():
    condition = {"c": np.array([[True, False, True]])}
    compare(make_model([node("Where", "c x z")], {"x": (2, 3), "z": (2, 1)}, {"y": 2}, condition))
    constant = condition | {"k": random(3)}
    compare(make_model([node("Where", "c x k")], {"x": (2, 3)}, {"y": 2}, constant))


@pytest.mark.parametrize("upper", [0, 1])
def test_triangle(upper: int):
    compare(single("Trilu", (2, 4, 5), upper=upper))
    compare(of_inputs("Trilu", (4, 5), 2, {"k": np.array(-1)}, upper=upper))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
def test_concat_along_any_axis(axis: int):
    other = [2, 3, 4, 5]
    other[axis] = 2
    constants = {"c": random(*other)}
    model = make_model([node("Concat", "a b a c", axis=axis)], {"a": (2, 3, 4, 5), "b": other}, ["y"], constants)
    compare(model)


@pytest.mark.parametrize("shape", [(5,), (1,)])
def test_concat_of_vectors(shape: tuple[int]):
    compare(make_model([node("Concat", "a b", axis=0)], {"a": shape, "b": (3,)}, {"y": 1}))


@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_chains_of_moves(data: st.DataObject):
    """Each operator gets the images that the operators before it left."""
    rank = 3
    nodes: list[Any] = []
    constants: dict[str, Array] = {}
    name, shape = "x", [data.draw(st.integers(1, 4)) for _ in range(rank)]
    first = tuple(shape)
    for i in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["Transpose", "Reshape", "Slice", "Tile", "Relu"]))
        attributes: dict[str, Any] = {}
        inputs = name
        if kind == "Transpose":
            attributes["perm"] = data.draw(st.permutations(range(rank)))
            shape = [shape[p] for p in attributes["perm"]]
        elif kind == "Reshape":
            shape = [shape[0] * shape[1], 1, shape[2]] if data.draw(st.booleans()) else [shape[2], shape[0], shape[1]]
            constants[f"c{i}"] = np.array(shape)
            inputs = f"{name} c{i}"
        elif kind == "Slice":
            axis = data.draw(st.integers(0, rank - 1))
            shape = [-(-n // 2) if a == axis else n for a, n in enumerate(shape)]
            for letter, value in zip("seau", (-1, -(2**40), axis, -2), strict=True):
                constants[f"{letter}{i}"] = np.array([value])
            inputs = " ".join([name, *(f"{letter}{i}" for letter in "seau")])
        elif kind == "Tile":
            constants[f"c{i}"] = np.array([1, 2, 1])
            shape = [shape[0], 2 * shape[1], shape[2]]
            inputs = f"{name} c{i}"
        nodes.append(node(kind, inputs, f"t{i}", name=f"n{i}", **attributes))
        name = f"t{i}"
    compare(make_model(nodes, {"x": first}, {name: rank}, constants))


END_TO_END = {
    "transpose": single("Transpose", (2, 6, 3, 5), perm=[3, 1, 0, 2]),
    "slice": of_inputs(
        "Slice",
        (2, 10, 5),
        3,
        {"s": np.array([9, 0]), "e": np.array([-100, 4]), "a": np.array([1, 2]), "t": np.array([-2, 3])},
    ),
    "split": make_model([node("Split", "x", "y z", axis=1)], {"x": (1, 6, 3, 3)}, ["y", "z"], opset=13),
    "pad": of_inputs("Pad", (1, 6, 3, 3), 4, {"p": np.array([0, 1, 1, 0, 0, 2, 0, 1]), "v": np.float32(0.5)}),
    "edge": of_inputs("Pad", (1, 6, 3, 3), 4, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, mode="edge"),
    "expand": of_inputs("Expand", (6, 1, 2), 4, {"s": np.array([2, 6, 5, 2])}),
    "gather": of_inputs("Gather", (6, 4, 5), 4, {"i": np.array([[1, 0], [5, 5]])}),
    "concat": make_model(
        [node("Concat", "a b c", axis=2)], {"a": (1, 6, 3, 2), "b": (1, 6, 1, 2)}, ["y"], {"c": random(1, 6, 2, 2)}
    ),
    "depth": single("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    "triangle": single("Trilu", (2, 6, 5)),
}


@pytest.mark.parametrize("name", END_TO_END)
def test_through_the_streams(name: str):
    check(END_TO_END[name], **CHIP)


def test_a_reshape_behind_a_transpose_is_right():
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Reshape", "t s", "r"), node("Relu", "r", "y")]
    model = make_model(nodes, {"x": (2, 5, 6)}, {"y": 2}, {"s": np.array([2, 30])})
    compare(model)
    check(model, **CHIP)


def test_what_stays_in_place_is_renamed():
    graph = load(single("Transpose", (1, 3, 1, 5), perm=[0, 2, 1, 3])).graph
    assert isinstance(graph.nodes[0].operator, Rename)
    pad = load(of_inputs("Pad", (1, 3), 2, {"p": np.array([0, 1, 0, 0]), "v": np.float32(1)})).graph
    assert [type(n.operator) for n in pad.nodes] == [Move, Map]


def test_refusals():
    first = node("ScatterND", "x i u", "s", reduction="add")
    far = node("GatherElements", "s j")
    constants = {"i": np.array([[1]]), "j": np.array([[4, 0]])}
    with pytest.raises(UnsupportedError, match="indices from 0 to 4 of 4"):
        load(make_model([first, far], {"x": (4, 2), "u": (1, 2)}, {"y": 2}, constants, opset=18))
    with pytest.raises(UnsupportedError, match=r"my_trilu \(Trilu\): 'i' must be a constant"):
        load(make_model([node("Cast", "z", "i", to=7), node("Trilu", "x i")], {"x": (2, 3), "z": ()}, {"y": 2}))
    nodes = [node("Cast", "z", "i", to=7), node("GatherElements", "x i")]
    with pytest.raises(UnsupportedError, match="computed indices of 1025 elements; at most 1024"):
        load(make_model(nodes, {"x": (1025, 2), "z": (1, 2)}, {"y": 2}))


def test_a_channel_shuffle_between_grouped_convolutions():
    nodes = [
        node("Conv", "x v", "c", group=2, name="first"),
        node("Reshape", "c s", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t q", "u", name="back"),
        node("Split", "u", "a b", axis=1),
        node("Conv", "a w", "d", group=6, name="second"),
        node("Concat", "b d", axis=1),
    ]
    constants = {"v": random(12, 3, 1, 1), "w": random(6, 1, 3, 3)}
    constants |= {"s": np.array([1, 2, 6, 4, 4]), "q": np.array([1, 12, 4, 4])}
    nodes[5].attribute.extend(node("Conv", "a w", pads=[1] * 4).attribute[:1])
    model = make_model(nodes, {"x": (1, 6, 4, 4)}, ["y"], constants, opset=13)
    compare(model)
    check(model, **CHIP)
