"""Reference tensors: onnxruntime with every graph optimisation off, on one thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.layout import Floats
from validator import standard
from validator.constants import constant_inputs
from validator.program import Program
from validator.session import ALL_DTYPES, read, session


@dataclass(frozen=True, slots=True)
class Golden:
    """An onnxruntime session for OUT/model.onnx. `layers`: the intermediate tensors that it can return.

    `constants`: inputs that became constants when the model was compiled. `by_suite`: nodes that are computed as in
    ONNX's own suite, because onnxruntime deviates from it (`validator.standard`).
    """

    session: Any
    layers: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[Any]]
    by_suite: tuple[str, ...]

    def input_dtype(self, name: str) -> "np.dtype[Any]":
        """Returns the element type that the model expects for an input."""
        return ALL_DTYPES[next(i.type for i in self.session.get_inputs() if i.name == name)]

    def run(self, inputs: Mapping[str, Floats], names: Sequence[str]) -> dict[str, Floats]:
        """Returns the tensors `names` (outputs or `layers`) as float32; inputs are cast to the model's types."""
        feed = {name: array.astype(self.input_dtype(name)) for name, array in inputs.items()} | dict(self.constants)
        try:
            values = cast(list[npt.NDArray[Any]], self.session.run(list(names), feed))
        except Exception as e:  # onnxruntime's exceptions have no common base
            raise UserError(f"onnxruntime: {e}") from e
        return {name: np.asarray(value, np.float32) for name, value in zip(names, values, strict=True)}


def load_golden(program: Program, *, layers: bool = False) -> Golden:
    """Opens the model in the output directory; with `layers`, its intermediate tensors become outputs as well.

    Raises `UserError` for a model that onnxruntime refuses, or that does not match memory.json.
    """
    if files.MODEL not in program.manifest.files:
        raise UserError(f"{files.MANIFEST}: {files.MODEL} is not in the list of files")
    path = program.folder / files.MODEL
    names = [probe.tensor for probe in program.layers.probes] if layers and program.layers else []
    shapes = {place.name: place.shape for place in program.memory.inputs}
    if names or standard.may_depart(path):
        model, shown, added, by_suite = _prepared(path, names, shapes)
    else:
        model, shown, added, by_suite = str(path), (), (), ()
    opened = _of_any_size(model, path)
    constants = constant_inputs(program.manifest.options, opened.get_inputs())
    golden = Golden(opened, shown, constants, by_suite)
    _check(golden, program, path, added)
    return golden


def check_shapes(program: Program, values: Mapping[str, Floats]) -> None:
    """Raises `UserError` if tensors of the model differ in size from the program's."""
    for place in program.memory.outputs:
        if values[place.name].shape != place.shape:
            shapes = f"{list(values[place.name].shape)}, {files.MEMORY} says {list(place.shape)}"
            raise UserError(f"{files.MODEL}: output {place.name!r} has shape {shapes}")
    for probe in program.layers.probes if program.layers else ():
        if probe.tensor in values and values[probe.tensor].size != probe.image.elements:
            sizes = f"{values[probe.tensor].size} elements, {files.LAYERS} says {probe.image.elements}"
            raise UserError(f"{files.MODEL}: tensor {probe.tensor!r} has {sizes}")


def _of_any_size(model: str | bytes, path: Path) -> Any:
    """Opens a session. A size of 0 in the shape of an input stands for any size."""
    opened = session(model, path)
    zero = {i.name for i in opened.get_inputs() if 0 in i.shape}
    if not zero:
        return opened
    proto = read(path) if isinstance(model, str) else _parse(model)
    for dim in (d for v in proto.graph.input if v.name in zero for d in v.type.tensor_type.shape.dim):
        if dim.dim_value == 0:
            dim.Clear()
    return session(proto.SerializeToString(), path)


def _prepared(
    path: Path, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> tuple[bytes, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the model with the tensors `names` as outputs.

    Also returns the tensors of `names` that it computes, the ones that were not outputs before, and the nodes that are
    rewritten as in ONNX's own suite.
    """
    import onnx

    model = read(path)
    try:
        by_suite = standard.follow_suite(model, shapes)
    except Exception as e:  # exceptions of protobuf and onnx have no common base
        raise UserError(f"{path}: not an ONNX model: {e}") from e
    computed = {name for node in model.graph.node for name in node.output if name}
    shown = tuple(name for name in names if name in computed)
    present = {output.name for output in model.graph.output}
    added = tuple(name for name in shown if name not in present)
    # onnxruntime infers the type of an output that has only a name.
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
    return model.SerializeToString(), shown, added, by_suite


def _parse(content: bytes) -> Any:
    import onnx

    return onnx.ModelProto.FromString(content)


def _check(golden: Golden, program: Program, path: Path, added: Sequence[str]) -> None:
    """Raises `UserError` unless the model has the program's inputs and, besides `added`, its outputs."""
    given = {i.name: i for i in golden.session.get_inputs()}
    for place in program.memory.inputs:
        if place.name not in given:
            raise UserError(f"{path}: has no input {place.name!r}, which {files.MEMORY} names")
        if given[place.name].type not in ALL_DTYPES:
            raise UserError(f"{path}: input {place.name!r} is a {given[place.name].type}, expected numbers")
    extra = sorted(given.keys() - {place.name for place in program.memory.inputs} - golden.constants.keys())
    if extra:
        raise UserError(f"{path}: input {extra[0]!r} is not in {files.MEMORY}")
    made = {o.name for o in golden.session.get_outputs()}
    for place in program.memory.outputs:
        if place.name not in made:
            raise UserError(f"{path}: has no output {place.name!r}, which {files.MEMORY} names")
    extra = sorted(made - {place.name for place in program.memory.outputs} - set(added))
    if extra:
        raise UserError(f"{path}: output {extra[0]!r} is not in {files.MEMORY}")
