"""Matrix products."""

from typing import Any

from tests.all_graphs.builder import Builder, Shape, step


@step("product", 3)
def gemm(b: Builder) -> None:
    x = b.tensor(2)
    outs = b.number(1, 12)
    trans_a, trans_b = b.number(0, 1), b.number(0, 1)
    rows, inner = b.shape(x)[::-1] if trans_a else b.shape(x)
    shape = (outs, inner) if trans_b else (inner, outs)
    y = b.computed(shape) if b.chance(3) else b.constant(*shape, fan_in=inner)
    attributes: dict[str, Any] = {"transA": trans_a, "transB": trans_b}
    if b.chance(4):
        # The constant on the left.
        x, y = b.constant(*((inner, outs) if trans_a else (outs, inner)), fan_in=inner), x
        shape = b.shape(y)
        attributes["transB"] = int(not trans_a)
        rows, outs = outs, rows
    if b.chance(3):
        attributes["alpha"] = b.pick([0.5, 2.0, -1.5])
    if b.chance(3):
        attributes["beta"] = b.pick([0.5, 2.0, -1.5, 0.0])
    inputs = [x, y]
    if b.opset < 11 or b.chance():
        inputs.append(b.operand(b.pick([(rows, outs), (outs,), (1, outs), (rows, 1), (1,), (), (1, 1)])))
    b.emit("Gemm", inputs, **attributes)


@step("product", 4)
def matmul(b: Builder) -> None:
    x = b.tensor(1, 2, 2, 3, 3, 4)
    shape = b.shape(x)
    on_the_left = len(shape) > 1 and b.chance(3)
    inner = shape[-2] if on_the_left else shape[-1]
    free = b.number(1, 8)
    matrix = (free, inner) if on_the_left else (inner, free)
    batch = b.broadcast(shape[:-2])
    if b.chance(5):
        batch = (2, *(1 for _ in shape[:-2])) if len(shape) < 4 else batch
    other: Shape = (inner,) if b.chance(6) else (*(batch if b.chance() else ()), *matrix)
    y = b.computed(other) if b.chance() else b.constant(*other, fan_in=inner)
    b.emit("MatMul", [y, x] if on_the_left else [x, y])


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "bij,bjk->bik", "bij,jk->bik", "acd,db->abc", "acd,dbc->ab", "aebf,dfce->abcd",
    "ab,bc,cd->ad", "ij,kl->ikjl", "i,j->ij", "ij,ij->ij", "ij,ij->", "ij->ji", "ii->i", "ij->i", "ij->", "iij->j",
    "...ij,...jk->...ik", "...ij->...ji", "bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "ijk,k->ij", "ijk,jil->kl",
    "ab,cad->cdb", "ij,j,i->", "i,i->", "bi,bj->bij", "abc,bd,ce->ade",
)  # fmt: skip


@step("product", 3)
def einsum(b: Builder) -> None:
    b.need(b.opset >= 12)
    equation = b.pick(EQUATIONS)
    sizes = {letter: b.number(1, 5) for letter in dict.fromkeys(filter(str.isalpha, equation))}
    hidden = tuple(b.number(1, 3) for _ in range(b.number(0, 2)))
    terms = equation.split("->")[0].split(",")
    shapes = [
        (hidden if "..." in term else ()) + tuple(sizes[letter] for letter in term if letter.isalpha())
        for term in terms
    ]
    fixed = b.number(0, len(terms) - 1)
    operands = [b.computed(shape) if i == fixed else b.operand(shape) for i, shape in enumerate(shapes)]
    b.emit("Einsum", operands, equation=equation)
