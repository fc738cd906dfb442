"""Random indices lie in the tables that they choose from, so that there is always a judgement (trial, A14)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

import raptor
from tests.tiny_models import Array, make_model, node, random
from validator.judge.sample_runs import SampleRuns
from validator.model.index_bounds import IndexBounds, find_index_bounds
from validator.validate import validate

ROWS = 30
TABLES = {"t": random(ROWS, 8, seed=1), "w": random(8, 4, seed=2)}
PRODUCT = node("MatMul", "e w", "y", name="product")
LOOK_UP = node("Gather", "t i", "e", name="look up")


def chooser(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, Any] | None = None,
    *,
    kind: int = TensorProto.INT64,
    shape: Sequence[int] = (5,),
) -> ModelProto:
    """ids -> nodes -> e -> a product -> y."""
    made = {name: np.asarray(value) for name, value in (constants or {}).items()}
    model = make_model([*nodes, PRODUCT], {"f": [1]}, {"y": len(shape) + 1}, {**TABLES, **made})
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", kind, shape))
    return model


def branches() -> NodeProto:
    """An If whose branches both choose."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [5, 8]) for n in ("a", "b")]
    graphs = [
        helper.make_graph([node("Gather", f"{t} ids", v.name, name=t)], t, [], [v])
        for t, v in zip(("t", "short"), values, strict=True)
    ]
    return helper.make_node("If", ["c"], ["e"], "choice", then_branch=graphs[0], else_branch=graphs[1])


CASES: dict[str, tuple[ModelProto, IndexBounds]] = {
    "directly": (chooser([node("Gather", "t ids", "e")]), IndexBounds(0, 29)),
    "of 32 bits": (chooser([node("Cast", "ids", "i", to=7), LOOK_UP], kind=TensorProto.INT32), IndexBounds(0, 29)),
    "a float": (chooser([node("Cast", "ids", "i", to=7), LOOK_UP], kind=TensorProto.FLOAT), IndexBounds(0, 29)),
    "reshaped": (chooser([node("Reshape", "ids s", "i"), LOOK_UP], {"s": [5]}), IndexBounds(0, 29)),
    "beside others": (chooser([node("Concat", "ids k", "i", axis=0), LOOK_UP], {"k": [0, 1]}), IndexBounds(0, 29)),
    "moved up": (chooser([node("Add", "ids k", "i"), LOOK_UP], {"k": [20]}), IndexBounds(-20, 9)),
    "moved by several": (chooser([node("Add", "k ids", "i"), LOOK_UP], {"k": [0, 5, 10, 15, 20]}), IndexBounds(0, 9)),
    "moved down": (chooser([node("Sub", "ids k", "i"), LOOK_UP], {"k": [100]}), IndexBounds(100, 129)),
    "from the end": (chooser([node("Sub", "k ids", "i"), LOOK_UP], {"k": [29]}), IndexBounds(0, 29)),
    "scaled": (chooser([node("Mul", "ids k", "i"), LOOK_UP], {"k": [3]}), IndexBounds(0, 9)),
    "divided": (chooser([node("Div", "ids k", "i"), LOOK_UP], {"k": [4]}), IndexBounds(0, 116)),
    "negated": (chooser([node("Neg", "ids", "i"), LOOK_UP]), IndexBounds(-29, 0)),
    "clipped": (chooser([node("Clip", "ids lo hi", "i"), LOOK_UP], {"lo": 0, "hi": 29}), IndexBounds(0, 29)),
    "padded": (
        chooser([node("Equal", "ids p", "m"), node("Where", "m z ids", "i"), LOOK_UP], {"p": -1, "z": 0}),
        IndexBounds(0, 29),
    ),
    "two tables": (
        chooser(
            [
                node("Gather", "t ids", "a", name="a"),
                node("Gather", "short ids", "b", name="b"),
                node("Add", "a b", "e"),
            ],
            {"short": random(12, 8)},
        ),
        IndexBounds(0, 11),
    ),
    "of elements": (
        chooser([node("GatherElements", "wide ids", "e", axis=0)], {"wide": random(9, 8)}, shape=(5, 8)),
        IndexBounds(0, 8),
    ),
    "classes": (
        chooser(
            [node("OneHot", "ids d v", "o"), node("MatMul", "o t", "e", name="m")], {"d": 30, "v": np.float32([0, 1])}
        ),
        IndexBounds(0, 29),
    ),
    "a computed table": (
        chooser([node("Mul", "t two", "t2"), node("Gather", "t2 ids", "e")], {"two": np.float32(2)}),
        IndexBounds(0, 29),
    ),
    "one id": (
        chooser([node("Gather", "t ids", "o"), node("Unsqueeze", "o s", "e")], {"s": [0]}, shape=()),
        IndexBounds(0, 29),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds(name: str):
    model, wanted = CASES[name]
    assert find_index_bounds(model) == {"ids": wanted}


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_there_is_a_judgement(name: str, host: bool, tmp_path: Path):
    model = ModelProto.FromString(CASES[name][0].SerializeToString())
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(node("Relu", "before", "y", name="last"))
    options = {"host_nodes": ("last",)} if host else {}
    raptor.compile(model, xbar=32, cores=4, **options).save(tmp_path / "out")
    assert validate(tmp_path / "out", samples=3).passed


def test_both_branches_bound():
    model = chooser([branches()], {"short": random(12, 8), "c": np.array(True)})
    assert find_index_bounds(model) == {"ids": IndexBounds(0, 11)}


def test_all_rows_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = set[int]()
    made = SampleRuns.inputs

    def inputs(self: SampleRuns, number: int) -> dict[str, Array]:
        found = made(self, number)
        seen.update(found["ids"].astype(int).ravel().tolist())
        return found

    monkeypatch.setattr(SampleRuns, "inputs", inputs)
    raptor.compile(CASES["beside others"][0], xbar=32, cores=4).save(tmp_path / "out")
    assert validate(tmp_path / "out", samples=60).passed
    assert seen == set(range(ROWS))


def test_where_no_bound_is_found_smaller_numbers_are_tried(tmp_path: Path):
    """The last two of 32 remainders are no rows, and no rule finds that."""
    model = chooser([node("BitwiseAnd", "ids k", "i"), LOOK_UP], {"k": [31]})
    model.opset_import[0].version = 18
    assert find_index_bounds(model) == {}
    raptor.compile(model, xbar=32, cores=4, host=True).save(tmp_path / "out")
    assert validate(tmp_path / "out", samples=9).passed
