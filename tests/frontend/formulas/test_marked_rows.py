"""Rows that computed indices select or add up, compared with onnxruntime, also where elements are infinite."""

import numpy as np
import pytest
from onnx import ModelProto, parser

import raptor
from raptor.frontend import load
from raptor.graph.ir import Dot

MODELS = {
    "rows": "(float[6,5] x, int64[4] i) => (float[4,5] y) {a=Neg(x) y=Gather<axis=0>(a,i)}",
    "columns, by a table": "(float[2,6,3] x, int64[4,2] i) => (float[2,4,2,3] y) {a=Neg(x) y=Gather<axis=1>(a,i)}",
    "numbers": "(float[6] x, int64[4] i) => (float[4] y) {a=Neg(x) y=Gather<axis=0>(a,i)}",
    "one row": "(float[6,5] x, int64 i) => (float[5] y) {a=Neg(x) y=Gather<axis=0>(a,i)}",
    "tuples of one": "(float[6,5] x, int64[4,1] i) => (float[4,5] y) {a=Neg(x) y=GatherND(a,i)}",
    "places": "(float[4,6,5] x, int64[7,2] i) => (float[7,5] y) {a=Neg(x) y=GatherND(a,i)}",
    "elements": "(float[5,6] x, int64[3,2,2] i) => (float[3,2] y) {a=Neg(x) y=GatherND(a,i)}",
    "places of a batch": """(float[2,4,6,5] x, int64[2,3,2] i) => (float[2,3,5] y) {
        a=Neg(x) y=GatherND<batch_dims=1>(a,i)}""",
    "one place of a table": """(int64[2,1] i) => (float[2] y) <float[2,3] t={1,2,3,4,5,6}> {
        y=GatherND<batch_dims=1>(t,i)}""",
    "a token of each sentence": """(float[2,6,5] x, int64[2,1] i) => (float[2,5] y) <int64[2,1] b={0,1}> {
        a=Neg(x) p=Concat<axis=1>(b,i) y=GatherND(a,p)}""",
    "repeated indices": """(float[6,5] x, int64[8] i) => (float[8,5] y) <int64[1] last={1}, int64[2] shape={8,5}> {
        a=Neg(x) r=Unsqueeze(i,last) e=Expand(r,shape) y=GatherElements<axis=0>(a,e)}""",
    "added rows": """(float[6,5] x, float[70,5] u, int64[70] i) => (float[6,5] y)
        <int64[1] last={1}, int64[2] shape={70,5}> {
        r=Unsqueeze(i,last) e=Expand(r,shape) y=ScatterElements<axis=0,reduction="add">(x,e,u)}""",
    "added to zeros": """(float[70,5] u, int64[70] i) => (float[6,5] y)
        <int64[1] last={1}, int64[2] shape={70,5}, int64[2] all={6,5}> {
        z=ConstantOfShape(all) r=Unsqueeze(i,last) e=Expand(r,shape)
        y=ScatterElements<axis=0,reduction="add">(z,e,u)}""",
    "added columns": """(float[2,6,3] x, float[2,8,3] u, int64[8] i) => (float[2,6,3] y)
        <int64[2] others={0,2}, int64[3] shape={2,8,3}> {
        r=Unsqueeze(i,others) e=Expand(r,shape) y=ScatterElements<axis=1,reduction="add">(x,e,u)}""",
    "added by tuples": """(float[6,5] x, float[70,5] u, int64[70,1] i) => (float[6,5] y) {
        y=ScatterND<reduction="add">(x,i,u)}""",
    "added numbers": """(float[6] x, float[70] u, int64[70] i) => (float[6] y) {
        y=ScatterElements<axis=0,reduction="add">(x,i,u)}""",
}

MOST = {"places": 4, "elements": 5, "places of a batch": 4, "one place of a table": 3}
"""Number of places along the shortest axis, where it is not 6."""


def model(text: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> one {text}')


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_selected_or_added(name: str) -> None:
    proto = model(MODELS[name])
    adds = any(isinstance(node.operator, Dot) for node in load(proto).graph.nodes)
    assert adds == name.startswith("added")
    program, rng = raptor.compile(proto, cores=8), np.random.default_rng(0)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    for infinite in (False, True):
        given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items() if n != "i"}
        for values in given.values() if infinite else ():
            values.reshape(-1)[:2] = np.inf, 1e38
        most = MOST.get(name, 6)
        verdict = program.validate({**given, "i": rng.integers(-most, most, shapes["i"])})
        assert verdict.passed, verdict.outputs


@pytest.mark.parametrize("index", [6, -7, 2])
def test_a_row_that_does_not_exist_is_not_a_number(index: int) -> None:
    text = "(float[6,5] x, float[2] z) => (float[2,5] y) {a=Neg(x) i=Cast<to=7>(z) y=Gather<axis=0>(a,i)}"
    program, x = raptor.compile(model(text), cores=8), np.arange(30, dtype=np.float32).reshape(6, 5)
    found = program.run({"x": x, "z": np.array([1, index], np.float32)})["y"]
    assert np.array_equal(found[0], -x[1])
    assert np.array_equal(found[1], -x[2]) if index == 2 else np.isnan(found[1]).all()


def test_a_place_that_does_not_exist_is_not_a_number() -> None:
    text = "(float[2,6,5] x, float[4,2] z) => (float[4,5] y) {a=Neg(x) i=Cast<to=7>(z) y=GatherND(a,i)}"
    program, x = raptor.compile(model(text), cores=8), np.arange(60, dtype=np.float32).reshape(2, 6, 5)
    found = program.run({"x": x, "z": np.array([[1, 5], [0, 6], [2, -6], [-2, -1]], np.float32)})["y"]
    assert np.array_equal(found[[0, 3]], -x[[1, 0], 5])
    assert np.isnan(found[[1, 2]]).all()


def test_indices_that_differ_in_a_row_are_compared_one_by_one() -> None:
    text = """(float[6,2] x, int64[4] i, int64[4] j) => (float[4,2] y) <int64[1] last={1}> {
        a=Neg(x) k=Unsqueeze(i,last) l=Unsqueeze(j,last) e=Concat<axis=1>(k,l) y=GatherElements<axis=0>(a,e)}"""
    program = raptor.compile(model(text), cores=8)
    rng = np.random.default_rng(0)
    given = {
        "x": rng.standard_normal((6, 2)).astype(np.float32),
        "i": np.array([0, 1, 2, 3]),
        "j": np.array([0, 5, 4, 3]),
    }
    assert program.validate(given).passed


def test_indices_of_some_columns_are_compared_one_by_one() -> None:
    text = """(float[6,5] x, int64[4] i) => (float[4,3] y) <int64[1] last={1}, int64[2] shape={4,3}> {
        a=Neg(x) r=Unsqueeze(i,last) e=Expand(r,shape) y=GatherElements<axis=0>(a,e)}"""
    given = {"x": np.arange(30, dtype=np.float32).reshape(6, 5), "i": np.array([4, -1, 0, 2])}
    assert raptor.compile(model(text), cores=8).validate(given).passed


def test_many_marks_are_refused() -> None:
    text = "(float[4096,2] x, int64[2048] i) => (float[2048,2] y) {a=Neg(x) y=Gather<axis=0>(a,i)}"
    with pytest.raises(raptor.UnsupportedError, match="2048 computed indices of 4096 rows; their product is at most"):
        load(model(text))
