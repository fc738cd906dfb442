"""Support query: which nodes of a model the chip can compute; for models that need the host as well."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, external_data_helper

from raptor.common.errors import UserError
from raptor.frontend import import_graph
from raptor.frontend.canonical import canonicalise
from raptor.frontend.import_graph import ModelOrigin, NodeSupport
from raptor.frontend.loading import prepare_model
from raptor.frontend.proto import read_model
from raptor.frontend.proto.model_checks import extract_runtime_fault
from raptor.frontend.proto.onnx_wrappers import infer_types
from raptor.frontend.proto.read_model import LIMIT_BYTES, walk_graphs
from raptor.graph.ir import Graph
from raptor.options import ModelInputs


@dataclass(frozen=True, slots=True, eq=False)
class QueriedModel:
    """A model in canonical form (inputs bound, branches resolved, constants folded), with the support of each node.

    onnx_bytes: the original model. proto: the canonical model with all weights inside and all types that can be
    inferred. graph: the accepted nodes as imported. answers: result of importing each node of `proto`. of_floats: the
    same for a float program, which refuses quantised operators.
    """

    name: str
    onnx_bytes: bytes
    proto: ModelProto
    graph: Graph
    answers: tuple[NodeSupport, ...]
    float_answers: tuple[NodeSupport, ...]
    notes: tuple[str, ...]
    constants: Mapping[str, npt.NDArray[Any]]


def query_support(model: read_model.SourceModel, inputs: ModelInputs) -> QueriedModel:
    """Tries to import every node of a model. Raises `UserError` as `load` does, but not for refused nodes."""
    onnx_bytes, name = model.onnx_bytes, model.name
    ready = prepare_model(model, inputs, keep_integers=True)
    origin = ModelOrigin.from_model(model)
    with canonicalise.canonicalise(model) as (proto, folder), canonicalise.blame_model_on_error(folder):
        _complete_types(proto, folder)
        graph, answers, of_floats = import_graph.query_nodes(proto, folder, origin)
        _embed(proto, folder, name)
    _name_nodes(proto, answers)
    return QueriedModel(name, onnx_bytes, proto, graph, answers, of_floats, ready.notes, ready.constants)


def _name_nodes(proto: ModelProto, answers: Sequence[NodeSupport]) -> None:
    """Gives each node the name that the user knows; further nodes made from the same one get a numeric suffix."""
    taken: set[str] = set()
    for node, answer in zip(proto.graph.node, answers, strict=True):
        node.name, count = answer.name, 1
        while node.name in taken:
            count += 1
            node.name = f"{answer.name}.{count}"
        taken.add(node.name)


def _complete_types(proto: ModelProto, folder: Path) -> None:
    """Adds types that onnx does not infer, as for operators of other domains; onnxruntime infers them."""
    graph = proto.graph
    known = {v.name for v in (*graph.output, *graph.value_info) if _is_complete(v.type)}
    missing = [o for node in graph.node for o in node.output if o and o not in known]
    if missing:
        try:
            found = infer_types(proto, missing, folder)
        except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
            raise UserError(f"onnxruntime refuses the model: {extract_runtime_fault(error, folder)}") from None
        incomplete = [v for v in graph.value_info if v.name not in found]
        del graph.value_info[:]
        graph.value_info.extend((*incomplete, *(ValueInfoProto(name=n, type=kind) for n, kind in found.items())))


def is_typed(kind: TypeProto) -> bool:
    """Checks whether a type states its element type."""
    if kind.HasField("tensor_type"):
        return kind.tensor_type.elem_type != TensorProto.UNDEFINED
    return kind.WhichOneof("value") is not None


def _is_complete(kind: TypeProto) -> bool:
    """Checks whether a type states element type and rank; sizes may be open."""
    return is_typed(kind) and (not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape"))


def _embed(proto: ModelProto, folder: Path, name: str) -> None:
    outside = [t for t in _tensors(proto) if t.data_location == TensorProto.EXTERNAL]
    size = sum(int(e.value) for t in outside for e in t.external_data if e.key == "length")
    if size > LIMIT_BYTES:
        raise UserError(f"{name}: with its constants computed, the model is larger than 2 GiB, the limit of ONNX")
    for tensor in outside:
        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    for graph in walk_graphs(proto.graph):
        yield from graph.initializer
        yield from (a.t for node in graph.node for a in node.attribute if a.HasField("t"))
