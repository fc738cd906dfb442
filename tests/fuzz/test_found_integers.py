"""Defects that random quantised models have found, each with a small model that shows it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

import raptor
from raptor.common.errors import UserError
from raptor.frontend import load
from raptor.graph.ir import Requantise
from raptor.mapping.strategies import STRATEGIES
from tests.fuzz.quantised_steps import STEPS
from tests.tiny_models import Array, make_model, node
from validator.validate import validate

SCALES: dict[str, Any] = {"s": np.float32(0.02), "t": np.float32(0.013), "u": np.float32(0.0071), "z": np.uint8(40)}
BEFORE = (node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "a"))
AFTER = (node("QuantizeLinear", "r u z", "p", name="last"), node("DequantizeLinear", "p u z", "y"))


def codes(dtype: Any, *shape: int) -> Array:
    ends = np.iinfo(dtype)
    return np.random.default_rng(shape).integers(ends.min, ends.max, shape, dtype, endpoint=True)


def named(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Returns copies of the nodes with different names, where they have not been given one."""
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    for at, copy in enumerate(copies):
        copy.name += f"_{at}" if copy.name.startswith("my_") else ""
    return copies


def model(*nodes: Any, shape: tuple[int, ...] = (1, 4, 5, 5), rank: int = 4, **constants: Any) -> ModelProto:
    """Returns x, quantised, then the nodes, which read `a` and write `r`, quantised again, as floats."""
    all_nodes = named([*BEFORE, *nodes, *AFTER])
    return make_model(all_nodes, {"x": shape}, {"y": rank}, SCALES | constants, opset=21, ir_version=10)


def passes(given: ModelProto, folder: Path, **options: Any) -> None:
    """Compiles a model to integers alone, and validates it."""
    chosen: dict[str, Any] = {"xbar": (24, 16), "xbars_per_core": 60, "cores": 20} | options
    out = raptor.compile(given, **chosen).save(folder / "out", stream_format="pim", weight_format="npz")
    report = validate(out, layers=True, samples=2)
    assert report.passed, report
    assert report.integers is not None
    assert not report.integers.float_sections, "the definition has an exact form too"
    assert load(given).graph.arithmetic == "int"


def test_two_roundings_one_after_the_other(tmp_path: Path):
    """The optimiser of onnxruntime dropped one of them."""
    pairs = [node("QuantizeLinear", "a t z", "b"), node("DequantizeLinear", "b t z", "r")]
    passes(model(*pairs), tmp_path)


def test_a_constant_beside_integers_of_16_bits(tmp_path: Path):
    """The constant was rounded like a bias of products."""
    nodes = [
        node("QuantizeLinear", "x s wide", "q"),
        node("DequantizeLinear", "q s wide", "a"),
        node("DequantizeLinear", "k t", "b"),
        node("Add", "a b", "c"),
        node("QuantizeLinear", "c u wide", "p"),
        node("DequantizeLinear", "p u wide", "y"),
    ]
    constants: dict[str, Any] = SCALES | {"wide": np.uint16(22314), "k": codes(np.int8, 1, 4, 5, 5)}
    given = make_model(named(nodes), {"x": (1, 4, 5, 5)}, ["y"], constants, opset=21, ir_version=10)
    terms = [len(n.operator.terms) for n in load(given).graph.nodes if isinstance(n.operator, Requantise)]
    assert terms == [2]
    passes(given, tmp_path)


@pytest.mark.parametrize("bounds", ["Relu", "Clip"])
def test_bounds_behind_joined_tensors(tmp_path: Path, bounds: str):
    """They were computed in floats."""
    nodes = [
        node("QuantizeLinear", "a t z", "b"),
        node("DequantizeLinear", "b t z", "c"),
        node("Sigmoid", "c", "d"),
        node("Concat", "a d c", "e", axis=1),
        node(bounds, "e low high" if bounds == "Clip" else "e", "r"),
    ]
    passes(model(*nodes, low=np.float32(0.1), high=np.float32(1.2)), tmp_path)


def test_bounds_behind_a_table(tmp_path: Path):
    nodes = [node("HardSwish", "a", "b"), node("Clip", "b low high", "r")]
    passes(model(*nodes, low=np.float32(-0.1), high=np.float32(0.9)), tmp_path)


def test_padding_with_the_number_of_an_integer(tmp_path: Path):
    """Float32(-23 * scale) is no whole multiple of the scale in float64."""
    value = np.float32(-23) * SCALES["s"]
    passes(model(node("Pad", "a pads value", "r"), pads=np.array([0, 0, 1, 0, 0, 1, 0, 2]), value=value), tmp_path)


@pytest.mark.parametrize("mapping", STRATEGIES)
@pytest.mark.parametrize("zero", [-128, 0, 55])
def test_depthwise_weights_wider_than_their_input(tmp_path: Path, zero: int, mapping: str):
    """A zero point gives weights of 9 bits, which a vector of bytes does not hold."""
    nodes = [node("DequantizeLinear", "w t zw", "v"), node("Conv", "a v", "r", group=4, pads=[1, 1, 0, 1])]
    weights: dict[str, Any] = {"w": codes(np.int8, 4, 1, 3, 3), "zw": np.int8(zero)}
    passes(model(*nodes, **weights), tmp_path, mapping=mapping, xbar=9)


@pytest.mark.parametrize("group", [1, 4])
def test_lines_that_read_padding_only(tmp_path: Path, group: int):
    """The dilated kernel steps over the one line of the image."""
    weights = {"w": codes(np.int8, 4, 4 // group, 2, 2), "wz": np.int8(0)}
    window: dict[str, Any] = {"pads": [1, 0, 1, 1], "dilations": [2, 1], "group": group}
    nodes = [node("DequantizeLinear", "w s wz", "f"), node("Conv", "a f", "r", **window)]
    given = model(*nodes, shape=(1, 4, 1, 5), **weights)
    passes(given, tmp_path, mapping="rows", xbar=(180, 27), xbars_per_core=3, cores=2)


def test_a_mean_of_the_pixels_of_heads(tmp_path: Path):
    """The mean over a line next to products of computed tensors was taken for one over the channels of a token."""
    turned = [node("Transpose", "a", "b", perm=[0, 1, 3, 2]), node("QuantizeLinear", "b t z", "c")]
    product = [node("DequantizeLinear", "c t z", "d"), node("MatMul", "a d", "e"), node("QuantizeLinear", "e u z", "f")]
    nodes = [*turned, *product, node("LeakyRelu", "d", "g"), node("QuantizeLinear", "g t z", "h")]
    mean = [node("DequantizeLinear", "h t z", "i"), node("GlobalAveragePool", "i", "r")]
    given = named([*BEFORE, *nodes, node("DequantizeLinear", "f u z", "k"), *mean, *AFTER])
    passes(make_model(given, {"x": (1, 7, 1, 4)}, {"y": 4, "k": 4}, SCALES, opset=21, ir_version=10), tmp_path)


def test_a_sum_of_one_element_each(tmp_path: Path):
    """The definition took it for a float section."""
    parts = [node("ReduceSum", "a axes", "b"), node("Concat", "b a", "c", axis=3), node("GlobalMaxPool", "c", "r")]
    passes(model(*parts, shape=(1, 1, 3, 1), axes=np.array([1])), tmp_path)


@pytest.mark.parametrize("mapping", STRATEGIES)
def test_wide_weights_in_cores_of_one_crossbar(tmp_path: Path, mapping: str):
    """A tile of seven outputs takes two crossbars if its weights have 9 bits."""
    nodes = [node("DequantizeLinear", "w t zw", "v"), node("Gemm", "a v", "r", transB=1)]
    given = model(*nodes, shape=(1, 15), rank=2, w=codes(np.int8, 10, 15), zw=np.int8(62))
    passes(given, tmp_path, mapping=mapping, xbar=(8, 7), xbars_per_core=1)


def test_weights_that_no_row_of_cells_holds():
    nodes = [node("DequantizeLinear", "w t zw", "v"), node("Gemm", "a v", "r", name="dense", transB=1)]
    given = model(*nodes, shape=(1, 15), rank=2, w=codes(np.int8, 10, 15), zw=np.int8(62))
    with pytest.raises(UserError, match=r"dense: a weight of 9 bits takes 9 cells of 1 bits.*only 8 columns; try "):
        raptor.compile(given, xbar=(16, 8), cell_bits=1, xbars_per_core=9)


def test_a_program_without_constants(tmp_path: Path):
    """Its file of constants said that they are floats."""
    given = make_model([*BEFORE], {"x": (1, 3)}, {"a": 2}, SCALES, opset=21, ir_version=10)
    passes(given, tmp_path)


@pytest.mark.parametrize("weight", [-128, -1])
def test_weights_that_are_all_negative(tmp_path: Path, weight: int):
    """`validate` found that -128 does not fit 8 bits."""
    nodes = [node("DequantizeLinear", "w t", "v"), node("MatMul", "a v", "r")]
    passes(model(*nodes, shape=(1, 6), rank=2, w=np.full((6, 2), weight, np.int8)), tmp_path)


def test_sums_of_sums(tmp_path: Path):
    """The definition rounded the first of two additions to float32."""
    nodes = [
        node("DequantizeLinear", "k t", "b"),
        node("Sub", "b a", "c"),
        node("Add", "c a", "d"),
        node("Add", "d b", "r"),
    ]
    given = model(*nodes, k=codes(np.int16, 1, 4, 5, 5))
    passes(given, tmp_path)


_TERMS = [node("QuantizeLinear", "a u z", "o"), node("DequantizeLinear", "o u z", "b")]
_WEIGHTS = node("DequantizeLinear", "w t", "v")
WITHOUT_ROUNDING = {
    "a product of products": [*_TERMS, node("Mul", "a b", "m"), node("Mul", "m b", "r")],
    "sums of sums over an image": [*_TERMS, node("ReduceSum", "a axes", "m"), node("Add", "m b", "r")],
    "Sum": [*_TERMS, node("Sum", "a b a", "r")],
    "weights of a product": [*_TERMS, _WEIGHTS, node("Mul", "a b", "m"), node("Conv", "m v", "r")],
    "joined sums of products": [*_TERMS, _WEIGHTS, node("Conv", "a v", "c"), node("Concat", "c b", "r", axis=1)],
    "joined twice": [*_TERMS, node("Concat", "a b", "c", axis=1), node("Concat", "c b", "r", axis=1)],
    "bounds that integers are": [
        *(*_TERMS, node("Relu", "a", "c"), node("Mul", "c b", "m"), node("Relu", "m", "d")),
        node("Add", "d a", "r"),
    ],
    "a constant that widens a sum": [
        *(*_TERMS, node("MatMul", "a b", "m"), node("DequantizeLinear", "k t", "d")),
        node("Add", "m d", "r"),
    ],
    "the largest of an image": [node("GlobalMaxPool", "a", "r")],
    "means of one element": [*_TERMS, node("AveragePool", "a", "m", kernel_shape=[1, 1]), node("MatMul", "m b", "r")],
    "blocks of scales": [node("DequantizeLinear", "wb tb", "v", axis=0, block_size=3), node("MatMul", "a v", "r")],
}


@pytest.mark.parametrize("form", WITHOUT_ROUNDING)
def test_exact_numbers_without_rounding_between(form: str, tmp_path: Path):
    """The compiler kept them in integers, and the definition rounded them to float32."""
    given: dict[str, Any] = {"w": codes(np.int8, 3, 4, 1, 1), "k": codes(np.int8, 2, 4, 1, 1), "axes": np.array([2, 3])}
    given |= {"wb": codes(np.int8, 5, 2), "tb": np.array([[0.01, 0.02], [0.013, 0.007]], np.float32)}
    read = {name for n in WITHOUT_ROUNDING[form] for name in n.input}
    used = {name: value for name, value in given.items() if name in read}
    passes(model(*WITHOUT_ROUNDING[form], **used), tmp_path)


def test_every_operator_is_drawn():
    assert len({step.__name__ for step in STEPS}) > 25
