"""Graphs with rows of a table, and their programs: without an ONNX model, so ids are an input of floats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import raptor
from raptor.compiler.pass_driver import Driver
from raptor.frontend.loading import LoadedModel
from raptor.graph.ir import Constant, Graph, Map, Node, Take, Tensor
from raptor.target.tensor_layout import Image
from tests.pipeline import conv_model
from tests.tiny_models import Array, random


@dataclass
class Given(Driver):
    """A driver that takes a graph in place of the one that the model has, and keeps what every pass returns."""

    graph: Graph | None = None
    change: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def run(self, step: Any, verify: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().run(self._loaded if step.__name__ == "load" else step, verify, *args, **kwargs)
        self.results[step.__name__] = result
        return result

    def _loaded(self, *_: Any, **__: Any) -> LoadedModel:
        assert self.graph is not None
        return LoadedModel(self.graph, MODEL.SerializeToString(), "takes", (), {})


MODEL = conv_model((1, 1, 4, 4), 1)


def take_graph(table: Array, ids: Sequence[int], *, axis: int = -1, computed: bool = False) -> Graph:
    """ids [-> + 1] -> rows of the table -> relu. axis: that of the channels of the ids."""
    shape = tuple(ids)
    result = (*shape, table.shape[1])
    given = Tensor("ids", shape, Image(shape, axis % len(shape)))
    rows = Tensor("rows", result, Image(result, len(shape)))
    tensors = {"ids": given, "rows": rows, "y": Tensor("y", result, rows.image)}
    nodes = [
        Node("look", "Gather", Take(table), ("ids",), "rows"),
        Node("relu", "Relu", Map("relu", (0,)), ("rows",), "y"),
    ]
    if computed:
        tensors["next"] = Tensor("next", shape, given.image)
        add = Map("add", (0, Constant(np.ones((1, 1, 1), np.float32))))
        nodes = [
            Node("add", "Add", add, ("ids",), "next"),
            Node("look", "Gather", Take(table), ("next",), "rows"),
            nodes[1],
        ]
    return Graph("takes", tensors, tuple(nodes), ("ids",), ("y", "rows"))


def table(rows: int, channels: int, seed: int = 0) -> Array:
    return random(rows, channels, seed=seed)


def compiled(graph: Graph, **options: Any) -> tuple["raptor.Program", Given]:
    """The program of a graph, and the driver with the result of every pass."""
    driver = Given(graph=graph)
    return raptor.compile(MODEL, driver=driver, **{"xbar": (4, 4), "cores": 8} | options), driver
