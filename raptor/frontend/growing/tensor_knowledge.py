"""Kinds of tensors of a decoder: constants, those that the position of the step determines, and data."""

from collections.abc import Collection
from typing import Literal

from onnx import ModelProto

from raptor.frontend.proto.read_model import find_reads

Knowledge = Literal["constant", "position", "data"]


def classify_tensors(proto: ModelProto, inputs: Collection[str], derived: Collection[str]) -> dict[str, Knowledge]:
    """Returns what determines each tensor of a model. `derived`: the `inputs` that the position determines."""
    known: dict[str, Knowledge] = {t.name: "constant" for t in proto.graph.initializer}
    known |= {name: "position" if name in derived else "data" for name in inputs}
    for node in proto.graph.node:
        found = {known.get(name, "constant") for name in find_reads(node)}
        if node.op_type in ("Shape", "Size"):
            kind: Knowledge = "constant" if found <= {"constant"} else "position"
        else:
            kind = "data" if "data" in found else "position" if "position" in found else "constant"
        known |= {o: kind for o in node.output if o}
    return known
