"""The `onnx.backend.base.Backend` interface: compiles a model, and executes its instruction streams.

    from raptor.integrations.onnx_backend import RaptorBackend

    outputs = RaptorBackend.run_model(model, [x])

The chip computes floats and quantised data; sizes, axes, indices and weights are part of the program. But models may
have them as inputs (all of ONNX's own tests do), whose values are known only at `run`. So a model is compiled at its
first run, and again when the value of such an input changes. These inputs become constants:

1. by type and operator: parameters of operators, such as shapes, axes and zero points, and inputs without elements;
2. by the compiler: an input that an importer needs as a constant, or from which such an input is computed. The error of
   the compiler names them.

Step 2 leaves at least one input: without inputs, constant folding would compute the model, not the chip.
"""

import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from raptor import api
from raptor.common.errors import CapacityError, UnsupportedError, UserError
from raptor.common.options.arguments import argument_error, parse_integer
from raptor.common.package_clashes import require_own_packages
from raptor.frontend.proto.model_checks import is_data
from raptor.frontend.proto.onnx_wrappers import infer_shapes
from raptor.frontend.proto.opset_conversion import upgrade_opset
from raptor.options import CompileKeywords, list_keywords

if TYPE_CHECKING:
    from validator.load.segmented_program import SegmentedProgram
    from validator.program.program import LoadedProgram

__all__ = ["RaptorBackend", "RaptorRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

Array = npt.NDArray[Any]
BACKEND_OPTIONS = frozenset(list_keywords(CompileKeywords)) - {"shapes"}
"""Options of `raptor.compile` that `prepare` accepts; the shapes come from the inputs of a run."""
DEFAULT_CORES = 16
"""Default number of cores: few, because the network table has an entry to write for every pair of cores."""


@dataclass(slots=True, eq=False)
class _Compiled:
    """A compiled model. `bound`: values of the inputs that became constants. `shapes`: of the other inputs, by name."""

    program: "LoadedProgram | SegmentedProgram"
    bound: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Returns True if the program was compiled for these constants and shapes."""
        return all(np.array_equal(values[n], v) for n, v in self.bound.items()) and all(
            np.shape(values[name]) == shape for name, shape in self.shapes.items()
        )

    def run(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the outputs by name."""
        from validator.hosted.any_program import run_any

        return run_any(self.program, {n: v for n, v in values.items() if n not in self.bound})


class RaptorRep(BackendRep):
    """A model that is compiled when it runs for the first time."""

    def __init__(self, model: ModelProto, options: Mapping[str, Any]) -> None:
        self._original, self._options = model, options
        self._model = model if options.get("host") else upgrade_opset(model)
        self._compiled: _Compiled | None = None
        weights = {t.name for t in model.graph.initializer}
        self._inputs = [v for v in self._model.graph.input if v.name not in weights]

    @property
    def bound(self) -> tuple[str, ...]:
        """Names of the inputs that were compiled as constants in the last run."""
        return tuple(self._compiled.bound) if self._compiled else ()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the outputs for these inputs: a sequence in the model's order, or a mapping by name.

        Raises `RaptorError` for inputs that do not fit and for models that cannot be compiled.
        """
        require_own_packages("validator")
        values = self._by_name(inputs)
        if self._compiled is None or not self._compiled.fits(values):
            self._compiled = self._compile(values)
        results, outputs = self._results(self._compiled, values), self._model.graph.output
        return namedtupledict("Outputs", [o.name for o in outputs])(*(_typed(results[o.name], o) for o in outputs))

    def _results(self, compiled: _Compiled, values: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return compiled.run(values)
        except UserError:
            if not self._options.get("host"):
                raise
            # Integers beyond those for which the chip is exact: the host computes with all of its type.
            every = {"host_ops": tuple(sorted({node.op_type for node in self._model.graph.node}))}
            self._compiled = self._compile_bound(values, (), {**self._options, **every})
            return self._compiled.run(values)

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        given = dict(cast(Mapping[str, Any], inputs)) if isinstance(inputs, Mapping) else self._in_order(inputs)
        missing = [v.name for v in self._inputs if v.name not in given]
        if missing:
            raise UserError(f"input '{missing[0]}' is missing")
        with _blaming_the_model():
            return {v.name: _typed(given[v.name], None) for v in self._inputs}

    def _in_order(self, inputs: Any) -> dict[str, Any]:
        given = list(cast(Sequence[Any], inputs)) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) != len(self._inputs):
            raise UserError(f"the model has {len(self._inputs)} inputs, {len(given)} are given")
        return {v.name: x for v, x in zip(self._inputs, given, strict=True)}

    def _compile(self, values: Mapping[str, Any]) -> _Compiled:
        """Compiles for the chip; if the chip alone cannot compute it, for chip and host (option `host`)."""
        if not self._options.get("host"):
            return self._compile_for_chip(values)
        try:
            self._model = upgrade_opset(self._original)
            return self._compile_for_chip(values)
        except (UserError, RuntimeError):  # the latter: ONNX's converter knows no way
            self._model = self._original
            return self._compile_bound(values, (), self._options)

    def _compile_for_chip(self, values: Mapping[str, Any]) -> _Compiled:
        if not all(isinstance(value, np.ndarray) for value in values.values()):
            raise UserError("an input is no tensor, which only the host takes")
        alone = {key: value for key, value in self._options.items() if key != "host"}
        bound = [v.name for v in self._inputs if not is_data(self._model, v)]
        bound += [
            n for n, x in values.items() if not x.size and n not in bound and any(a.size for a in values.values())
        ]
        while True:
            try:
                return self._compile_bound(values, bound, alone)
            except UnsupportedError as error:
                wanted = _sources(self._model, {name for node in error.nodes for name in node.computed_inputs})
                more = [v.name for v in self._inputs if v.name in wanted and v.name not in bound]
                if not more or len(bound) + len(more) == len(self._inputs):
                    raise
                bound += more

    def _compile_bound(self, values: Mapping[str, Any], bound: Sequence[str], options: Mapping[str, Any]) -> _Compiled:
        require_own_packages("validator")
        from validator.hosted.any_program import load_any

        model = _bind(self._model, {n: values[n] for n in bound})
        names = [v.name for v in self._inputs if v.name not in bound and not isinstance(values[v.name], list | None)]
        shapes = {name: np.shape(values[name]) for name in names}
        open_ = {v.name for v in self._inputs if _is_open(v)} if options.get("host") else set(shapes)
        with tempfile.TemporaryDirectory(prefix="raptor-") as scratch:
            folder = Path(scratch) / "out"
            program = _compile_on_enough_cores(model, {n: s for n, s in shapes.items() if n in open_}, options)
            program.save(folder, stream_format="pim", weight_format="npz")
            return _Compiled(load_any(folder), {n: values[n].copy() for n in bound}, shapes)


class RaptorBackend(Backend):
    """ONNX backend: compiles for a crossbar chip, and executes the instructions in an engine of the validator."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> RaptorRep:
        """Returns the model, which is compiled at its first run.

        `kwargs`: options of `raptor.compile`, such as xbar, cores, bits, arch, host; all but `shapes`. Raises
        `UserError` for another device than CPU, other options, and an invalid model.
        """
        if not cls.supports_device(device):
            raise argument_error("device", device, "CPU, where the streams are executed")
        if not isinstance(cast(object, model), ModelProto):
            raise argument_error("model", model, "an onnx.ModelProto")
        if unknown := sorted(kwargs.keys() - BACKEND_OPTIONS):
            raise UserError(f"{unknown[0]}: no such option; there are: {', '.join(sorted(BACKEND_OPTIONS))}")
        with _blaming_the_model():
            super().prepare(model, device)
            return RaptorRep(model, kwargs)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs a model that consists of this node. Without `outputs_info`, outputs are float32.

        `opset_version`: operator set of the node, by default the latest. Other `kwargs` as for `prepare`.
        """
        latest = onnx.defs.onnx_opset_version()
        version = parse_integer("opset_version", kwargs.pop("opset_version", latest), 1, latest)
        if not isinstance(cast(object, node), NodeProto):
            raise argument_error("node", node, "an onnx.NodeProto")
        with _blaming_the_model():
            arrays = [np.asarray(x) for x in inputs]
            model = _model_of(node, arrays, outputs_info, version)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Returns True for `CPU`, also with a number: `CPU:0`."""
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, TypeError, ValueError):
            return False


@contextmanager
def _blaming_the_model() -> Generator[None]:
    """Converts errors of onnx and numpy about invalid models and values to `UserError`."""
    try:
        yield
    except (onnx.checker.ValidationError, AttributeError, OverflowError, TypeError, ValueError) as e:
        raise UserError(f"not a model, or not inputs of it: {e}") from e


def _model_of(
    node: NodeProto,
    arrays: Sequence[Array],
    outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None,
    version: int,
) -> ModelProto:
    """Builds a model of one node with inputs of the types and shapes of `arrays`."""
    infos = [_info(name, x.dtype, x.shape) for name, x in zip(filter(None, node.input), arrays, strict=True)]
    outputs = [_info(name, np.dtype(np.float32), None) for name in node.output if name]
    if outputs_info is not None:
        outputs = [_info(o.name, dtype, shape) for o, (dtype, shape) in zip(outputs, outputs_info, strict=True)]
    graph = helper.make_graph([node], node.name or node.op_type, infos, outputs)
    return infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)]))


is_compatible = RaptorBackend.is_compatible
prepare = RaptorBackend.prepare
run_model = RaptorBackend.run_model
run_node = RaptorBackend.run_node
supports_device = RaptorBackend.supports_device


def _sources(model: ModelProto, names: set[str]) -> set[str]:
    """Returns `names` and all tensors from which they are computed."""
    found = set(names)
    for node in reversed(model.graph.node):
        if found.intersection(node.output):
            found.update(node.input)
    return found


def _bind(model: ModelProto, constants: Mapping[str, Array]) -> ModelProto:
    """Returns a copy of the model in which the inputs `constants` are initializers."""
    bound = ModelProto.FromString(model.SerializeToString())
    inputs = [v for v in bound.graph.input if v.name not in constants]
    del bound.graph.input[:]
    bound.graph.input.extend(inputs)
    bound.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())
    return bound


def _compile_on_enough_cores(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], options: Mapping[str, Any]
) -> api.Program:
    """Compiles for the chip of `options`; if they give no number of cores, for as many as the model needs."""
    if "cores" in options or "arch" in options:
        return api.compile(model, shapes=shapes, **options)
    cores = DEFAULT_CORES
    while True:
        try:
            return api.compile(model, shapes=shapes, cores=cores, **options)
        except CapacityError as error:
            if error.resource != "cores" or error.needed <= cores:
                raise
            cores = error.needed


def _type(value: ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type


def _is_open(value: ValueInfoProto) -> bool:
    """Returns True if the shape of an input has a dimension without a fixed size."""
    return not all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)


def _typed(value: Any, declared: ValueInfoProto | None) -> Any:
    """Returns a value as an array in the type that an output declares; sequences and None are returned unchanged."""
    if value is None or isinstance(value, list):
        return cast(Any, value)
    return np.asarray(value, helper.tensor_dtype_to_np_dtype(_type(declared)) if declared else None)


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
