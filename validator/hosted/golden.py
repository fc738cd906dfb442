"""The whole model in onnxruntime, with the tensors at borders, and inputs for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import Crossing
from validator import standard
from validator.coding import holds_floats, value_range
from validator.constants import constant_inputs
from validator.hosted.load import Hosted
from validator.hosted.run import check_inputs
from validator.hosted.values import dtype_of, fits
from validator.inputs import Given, given_for, read_files
from validator.session import read, session

_ROWS = 2
"""Range of random integers where the model does not tell it: 0 and 1 are right for most ids, lengths and flags."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeModel:
    """A session of OUT/model.onnx. `names`: the outputs, and the tensors at borders that it computes.

    `constants`: inputs that became constants when the model was compiled. `bounds`: values of inputs of integers.
    """

    path: Path
    session: Any
    names: tuple[str, ...]
    constants: Mapping[str, Any]
    bounds: Mapping[str, int]
    by_suite: tuple[str, ...]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tensors `names`, in the types of the model."""
        try:
            values = self.session.run(list(self.names), {**inputs, **self.constants})
        except Exception as e:  # onnxruntime's exceptions have no common base
            raise UserError(f"{self.path}: onnxruntime: {e}") from e
        return dict(zip(self.names, values, strict=True))


def load_whole(hosted: Hosted) -> WholeModel:
    """Opens the original model. Raises `UserError` if it does not go with `segments.json`."""
    path, listed = hosted.folder / files.MODEL, hosted.listed
    model = read(path)
    by_suite = _follow_suite(model, hosted)
    computed = {o for node in model.graph.node for o in node.output if o}
    outputs = {v.name for v in model.graph.output}
    missing = sorted({o.name for o in listed.outputs} ^ outputs)
    if missing:
        raise UserError(f"{path}: output {missing[0]!r} is not in both, the model and {files.SEGMENTS}")
    made = dict.fromkeys(name for segment in listed.segments for name in segment.makes)
    added = [name for name in made if name in computed and name not in outputs]
    # onnxruntime infers the type of an output that has only a name.
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    opened = session(model.SerializeToString(), path)
    constants = constant_inputs(listed.options, opened.get_inputs())
    names = tuple(dict.fromkeys([*(o.name for o in listed.outputs), *added]))
    return WholeModel(path, opened, names, constants, _bounds(model, hosted), by_suite)


def _follow_suite(model: ModelProto, hosted: Hosted) -> tuple[str, ...]:
    """Rewrites nodes of the chip in which onnxruntime deviates from ONNX's own suite; those of the host are its own."""
    if not hosted.programs or not standard.may_depart(hosted.folder / files.MODEL):
        return ()
    shapes = {c.name: [size or 1 for size in c.shape] for c in hosted.listed.inputs}
    on_host = {n.node for n in hosted.listed.host_nodes}
    try:
        return standard.follow_suite(model, shapes, on_host)
    except Exception as e:  # protobuf's and onnx's have no common base
        raise UserError(f"{hosted.folder / files.MODEL}: not an ONNX model: {e}") from e


def _bounds(model: ModelProto, hosted: Hosted) -> dict[str, int]:
    """Returns by input how many values are right: rows of the table that it chooses from, what the chip takes."""
    places = [p for program in hosted.programs.values() for p in program.memory.inputs]
    taken = {p.name: value_range(p.coding)[1] + 1 for p in places if p.coding and not holds_floats(p.coding)}
    chosen = _rows(model)
    return {name: min(taken.get(name, 2**31), chosen.get(name, 2**31)) for name in taken.keys() | chosen.keys()}


def _rows(model: ModelProto) -> dict[str, int]:
    """Returns the number of rows of the smallest table from which an input chooses, by input."""
    sizes: dict[str, list[int]] = {t.name: list(t.dims) for t in model.graph.initializer}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Gather" and sizes.get(node.input[0]):
            axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 0)
            size = sizes[node.input[0]][axis]
            rows[node.input[1]] = min(size, rows.get(node.input[1], size))
    return rows


def inputs_for(hosted: Hosted, whole: WholeModel, given: Given, number: int) -> dict[str, Any]:
    """Returns the inputs of one sample, in the types of the model: given ones, or random ones from the seed `number`.

    Floats are standard normal numbers; integers are those that the chip takes, rows of the table that they choose from,
    else 0 or 1.
    """
    found, tensors = given_for(given, number), hosted.listed.inputs
    if isinstance(found, Mapping):
        return check_inputs(hosted, found)
    if found:
        return check_inputs(hosted, read_files(tensors, found))
    rng = np.random.default_rng(number)
    return check_inputs(hosted, {tensor.name: _random(tensor, whole, rng) for tensor in tensors})


def _random(tensor: Crossing, whole: WholeModel, rng: np.random.Generator) -> Any:
    dtype, shape = dtype_of(tensor.type), [size for size in tensor.shape if size is not None]
    if dtype is None or dtype.kind == "O" or not fits(shape, tensor.shape):
        raise UserError(f"input {tensor.name!r} is {tensor.type}: random values are not possible; give it with --input")
    if dtype.kind in "iu":
        return rng.integers(0, whole.bounds.get(tensor.name, _ROWS), shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
