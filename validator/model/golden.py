"""Reference tensors: onnxruntime with every graph optimisation off, on one thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.tensor_layout import Floats
from validator.model import onnx_resize
from validator.model.constant_inputs import read_constant_inputs
from validator.model.ort_session import add_outputs, create_session, read_model, run
from validator.model.types import number_type
from validator.program.program import LoadedProgram


@dataclass(frozen=True, slots=True)
class GoldenModel:
    """An onnxruntime session for OUT/model.onnx. `layers`: the intermediate tensors that it can return.

    `constants`: inputs that became constants when the model was compiled. `by_suite`: nodes that are computed as in
    ONNX's own suite, because onnxruntime deviates from it (`validator.model.onnx_resize`).
    """

    session: Any
    layers: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[Any]]
    suite_nodes: tuple[str, ...]

    def input_dtype(self, name: str) -> "np.dtype[Any]":
        """Returns the element type that the model expects for an input."""
        dtype = number_type(next(i.type for i in self.session.get_inputs() if i.name == name))
        assert dtype is not None, "checked by `load_golden_model`"
        return dtype

    def run(self, inputs: Mapping[str, Floats], names: Sequence[str]) -> dict[str, Floats]:
        """Returns the tensors `names` (outputs or `layers`) as float32; inputs are cast to the model's types."""
        feed = {name: array.astype(self.input_dtype(name)) for name, array in inputs.items()} | dict(self.constants)
        found = run(self.session, names, feed, "onnxruntime: ")
        return {name: np.asarray(value, np.float32) for name, value in found.items()}


def load_golden_model(program: LoadedProgram, *, layers: bool = False) -> GoldenModel:
    """Opens the model in the output directory; with `layers`, its intermediate tensors become outputs as well.

    Raises `UserError` for a model that onnxruntime refuses, or that does not match memory.json.
    """
    path = program.model
    names = [probe.tensor for probe in program.layers.probes] if layers and program.layers else []
    shapes = {place.name: place.shape for place in program.memory.inputs}
    if names or onnx_resize.may_need_rewrite(path):
        model, shown, added, by_suite = _prepared(path, names, shapes)
    else:
        model, shown, added, by_suite = str(path), (), (), ()
    opened = _of_any_size(model, path)
    constants = read_constant_inputs(program.manifest.options, opened.get_inputs())
    golden = GoldenModel(opened, shown, constants, by_suite)
    _check(golden, program, path, added)
    return golden


def check_shapes(program: LoadedProgram, values: Mapping[str, Floats]) -> None:
    """Raises `UserError` if tensors of the model differ in size from the program's."""
    for place in program.outputs:
        if values[place.name].shape != place.shape:
            shapes = f"{list(values[place.name].shape)}, {files.MEMORY} says {list(place.shape)}"
            raise UserError(f"{files.MODEL}: output {place.name!r} has shape {shapes}")
    for probe in program.layers.probes if program.layers else ():
        if probe.tensor in values and values[probe.tensor].size != probe.image.elements:
            sizes = f"{values[probe.tensor].size} elements, {files.LAYERS} says {probe.image.elements}"
            raise UserError(f"{files.MODEL}: tensor {probe.tensor!r} has {sizes}")


def _of_any_size(model: str | bytes, path: Path) -> Any:
    """Opens a session. A size of 0 in the shape of an input stands for any size."""
    opened = create_session(model, path)
    zero = {i.name for i in opened.get_inputs() if 0 in i.shape}
    if not zero:
        return opened
    proto = read_model(path) if isinstance(model, str) else _parse(model)
    for dim in (d for v in proto.graph.input if v.name in zero for d in v.type.tensor_type.shape.dim):
        if dim.dim_value == 0:
            dim.Clear()
    return create_session(proto.SerializeToString(), path)


def _prepared(
    path: Path, names: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> tuple[bytes, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the model with the tensors `names` as outputs.

    Also returns the tensors of `names` that it computes, the ones that were not outputs before, and the nodes that are
    rewritten as in ONNX's own suite.
    """
    model = read_model(path)
    by_suite = onnx_resize.followed(model, path, shapes)
    computed = {name for node in model.graph.node for name in node.output if name}
    shown = tuple(name for name in names if name in computed)
    added = add_outputs(model, shown)
    return model.SerializeToString(), shown, added, by_suite


def _parse(content: bytes) -> Any:
    import onnx

    return onnx.ModelProto.FromString(content)


def _check(golden: GoldenModel, program: LoadedProgram, path: Path, added: Sequence[str]) -> None:
    """Raises `UserError` unless the model has the program's inputs and, besides `added`, its outputs."""
    given = {i.name: i for i in golden.session.get_inputs()}
    for place in program.memory.inputs:
        if place.name not in given:
            raise UserError(f"{path}: has no input {place.name!r}, which {files.MEMORY} names")
        if number_type(given[place.name].type) is None:
            raise UserError(f"{path}: input {place.name!r} is a {given[place.name].type}, expected numbers")
    extra = sorted(given.keys() - {place.name for place in program.memory.inputs} - golden.constants.keys())
    if extra:
        raise UserError(f"{path}: input {extra[0]!r} is not in {files.MEMORY}")
    made = {o.name for o in golden.session.get_outputs()}
    for place in program.outputs:
        if place.name not in made:
            raise UserError(f"{path}: has no output {place.name!r}, which {files.MEMORY} names")
    extra = sorted(made - {place.name for place in program.outputs} - set(added))
    if extra:
        raise UserError(f"{path}: output {extra[0]!r} is not in {files.MEMORY}")
