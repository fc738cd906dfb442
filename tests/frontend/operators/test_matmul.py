"""Gemm, MatMul and Einsum against onnxruntime, on the graph and in the instruction streams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from raptor.frontend import load
from raptor.graph.ir import Dot, Filter, Move
from raptor.integrations.onnx_backend import RaptorBackend
from tests.pipeline import check
from tests.tiny_models import compare, golden, make_model, node, random

CHIP = {"xbar": 8, "xbars_per_core": 16}


def product(
    op_type: str, a: tuple[int, ...], b: tuple[int, ...], constants: str, rank: int, **attributes
) -> ModelProto:
    """y = op(a, b) with the operands named in `constants` constant."""
    shapes = {"a": a, "b": b}
    inputs = {n: s for n, s in shapes.items() if n not in constants}
    values = {n: random(*s, seed=3) for n, s in shapes.items() if n in constants}
    return make_model([node(op_type, "a b", **attributes)], inputs, {"y": rank}, values)


MATMULS = [
    ((2, 3), (3, 4), 2),
    ((2, 5, 3), (3, 4), 3),
    ((2, 5, 3), (2, 3, 4), 3),
    ((5, 3), (2, 3, 4), 3),
    ((2, 1, 5, 3), (4, 3, 2), 4),
    ((2, 4, 5, 3), (2, 4, 3, 6), 4),
    ((1, 4, 5, 3), (1, 4, 3, 6), 4),
    ((3,), (3, 4), 1),
    ((2, 3), (3,), 1),
    ((3,), (3,), 0),
    ((3,), (2, 3, 4), 2),
    ((2, 5, 3), (3,), 2),
    ((1, 3), (3, 1), 2),
    ((2, 5, 1), (2, 1, 4), 3),
    ((5, 1), (1, 4), 2),
    ((1, 7, 3), (2, 3, 1), 3),
]


@pytest.mark.parametrize("constants", ["", "a", "b"])
@pytest.mark.parametrize(("a", "b", "rank"), MATMULS)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], rank: int, constants: str):
    compare(product("MatMul", a, b, constants, rank))


@pytest.mark.parametrize("constants", ["", "a", "b"])
@pytest.mark.parametrize(
    ("a", "b", "rank"), [((2, 9, 10), (2, 10, 11), 3), ((9, 10), (10, 11), 2), ((2, 9, 10), (10,), 2)]
)
def test_matmul_in_the_streams(a: tuple[int, ...], b: tuple[int, ...], rank: int, constants: str):
    check(product("MatMul", a, b, constants, rank), **CHIP)


@pytest.mark.parametrize("constants", ["a", "b"])
@pytest.mark.parametrize(("a", "b", "rank"), MATMULS[:7])
def test_a_constant_matrix_is_on_crossbars(a: tuple[int, ...], b: tuple[int, ...], rank: int, constants: str):
    operators = [n.operator for n in load(product("MatMul", a, b, constants, rank)).graph.nodes]
    assert sum(isinstance(o, Filter) for o in operators) == 1
    assert not any(isinstance(o, Dot) for o in operators)


def test_tokens_stay_where_they_are_between_products():
    nodes = [
        node("MatMul", "x w", "h"),
        node("Add", "h b", "i"),
        node("Relu", "i", "j"),
        node("MatMul", "j v", name="second"),
    ]
    constants = {"w": random(6, 8), "b": random(8), "v": random(8, 6)}
    model = make_model(nodes, {"x": [2, 5, 6]}, {"y": 3}, constants)
    compare(model)
    moves = [n for n in load(model).graph.nodes if isinstance(n.operator, Move)]
    assert len(moves) == 1, "only the input has its channels elsewhere"


GEMMS = [(ta, tb, c) for ta in (0, 1) for tb in (0, 1) for c in [None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)]]


@pytest.mark.parametrize("constants", ["", "a", "b", "c", "ac", "bc"])
@pytest.mark.parametrize(("trans_a", "trans_b", "c"), GEMMS)
def test_gemm(trans_a: int, trans_b: int, c: tuple[int, ...] | None, constants: str):
    shapes = {"a": (3, 2) if trans_a else (2, 3), "b": (4, 3) if trans_b else (3, 4)} | ({} if c is None else {"c": c})
    gemm = node("Gemm", " ".join(shapes), transA=trans_a, transB=trans_b, alpha=0.75, beta=1.5)
    inputs = {n: s for n, s in shapes.items() if n not in constants}
    compare(make_model([gemm], inputs, {"y": 2}, {n: random(*s) for n, s in shapes.items() if n in constants}))


@pytest.mark.parametrize("constant", ["a", "b"])
def test_gemm_with_one_weight(constant: str):
    """An array of no dimensions times a number is no array."""
    shapes = {"a": (1, 1) if constant == "a" else (3, 1), "b": (1, 1) if constant == "b" else (1, 3), "c": ()}
    values = {constant: random(1, 1), "c": random()}
    inputs = {n: s for n, s in shapes.items() if n not in values}
    compare(make_model([node("Gemm", "a b c", alpha=2.0, beta=0.5)], inputs, {"y": 2}, values))


def test_an_operand_with_factor_zero_is_not_read():
    """0 * infinity would be NaN."""
    nodes = [node("Log", "c", "l"), node("Gemm", "a b l", beta=0.0)]
    model = make_model(nodes, {"a": (2, 3), "c": (4,)}, {"y": 2}, {"b": random(3, 4)})
    a, c = random(2, 3, seed=1), np.zeros(4, np.float32)
    (got,) = RaptorBackend.run_model(model, [a, c])
    np.testing.assert_allclose(got, golden(model, {"a": a, "c": c})["y"], rtol=1e-5)


@pytest.mark.parametrize("constants", ["", "a", "bc"])
def test_gemm_in_the_streams(constants: str):
    shapes = {"a": (10, 9), "b": (11, 10), "c": (11,)}
    gemm = node("Gemm", "a b c", transA=1, transB=1, alpha=0.75, beta=1.5)
    inputs = {n: s for n, s in shapes.items() if n not in constants}
    values = {n: random(*s) for n, s in shapes.items() if n in constants}
    check(make_model([gemm], inputs, {"y": 2}, values), **CHIP)


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
@pytest.mark.parametrize("shape", [(2, 3, 2, 2), (1, 3, 4), (3, 2, 2, 2)])
def test_a_flattened_image_meets_a_kernel_that_covers_it(op_type: str, shape: tuple[int, ...]):
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node(op_type, "f w")]
    compare(make_model(nodes, {"x": shape}, {"y": 2}, {"w": random(int(np.prod(shape[1:])), 5)}))


def einsum(equation: str, shapes: list[tuple[int, ...]], rank: int, constants: str = "") -> ModelProto:
    names = "abcdef"[: len(shapes)]
    inputs = {n: s for n, s in zip(names, shapes, strict=True) if n not in constants}
    values = {n: random(*s, seed=3) for n, s in zip(names, shapes, strict=True) if n in constants}
    return make_model([node("Einsum", " ".join(names), equation=equation)], inputs, {"y": rank}, values)


SIZES = dict(zip("abcdefijklmnxyz", (2, 3, 4, 5, 2, 3, 2, 3, 4, 5, 2, 3, 2, 3, 4), strict=True))
CONTRACTIONS = [
    "ab,bc->ac",
    "ba,cb->ac",
    "ab,bc->ca",
    "acd,dbc->ab",
    "abc,bda->dc",
    "acd,db->abc",
    "aebf,dfce->abcd",
    "abc,cd",
    "ijk,ikl->ijl",
    "ijk,ikl->lji",
    "bij,jk->bik",
    "ab,cd->acbd",
    "ab,ab->ab",
    "ab,ba->ab",
    "abc,b->abc",
    "ab,ab->",
    "ab,ac->a",
    "ab,cd->a",
    "a,b->ab",
    "ab,bc->c",
    "abcd,acbe->bade",
]


@pytest.mark.parametrize("constants", ["", "a", "b"])
@pytest.mark.parametrize("equation", CONTRACTIONS)
def test_einsum_of_two(equation: str, constants: str):
    left, _, right = equation.partition("->")
    shapes = [tuple(SIZES[n] for n in term) for term in left.split(",")]
    compare(einsum(equation, shapes, len(right) if "->" in equation else 3, constants))


@pytest.mark.parametrize("constants", ["", "b"])
@pytest.mark.parametrize("equation", ["acd,dbc->ab", "acd,db->abc", "aebf,dfce->abcd", "ijk,ikl->ijl", "ab,cd->acbd"])
def test_einsum_in_the_streams(equation: str, constants: str):
    shapes = [tuple(SIZES[n] for n in term) for term in equation.partition("->")[0].split(",")]
    check(einsum(equation, shapes, len(equation.partition("->")[2]), constants), **CHIP)


@pytest.mark.parametrize(
    ("equation", "shape", "rank"),
    [
        ("ij->ji", (2, 3), 2),
        ("ijk->ik", (2, 3, 4), 2),
        ("ij->", (2, 3), 0),
        ("ii->i", (3, 3), 1),
        ("iij->j", (3, 3, 2), 1),
        ("ii->", (3, 3), 0),
        ("...ij->...ji", (2, 3, 4), 3),
        ("ba", (2, 3), 2),
        ("ijk->kij", (1, 3, 4), 3),
    ],
)
def test_einsum_of_one(equation: str, shape: tuple[int, ...], rank: int):
    compare(einsum(equation, [shape], rank))


@pytest.mark.parametrize("constants", ["", "a", "b"])
@pytest.mark.parametrize(
    ("equation", "a", "b", "rank"),
    [
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5), 3),
        ("...ij,j...k", (2, 3, 4), (4, 2, 5), 3),
        ("b...,b->...", (2, 3, 4), (2,), 2),
    ],
)
def test_ellipsis(equation: str, a: tuple[int, ...], b: tuple[int, ...], rank: int, constants: str):
    compare(einsum(equation, [a, b], rank, constants))


KRONECKER = ("ai,bj,ck,ijk->abc", [(2, 3), (3, 2), (4, 2), (3, 2, 2)])


@pytest.mark.parametrize("constants", ["", "abc", "b", "d"])
def test_kronecker_products_are_never_written_out(constants: str):
    model = einsum(*KRONECKER, 3, constants)
    compare(model)
    weights = [n.operator.weights.size for n in load(model).graph.nodes if isinstance(n.operator, Filter)]
    assert max(weights, default=0) <= 12


@pytest.mark.parametrize("constants", ["", "bc", "ac"])
@pytest.mark.parametrize("equation", ["ab,bc,cd->ad", "ab,bc,cd->da", "ab,cd,bc->ad"])
def test_einsum_of_three(equation: str, constants: str):
    shapes = [tuple(SIZES[n] for n in term) for term in equation.partition("->")[0].split(",")]
    compare(einsum(equation, shapes, 2, constants))


def test_chains_of_products():
    """2mm, 3mm and tmm of OCC."""
    nodes = [
        node("MatMul", "x w", "p"),
        node("MatMul", "v z", "q", name="second"),
        node("Transpose", "q", "t", perm=[1, 0]),
    ]
    nodes += [node("MatMul", "p t", name="third")]
    model = make_model(nodes, {"x": [3, 4], "z": [6, 5]}, {"y": 2}, {"w": random(4, 5), "v": random(7, 6)})
    graph = compare(model).graph
    assert sum(isinstance(n.operator, Filter) for n in graph.nodes) == 2
    assert sum(isinstance(n.operator, Dot) for n in graph.nodes) == 1
    check(model, **CHIP)


def test_attention():
    """Attention with two heads: products with constants on crossbars, those of computed tensors on the vector unit."""
    nodes = [node("MatMul", f"x w{n}", f"p{n}", name=f"project_{n}") for n in "qkv"]
    nodes += [node("Reshape", f"p{n} s", f"h{n}", name=f"split_{n}") for n in "qkv"]
    nodes += [
        node("Transpose", "hq", "q", perm=[0, 2, 1, 3], name="turn_q"),
        node("Transpose", "hk", "k", perm=[0, 2, 3, 1], name="turn_k"),
        node("Transpose", "hv", "v", perm=[0, 2, 1, 3], name="turn_v"),
        node("MatMul", "q k", "scores", name="scores"),
        node("Mul", "scores c", "scaled"),
        node("Softmax", "scaled", "weights"),
        node("MatMul", "weights v", "mixed", name="mix"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3], name="turn_back"),
        node("Reshape", "back t", "merged", name="merge"),
        node("MatMul", "merged wo", "o", name="out"),
        node("Add", "o x"),
    ]
    constants = {f"w{n}": random(10, 10, seed=i) for i, n in enumerate("qkvo")}
    constants |= {"s": np.array([1, 6, 2, 5]), "t": np.array([1, 6, 10]), "c": np.float32(5**-0.5)}
    model = make_model(nodes, {"x": [1, 6, 10]}, {"y": 3}, constants)
    graph = compare(model).graph
    assert sum(isinstance(n.operator, Filter) for n in graph.nodes) == 4
    assert sum(isinstance(n.operator, Dot) for n in graph.nodes) == 2
    check(model, xbar=8, xbars_per_core=16, tolerance=2e-5)


@given(st.data())
def test_any_einsum(data: st.DataObject):
    """Random equations of up to three operands, dimensions of 1 and constants among them."""
    sizes = {n: data.draw(st.integers(1, 3), n) for n in "abcde"}
    name = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map("".join)
    terms = data.draw(st.lists(name, min_size=1, max_size=3), "operands")
    used = sorted(set("".join(terms)))
    out = "".join(data.draw(st.lists(st.sampled_from(used), unique=True), "result"))
    computed = data.draw(st.integers(0, len(terms) - 1), "computed")
    constants = "".join(
        n for i, n in enumerate("abc"[: len(terms)]) if i != computed and data.draw(st.booleans(), f"{n} is constant")
    )
    shapes = [tuple(sizes[n] for n in term) for term in terms]
    compare(einsum(f"{','.join(terms)}->{out}", shapes, len(out), constants), tolerance=5e-5)
