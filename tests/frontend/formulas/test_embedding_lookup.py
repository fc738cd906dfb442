"""Gather along a constant table by ids that are an input, or computed: against onnxruntime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import models
import raptor
from raptor.common.errors import UnsupportedError, UserError
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.strategies import STRATEGIES
from tests.pipeline import check, compile_to_fit
from tests.pipeline import passes as stages
from tests.tiny_models import Array, node, random
from validator.errors import IdError

INT64 = TensorProto.INT64


def with_ids(
    nodes: Sequence[NodeProto], ids: Sequence[int], rank: int, constants: dict[str, Array], kind: int = INT64
) -> ModelProto:
    """ids -> nodes -> y."""
    graph = helper.make_graph(
        list(nodes),
        "embedding",
        [helper.make_tensor_value_info("ids", kind, list(ids))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def passes(model: ModelProto, **options: Any) -> raptor.Program:
    program = raptor.compile(model, cores=4, **options)
    verdict = program.validate(layers=True)
    assert verdict.verdict == "pass", verdict
    return program


@pytest.mark.parametrize(
    ("table", "ids", "axis"),
    [
        ((30, 140), (1, 5), 0),
        ((9,), (4,), 0),
        ((5, 3, 2), (), 0),
        ((3, 7, 2), (2, 2), 1),
        ((2, 11), (1, 3, 1), -1),
        ((1, 6), (2,), 0),
    ],
)
@pytest.mark.parametrize("mapping", ["rows", "pixelwise"])
def test_any_axis_and_shape(table: Sequence[int], ids: Sequence[int], axis: int, mapping: str):
    nodes = [node("Gather", "t ids", axis=axis, name="look")]
    model = with_ids(nodes, ids, len(table) + len(ids) - 1, {"t": random(*table)})
    program = passes(model, mapping=mapping)
    rows = table[axis]
    for wrong in (-1, rows, 2**40):
        given = np.zeros(ids, np.int64)
        given.reshape(-1)[-1] = wrong
        with pytest.raises(UserError, match=rf"input 'ids', int64: holds {wrong}, outside 0\.\.{rows - 1}"):
            program.run({"ids": given})


def test_ids_are_bounded_by_the_smallest_table_through_moves():
    nodes = [
        node("Transpose", "ids", "turned", perm=[1, 0], name="turn"),
        node("Cast", "turned", "wide", to=INT64, name="cast"),
        node("Gather", "t wide", "a", name="first"),
        node("Gather", "u wide", "b", name="second"),
        node("Add", "a b", name="sum"),
    ]
    model = with_ids(nodes, (2, 3), 3, {"t": random(9, 4), "u": random(6, 4)}, TensorProto.INT32)
    program = passes(model)
    assert program.artifacts is not None
    coding = program.artifacts.memory.inputs[0].coding
    assert coding is not None
    assert (coding.dtype, coding.low, coding.high) == ("int32", 0, 5)


@pytest.mark.parametrize("mapping", STRATEGIES)
def test_computed_ids_count_from_the_end(mapping: str):
    numbers = np.array([-1, 3, -12, 11, 0, -5], np.int64)
    nodes = [node("Gather", "n ids", "s", name="numbers"), node("Gather", "t s", name="look")]
    passes(with_ids(nodes, (2, 3), 3, {"n": numbers, "t": random(12, 6)}), mapping=mapping)


@pytest.mark.parametrize(("number", "shown"), [(-13, -1), (12, 12), (2**20, 2**20)])
def test_computed_ids_that_are_no_rows(number: int, shown: int):
    nodes = [node("Gather", "n ids", "s", name="numbers"), node("Gather", "t s", name="look")]
    numbers = np.array([0, -1, number], np.int64)
    program = raptor.compile(with_ids(nodes, (1, 4), 3, {"n": numbers, "t": random(12, 6)}), cores=1)
    ids = np.array([[0, 1, 1, 2]])
    with pytest.raises(IdError, match=rf"look, token 3: the id is {shown}, but the rows of the table are 0 to 11$"):
        program.run({"ids": ids})


@pytest.mark.parametrize("kind", [INT64, TensorProto.INT32])
@pytest.mark.parametrize("codes", [False, True])
def test_models_with_integers(kind: int, codes: bool):
    """The table holds codes that are dequantised after the lookup, or before it."""
    rng = np.random.default_rng(0)
    constants = {
        "t": rng.integers(0, 256, (12, 6)).astype(np.uint8),
        "w": rng.integers(-100, 101, (6, 4)).astype(np.int8),
        "st": np.float32(0.05), "zt": np.uint8(130), "sw": np.float32(0.01), "zw": np.int8(0),
    }  # fmt: skip
    after = [node("Gather", "t ids", "e", name="look"), node("DequantizeLinear", "e st zt", "x", name="real")]
    before = [
        node("DequantizeLinear", "t st zt", "r", name="real"),
        node("Gather", "r ids", "f", name="look"),
        node("QuantizeLinear", "f st zt", "e", name="codes"),
        node("DequantizeLinear", "e st zt", "x", name="again"),
    ]
    nodes = [
        *(after if codes else before),
        node("DequantizeLinear", "w sw zw", "v", name="weights"),
        node("MatMul", "x v", "z", name="product"),
        node("QuantizeLinear", "z st zt", "q", name="quantise"),
        node("DequantizeLinear", "q st zt", "y", name="out"),
    ]
    program = passes(with_ids(nodes, (2, 3), 3, constants, kind))
    assert program.artifacts is not None
    assert program.artifacts.numbers == ("int" if codes and kind == TensorProto.INT32 else "mixed")
    with pytest.raises(UserError, match=r"input 'ids'.* (outside 0\.\.11|a value outside 0\.\.11)"):
        program.run({"ids": np.full((2, 3), 12)})


def test_a_computed_table():
    nodes = [node("Cast", "ids", "f", to=TensorProto.FLOAT, name="float"), node("Gather", "f ids", name="look")]
    program = passes(with_ids(nodes, (4,), 1, {}))
    np.testing.assert_array_equal(program.run({"ids": np.array([2, 3, -4, -1])})["y"], [-4, -1, 2, -1])
    with pytest.raises(UserError, match=r"input 'ids', int64: holds 4, outside -4\.\.3"):
        program.run({"ids": np.array([0, 1, 2, 4])})


def test_a_computed_table_of_integers_is_refused():
    constants = {"s": np.float32(0.5), "z": np.int8(1), "t": random(6, 4)}
    nodes = [
        node("Gather", "t ids", "a", name="first"),
        node("QuantizeLinear", "a s z", "q", name="quantise"),
        node("DequantizeLinear", "q s z", "b", name="real"),
        node("Gather", "b ids", name="look"),
    ]
    with pytest.raises(UnsupportedError, match=r"look \(Gather\): computed indices of what is computed"):
        raptor.compile(with_ids(nodes, (3,), 2, constants))


def encoder(tokens: int, dim: int) -> ModelProto:
    """Returns BERT-tiny, made smaller, from the ids of words and segments on."""
    model = ModelProto.FromString(models.build("bert_tiny", tokens=tokens, dim=dim, depth=1).SerializeToString())
    graph = model.graph
    embedded = graph.input[0].name
    del graph.input[:]
    for name in ("ids", "segments"):
        graph.input.append(helper.make_tensor_value_info(name, INT64, [1, tokens]))
    for name, rows in (("words", 50), ("kinds", 2), ("positions", tokens)):
        graph.initializer.append(numpy_helper.from_array(random(rows, dim), name))
    layers = list(graph.node)
    del graph.node[:]
    graph.node.extend(
        [
            node("Gather", "words ids", "w", name="words_of"),
            node("Gather", "kinds segments", "k", name="kinds_of"),
            node("Add", "w k", "wk", name="add"),
            node("Add", "wk positions", embedded, name="positions_of"),
            *layers,
        ]
    )
    return model


def test_an_encoder_with_its_embedding():
    program = compile_to_fit(encoder(6, 8))
    assert program.validate(layers=True).verdict == "pass"
    assert not [f for f in program.check() if f.severity == "error"]


def test_an_encoder_streams_behind_its_embedding():
    """Every token is for itself from its row of the table on, so all layers are computed by line."""
    model = encoder(6, 16)
    chip: dict[str, Any] = {"xbar": 16, "xbars_per_core": 48, "cores": 40}
    found = stages(model, mapping="rows", **chip).decision.layers
    others = [key for key, layer in found.items() if not isinstance(layer, LineUnfolding)]
    assert [key for key in others if key.endswith(".product_output")] == ["pooler.dense.product_output"]
    check(model, tolerance=1e-4, **chip)
