"""Runs a decoder in onnxruntime at each position, to find shapes, and values that the position alone determines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto

from raptor.common.errors import UserError
from raptor.frontend.growing.decoder_inputs import DecoderInputs
from raptor.frontend.proto.model_checks import extract_fault
from raptor.frontend.proto.onnx_wrappers import run_model
from raptor.frontend.proto.read_model import copy_header, find_reads

Array = npt.NDArray[Any]


def measure_shapes(
    proto: ModelProto, inputs: DecoderInputs, positions: Sequence[int]
) -> list[dict[str, tuple[int, ...]]]:
    """Returns the shapes of all tensors at some positions. Raises `UserError` if onnxruntime cannot run the model."""
    names = [name for node in proto.graph.node for name in node.output if name]
    found = _run(proto, names, inputs, positions)
    weights = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    given = [{name: array.shape for name, array in inputs.values(position).items()} for position in positions]
    return [
        {**weights, **start, **{n: np.shape(a) for n, a in f.items()}} for start, f in zip(given, found, strict=True)
    ]


def compute_by_position(
    proto: ModelProto, names: Sequence[str], inputs: DecoderInputs, capacity: int
) -> dict[str, list[Array]]:
    """Returns the values of tensors that the position determines, at all positions below `capacity`."""
    found = _run(proto, names, inputs, range(capacity)) if names else []
    return {name: [np.asarray(values[name]) for values in found] for name in names}


def _run(
    proto: ModelProto, names: Sequence[str], inputs: DecoderInputs, positions: Sequence[int]
) -> list[Mapping[str, Any]]:
    """Runs the part of a model that computes the tensors `names`, once for each position."""
    part = copy_header(proto)
    kept = _ancestors(proto, names)
    nodes = [node for node in proto.graph.node if kept.intersection(node.output)]
    read = {name for node in nodes for name in find_reads(node)}
    part.graph.node.extend(nodes)
    part.graph.input.extend(_named(proto.graph.input, read))
    part.graph.initializer.extend(_named(proto.graph.initializer, read))
    part.graph.output.extend(ValueInfoProto(name=name) for name in names)
    given = {v.name for v in part.graph.input} - {t.name for t in part.graph.initializer}
    begun: list[int] = []

    def feed(position: int) -> Mapping[str, Any]:
        begun.append(position)
        return inputs.values(position, given)

    try:
        return run_model(part, map(feed, positions))
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        where = f"the step at position {begun[-1]}" if begun else "a step"
        raise UserError(f"onnxruntime cannot run {where}: {extract_fault(error)}") from None


def _ancestors(proto: ModelProto, names: Sequence[str]) -> set[str]:
    wanted = set(names)
    for node in reversed(proto.graph.node):
        if wanted.intersection(node.output):
            wanted.update(find_reads(node))
    return wanted


def _named(values: Any, names: set[str]) -> list[Any]:
    return [value for value in values if value.name in names]
