"""The interface of an onnxruntime `InferenceSession`, computed by the instructions of a compiled program.

from raptor.integrations.onnxruntime_session import InferenceSession

session = InferenceSession("model.onnx")  # was: onnxruntime.InferenceSession("model.onnx")
(scores,) = session.run(["scores"], {"image": image})
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from raptor import api
from raptor.api import Program
from raptor.common.errors import UserError
from raptor.common.options import arguments
from raptor.common.package_clashes import require_own_packages
from raptor.options import CompileKeywords
from raptor.output import files

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: name, shape, type in onnxruntime's notation (`tensor(float)`), and numpy type.

    A size is None if it depends on values, which is possible for an output that the host computes.
    """

    name: str
    shape: list[int | None]
    type: str
    dtype: np.dtype[Any]


class InferenceSession:
    """A compiled program with the interface of `onnxruntime.InferenceSession`: `run`, `get_inputs`, `get_outputs`.

    `model`: an ONNX file, its bytes, a `ModelProto`, a `Program`, or the directory of a saved program. A model is
    compiled with `options`, the options of `raptor.compile`. `sess_options` and `providers` configure onnxruntime; they
    are accepted and ignored, so that a script need not drop them.
    """

    def __init__(
        self,
        model: "str | Path | bytes | ModelProto | Program",
        sess_options: object = None,
        providers: object = None,
        **options: Unpack[CompileKeywords],
    ) -> None:
        require_own_packages("validator")
        from validator.execution.stepped_run import SteppedRun
        from validator.hosted.any_program import list_shapes, load_any
        from validator.program.program import LoadedProgram

        self.program = _program(model, options)
        """The compiled program; `session.program.simulate()` estimates its time and energy."""
        folder = self.program.directory
        self._loaded = load_any(folder)
        self._steps = SteppedRun(self._loaded) if isinstance(self._loaded, LoadedProgram) else None
        declared = onnx.ModelProto.FromString((folder / files.MODEL).read_bytes()).graph
        inputs, outputs = list_shapes(self._loaded)
        self._inputs = _arguments(declared.input, inputs)
        self._outputs = _arguments(declared.output, outputs)

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs in the order of the model, without those that were compiled as constants."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs in the order of the model."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Returns a name in place of an execution provider of onnxruntime."""
        return ["RaptorExecutionProvider"]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Array]:
        """Executes the instructions on the inputs. Returns the outputs `output_names`, in that order; None: all.

        States (`states` of `raptor.compile`) stay on the chip from call to call; inputs that are states may be left
        out, or replace the values there.

        `run_options` are accepted and ignored. Raises `UserError` for missing or unknown inputs, for inputs of another
        type or shape, and for unknown outputs.
        """
        from validator.hosted.any_program import run_any

        wanted = self._wanted(output_names)
        feeds = self._feeds(arguments.parse_dict("input_feed", input_feed, "arrays by name of the input"))
        results = run_any(self._loaded, feeds) if self._steps is None else self._steps.step(feeds)
        return [np.asarray(results[arg.name], arg.dtype) for arg in wanted]

    def reset(self) -> None:
        """Switches the chip off and on: all states are zero."""
        if self._steps is not None:
            self._steps.reset()

    def _wanted(self, names: Sequence[str] | None) -> list[NodeArg]:
        outputs = {arg.name: arg for arg in self._outputs}
        if names is None or not len(names):
            return self._outputs
        if isinstance(names, str):
            raise UserError(f"output_names={names!r}: expected a list of names, such as [{names!r}]")
        if unknown := [name for name in names if name not in outputs]:
            raise UserError(f"{unknown[0]!r}: no such output; there are: {', '.join(outputs)}")
        return [outputs[name] for name in names]

    def _feeds(self, given: Mapping[str, Any]) -> dict[str, Array]:
        inputs = {arg.name: arg for arg in self._inputs}
        if unknown := [name for name in given if name not in inputs]:
            raise UserError(f"{unknown[0]!r}: no such input; there are: {', '.join(inputs)}")
        states = set[str]() if self._steps is None else {state.input for state in self._steps.program.states}
        if missing := [name for name in inputs if name not in given and name not in states]:
            raise UserError(f"input {missing[0]!r} is missing")
        return {name: _fitting(arg, np.asarray(given[name])) for name, arg in inputs.items() if name in given}


def _fitting(arg: NodeArg, array: Array) -> Array:
    if array.dtype != arg.dtype:
        raise UserError(f"input {arg.name!r}: expected {arg.type}, got an array of {array.dtype}")
    if list(array.shape) != arg.shape:
        raise UserError(f"input {arg.name!r}: expected shape {arg.shape}, got {list(array.shape)}")
    return array


def _program(model: Any, options: Mapping[str, Any]) -> Program:
    """Compiles a model, loads a directory, or returns a program. Raises `UserError` for options without a model."""
    if isinstance(model, bytes):
        try:
            model = onnx.load_from_string(model)
        except Exception as e:  # protobuf's and onnx's have no common base
            raise UserError(f"model: {len(model)} bytes that are not an ONNX model") from e
    is_folder = isinstance(model, str | Path) and arguments.parse_path("model", model).is_dir()
    if not isinstance(model, Program) and not is_folder:
        return api.compile(model, **options)
    if options:
        raise UserError(f"{', '.join(options)}: only with a model that is compiled; this one is a program already")
    return model if isinstance(model, Program) else api.load(model)


def _arguments(values: "Sequence[ValueInfoProto]", shapes: Mapping[str, Sequence[int | None]]) -> list[NodeArg]:
    return [_argument(value, shapes[value.name]) for value in values if value.name in shapes]


def _argument(value: "ValueInfoProto", shape: Sequence[int | None]) -> NodeArg:
    kind = value.type.tensor_type.elem_type
    name = TensorProto.DataType.Name(kind).lower()
    return NodeArg(value.name, list(shape), f"tensor({name})", helper.tensor_dtype_to_np_dtype(kind))
