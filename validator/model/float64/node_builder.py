"""Builds the elementary nodes of an operator that is computed in steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper


@dataclass(slots=True)
class NodeBuilder:
    """Nodes in their order. Methods add one, and return the name of its result, which begins with `stem`."""

    stem: str = field(default="_", kw_only=True)
    nodes: list[NodeProto] = field(default_factory=list[NodeProto], kw_only=True)

    def add(self, op: str, *reads: str, name: str = "", attributes: Mapping[str, Any] | None = None) -> str:
        name = name or f"{self.stem}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, reads, [name], **(attributes or {})))
        return name

    def constant(self, value: npt.ArrayLike) -> str:
        return self.add("Constant", attributes={"value": numpy_helper.from_array(np.asarray(value))})

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))
