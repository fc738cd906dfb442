"""Typed wrappers of the untyped parts of onnx and onnxruntime."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from raptor.frontend.proto.contrib_shapes import has_contrib_operators, replace_by_standard

NO_FILES: Mapping[str, bytes] = MappingProxyType({})
InvalidModel = onnx.checker.ValidationError
InvalidTypes = onnx.shape_inference.InferenceError


_OF_AXES = ("axes", "starts", "ends")
"""Attributes of `Slice` before version 10 with one number for each axis."""

_WIDTHS = (8, 16, 32, 64)
_NUMPY: Mapping[str, type[np.generic]] = MappingProxyType(
    {f"tensor({name})": np.dtype(name).type for name in ("bool", *(f"{s}int{b}" for s in ("", "u") for b in _WIDTHS))}
)
"""onnxruntime's name of an element type -> numpy type, for all but float32."""


def check_standard(onnx_bytes: bytes) -> None:
    """Raises `InvalidModel` if the model violates the ONNX standard."""
    onnx.checker.check_model(onnx_bytes)


def read_without_weights(path: Path) -> ModelProto:
    """Reads a model; external data stays in its files."""
    return onnx.load(str(path), load_external_data=False)


def infer_shapes(proto: ModelProto) -> ModelProto:
    """Returns a copy of the model with all shapes that follow from the input shapes."""
    proto = _with_sorted_axes(proto)
    if not has_contrib_operators(proto):
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    inferred = onnx.shape_inference.infer_shapes(replace_by_standard(proto), data_prop=True)
    del inferred.graph.node[:]
    inferred.graph.node.extend(proto.graph.node)
    return inferred


def _with_sorted_axes(proto: ModelProto) -> ModelProto:
    """Returns the model, as a copy if a `Slice` has unsorted axes, whose shapes onnx does not infer.

    Axes are attributes before version 10 of `Slice`. onnxruntime unsorts them where it moves a `Transpose` after it.
    """
    if not any(_has_unsorted_axes(node) for node in proto.graph.node):
        return proto
    changed = ModelProto()
    changed.CopyFrom(proto)
    for node in filter(_has_unsorted_axes, changed.graph.node):
        lists = [a.ints for a in node.attribute if a.name in _OF_AXES]
        order = sorted(range(len(lists[0])), key=_axes(node).__getitem__)
        for numbers in lists:
            numbers[:] = [numbers[i] for i in order]
    return changed


def _has_unsorted_axes(node: NodeProto) -> bool:
    axes = _axes(node) if node.op_type == "Slice" else []
    lengths = {len(a.ints) for a in node.attribute if a.name in _OF_AXES}
    return sorted(axes) != axes and lengths == {len(axes)}


def _axes(node: NodeProto) -> list[int]:
    return [axis for a in node.attribute if a.name == "axes" for axis in a.ints]


def find_standard_schemas() -> Mapping[str, Any]:
    """Returns the schemas of the latest version of all standard operators that are not deprecated."""
    found: dict[str, Any] = {}
    for schema in onnx.defs.get_all_schemas():
        if not schema.domain and not schema.deprecated:
            found[schema.name] = schema
    return found


def function_versions() -> Mapping[str, int]:
    """Returns the standard operators that have a function body, each with the first version that has one."""
    found: dict[str, int] = {}
    history = cast(Sequence[Any], onnx.defs.get_all_schemas_with_history())
    for schema in history:
        versions: list[int] = [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]
        if versions and not schema.domain and not schema.deprecated:
            found[schema.name] = min(min(versions), found.get(schema.name, versions[0]))
    return found


def find_host_operators() -> frozenset[str]:
    """Returns the standard operators for which the installed onnxruntime has a CPU kernel."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    kernels = state.get_all_opkernel_def()
    return frozenset(k.op_name for k in kernels if k.provider == "CPUExecutionProvider" and not k.domain)


def find_function_body(node: NodeProto, version: int, types: Sequence[TypeProto]) -> FunctionProto | None:
    """Returns the function body that the standard gives a node with inputs of these types; None if it has none."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    # Asked for `version`, onnx returns nothing if a later operator set extended the types of an inner operator.
    plain = max((v for v in schema.function_opset_versions if v <= version), default=0)
    if plain:
        return FunctionProto.FromString(schema.get_function_with_opset_version(plain))
    by_type = max((v for v in schema.context_dependent_function_opset_versions if v <= version), default=0)
    given = [t.SerializeToString() for t in types]
    found = by_type and schema.get_context_dependent_function_with_opset_version(
        by_type, node.SerializeToString(), given
    )
    return FunctionProto.FromString(found) if found else None


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """A formal input or output of an operator. `types`: type strings that it accepts.

    variable: parameters with the same non-empty variable must have the same type.
    """

    types: frozenset[str]
    variable: str


def formal_parameters(node: NodeProto, version: int, side: str) -> Iterator[FormalParameter]:
    """Yields the formal parameters of a node's inputs or outputs (`side`); none for an operator unknown to onnx."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    for formal in schema.inputs if side == "input" else schema.outputs:
        types = frozenset[str](formal.types)
        one = FormalParameter(types, formal.type_str if formal.is_homogeneous else "")
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            yield from repeat(one)
        yield one


def default_attributes(node: NodeProto, version: int) -> list[AttributeProto]:
    """Returns the default values of a standard operator's attributes."""
    found = onnx.defs.get_schema(node.op_type, version, node.domain).attributes.values()
    return [a.default_value for a in found if a.default_value.name]


def set_external_data(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Replaces the tensor's data by an external data reference to a file beside the model."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def infer_types(proto: ModelProto, names: Sequence[str], folder: Path) -> dict[str, TypeProto]:
    """Returns the types of inner tensors as onnxruntime infers them; it knows more operators than onnx does.

    folder: holds the larger weights of the model. Raises onnxruntime's exceptions if it rejects the model.
    """
    asked, path = ModelProto.FromString(proto.SerializeToString()), folder / "asked.onnx"

    def infer(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> Sequence[Any]:
        asked.graph.node.extend(nodes)
        del asked.graph.output[:]
        asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        path.write_bytes(asked.SerializeToString())
        return _session(str(path)).get_outputs()

    found = infer([], names)
    # onnxruntime returns no sizes both for a scalar and for an unknown rank; the size of a Shape tells them apart.
    unsized = [o.name for o in found if not o.shape and o.type.startswith("tensor(")]
    shapes = {f"{name}/shape of it": name for name in unsized}
    nodes = [helper.make_node("Shape", [name], [shape]) for shape, name in shapes.items()]
    scalars = {shapes[o.name] for o in infer(nodes, list(shapes)) if o.shape == [0]} if shapes else set[str]()
    return {o.name: _type_of(o.type, o.shape if o.shape or o.name in scalars else None) for o in found}


def _type_of(text: str, shape: Sequence[int | str | None] | None = None) -> TypeProto:
    """Parses a type as onnxruntime writes it, `seq(tensor(float))`; symbolic sizes stay open."""
    kind, _, inner = text.removesuffix(")").partition("(")
    found = TypeProto()
    if kind == "tensor":
        found.tensor_type.elem_type = _element(inner)
        if shape is not None:
            found.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
            found.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size if isinstance(size, int) else None) for size in shape
            )
    elif kind == "seq":
        found.sequence_type.elem_type.CopyFrom(_type_of(inner))
    elif kind == "optional":
        found.optional_type.elem_type.CopyFrom(_type_of(inner))
    elif kind == "map":
        key, _, value = inner.partition(",")
        found.map_type.key_type = _element(key)
        found.map_type.value_type.CopyFrom(_type_of(value))
    return found


def _element(name: str) -> int:
    return TensorProto.DataType.Value(_NAMES.get(name, name).upper())


_NAMES = {"float32": "float", "float64": "double"}


def find_load_fault(onnx_bytes: bytes) -> Exception | None:
    """Returns the exception with which onnxruntime rejects a model; None if it accepts it."""
    try:
        _session(onnx_bytes)
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        return error
    return None


def _session(model: bytes | str) -> ort.InferenceSession:
    """Opens a model, given as bytes or as a path, with all optimisations off."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, ["CPUExecutionProvider"])


def run_on_ones(path: Path) -> None:
    """Runs a model once on inputs of ones. Raises onnxruntime's exceptions if that fails."""
    session = _session(str(path))
    session.run(None, {i.name: np.ones(i.shape, _NUMPY.get(i.type, np.float32)) for i in session.get_inputs()})


def run_model(proto: ModelProto, feeds: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the outputs of a model, by name, for each of `feeds`. Raises onnxruntime's exceptions if that fails."""
    session = _session(proto.SerializeToString())
    names = [o.name for o in session.get_outputs()]
    return [dict(zip(names, session.run(None, dict(feed)), strict=True)) for feed in feeds]


def run_reference(
    node: NodeProto, operands: Sequence[TensorProto], opsets: Sequence[OperatorSetIdProto]
) -> "list[npt.NDArray[Any]]":
    """Returns the results of one node on constants, computed by onnx's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    outputs = [ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "node", [], outputs, operands)
    evaluator: Any = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))  # its results have no type
    return [np.asarray(a) for a in evaluator.run(None, {})]


def run_node(node: NodeProto, operands: Mapping[str, Any], opsets: Sequence[OperatorSetIdProto]) -> list[Any] | None:
    """Returns the results of one node: arrays, and lists of arrays for sequences; None if nothing can compute them.

    Tries onnxruntime first, then onnx's reference implementation.
    """
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph([node], "node", [], [ValueInfoProto(name=o) for o in node.output if o])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with suppress(Exception):  # both raise a dozen types that have only Exception in common
        tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in operands.items() if not isinstance(v, list)]
        if len(tensors) == len(operands):
            graph.initializer.extend(tensors)
            model.graph.CopyFrom(graph)
            return list(_session(model.SerializeToString()).run(None, {}))
    with suppress(Exception):
        model.graph.ClearField("initializer")
        model.graph.input.extend(ValueInfoProto(name=n) for n in operands)
        evaluator: Any = ReferenceEvaluator(model)  # its results have no type
        found = evaluator.run(None, dict(operands))
        return [a if isinstance(a, list) else np.asarray(a) for a in found]
    return None


def run_constant_model(proto: ModelProto) -> Any:
    """Returns the first output of a small model without inputs. Raises onnxruntime's exceptions if it cannot run."""
    return _session(proto.SerializeToString()).run(None, {})[0]


def run_optimiser(
    source: Path,
    target: Path,
    *,
    weights: str,
    inline_bytes: int,
    disabled: Sequence[str],
    in_memory: Mapping[str, bytes | bytearray] = NO_FILES,
) -> None:
    """Runs onnxruntime's BASIC optimiser; writes the model, and its constants of `inline_bytes` or more to `weights`.

    in_memory: contents of external data files by name; files are then not looked up on disk. Raises onnxruntime's
    exceptions if it rejects the model.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", weights)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(inline_bytes))
    options.add_session_config_entry("session.disable_prepacking", "1")
    contents = list(in_memory.values())
    options.add_external_initializers_from_files_in_memory(list(in_memory), contents, list(map(len, contents)))
    ort.InferenceSession(str(source), options, ["CPUExecutionProvider"], disabled_optimizers=list(disabled))
