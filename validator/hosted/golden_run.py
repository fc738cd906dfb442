"""Reference run of the whole model in onnxruntime, with the tensors at borders, and inputs for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import BorderTensor
from validator.execution.input_kinds import draw_values
from validator.execution.inputs import GivenInputs, inputs_for_sample, read_input_files
from validator.hosted.border_values import matches_sizes
from validator.hosted.run_segments import check_inputs
from validator.load.segmented_program import SegmentedProgram
from validator.model import onnx_resize
from validator.model.constant_inputs import read_constant_inputs
from validator.model.index_bounds import IndexBounds, find_index_bounds, find_runnable_bounds
from validator.model.ort_session import add_outputs, create_session, read_model, run
from validator.model.types import parse_tensor_type
from validator.program.coding import holds_floats, value_range

_OTHERS = IndexBounds(0, 1)
"""Random integers where the model does not tell their range: right for most ids, lengths and flags."""
_INTEGERS = frozenset(f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64))


@dataclass(frozen=True, slots=True, eq=False)
class WholeModel:
    """A session of OUT/model.onnx. `names`: the outputs, and the tensors at borders that the model computes.

    `constants`: inputs that became constants when the model was compiled. `bounds`: ranges of inputs.
    """

    path: Path
    session: Any
    names: tuple[str, ...]
    constants: Mapping[str, Any]
    bounds: Mapping[str, IndexBounds]
    by_suite: tuple[str, ...]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tensors `names`, in the types of the model."""
        return run(self.session, self.names, {**inputs, **self.constants}, f"{self.path}: onnxruntime: ")


def load_whole_model(hosted: SegmentedProgram, given: GivenInputs = (), numbers: Sequence[int] = (0,)) -> WholeModel:
    """Opens the original model. Raises `UserError` if it does not match `segments.json`.

    `given`: inputs; if there are none, the bounds of random integers are narrowed until the model runs for all seeds
    `numbers`.
    """
    path, listed = hosted.folder / files.MODEL, hosted.segments
    model = read_model(path)
    by_suite = _follow_suite(model, hosted)
    computed = {o for node in model.graph.node for o in node.output if o}
    outputs = {v.name for v in model.graph.output}
    missing = sorted({o.name for o in listed.outputs} ^ outputs)
    if missing:
        raise UserError(f"{path}: output {missing[0]!r} is not in both, the model and {files.SEGMENTS}")
    made = dict.fromkeys(name for segment in listed.segments for name in segment.makes)
    added = add_outputs(model, [name for name in made if name in computed])
    opened = create_session(model.SerializeToString(), path)
    constants = read_constant_inputs(listed.options, opened.get_inputs())
    names = tuple(dict.fromkeys([*(o.name for o in listed.outputs), *added]))
    whole = WholeModel(path, opened, names, constants, _bounds(model, hosted), by_suite)
    integers = [t.name for t in listed.inputs if t.type in _INTEGERS]
    if given or not integers:
        return whole

    def attempt(bounds: Mapping[str, IndexBounds]) -> None:
        for number in numbers:
            whole.run(make_sample_inputs(hosted, replace(whole, bounds=bounds), (), number))

    return replace(whole, bounds=find_runnable_bounds(whole.bounds, integers, attempt))


def _follow_suite(model: ModelProto, hosted: SegmentedProgram) -> tuple[str, ...]:
    """Rewrites chip nodes in which onnxruntime deviates from ONNX's own suite; nodes on the host stay as they are."""
    if not hosted.programs or not onnx_resize.may_need_rewrite(hosted.folder / files.MODEL):
        return ()
    shapes = {c.name: [size or 1 for size in c.shape] for c in hosted.segments.inputs}
    on_host = {n.node for n in hosted.segments.host_nodes}
    return onnx_resize.followed(model, hosted.folder / files.MODEL, shapes, on_host)


def _bounds(model: ModelProto, hosted: SegmentedProgram) -> dict[str, IndexBounds]:
    """Returns the bounds of inputs: indices within the tables that they index, integers within what the chip takes."""
    places = [p for program in hosted.programs.values() for p in program.memory.inputs]
    taken = {p.name: IndexBounds(*value_range(p.coding)) for p in places if p.coding and not holds_floats(p.coding)}
    taken = {name: IndexBounds(max(found.low, 0), found.high) for name, found in taken.items()}
    chosen = find_index_bounds(model)
    return {**taken, **{n: taken[n].intersect(b) if n in taken else b for n, b in chosen.items()}}


def make_sample_inputs(hosted: SegmentedProgram, whole: WholeModel, given: GivenInputs, number: int) -> dict[str, Any]:
    """Returns the inputs of one sample, in the types of the model: given ones, or random ones from the seed `number`.

    Random numbers are uniform within `whole.bounds`; without bounds, floats are standard normal and integers 0 or 1.
    """
    found, tensors = inputs_for_sample(given, number), hosted.segments.inputs
    if isinstance(found, Mapping):
        return check_inputs(hosted, found)
    if found:
        return check_inputs(hosted, read_input_files(tensors, found))
    rng = np.random.default_rng(number)
    return check_inputs(hosted, {tensor.name: _random(tensor, whole, rng) for tensor in tensors})


def make_kind_inputs(hosted: SegmentedProgram, whole: WholeModel, kind: str, number: int) -> dict[str, Any]:
    """Returns one sample of a kind of inputs (`validator.execution.input_kinds`), in the types of the model."""
    rng = np.random.default_rng(number)
    return check_inputs(hosted, {t.name: _random(t, whole, rng, kind) for t in hosted.segments.inputs})


def _random(tensor: BorderTensor, whole: WholeModel, rng: np.random.Generator, kind: str = "") -> Any:
    dtype, shape = parse_tensor_type(tensor.type), [size for size in tensor.shape if size is not None]
    if dtype is None or dtype.kind == "O" or not matches_sizes(shape, tensor.shape):
        raise UserError(f"input {tensor.name!r} is {tensor.type}: random values are not possible; give it with --input")
    bounds = whole.bounds.get(tensor.name) or (_OTHERS if dtype.kind in "iu" else None)
    if kind and dtype.kind in "fiu":
        with np.errstate(over="ignore"):
            return draw_values(kind, shape, bounds, rng).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if bounds is None:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(*bounds, shape, endpoint=True).astype(dtype)
    return rng.uniform(*bounds, shape).astype(dtype)
