"""Reads an ONNX file and its external data files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.common.errors import UserError
from raptor.common.options import arguments
from raptor.frontend.onnx_text.onnx_reader import read_onnx_text
from raptor.frontend.proto.onnx_wrappers import set_external_data
from raptor.frontend.proto.strip_weights import strip_weights

LIMIT_BYTES = 2**31 - 1
"""Largest size of a serialised protobuf message, and so of an ONNX model and our `out/model.onnx`."""


INLINE_BYTES = 1024
"""Constants below this size stay in the proto, where shape inference sees their values."""
_OF_THE_GRAPH = frozenset(("graph", "node", "initializer", "input", "output", "value_info"))
"""Fields of a model and of its graph that `copy_header` leaves out."""
ORIGINAL_LOCATION = "original"
"""External data location by which a proto refers to the bytes that it was read from."""


@dataclass(slots=True, eq=False)
class SourceModel:
    """A model that was read.

    proto: a copy that the front end may change; its larger float32 weights are external data in `ORIGINAL_LOCATION`,
    which is `onnx_bytes`. onnx_bytes: the original model with all weights inside. reasons: first output of a node ->
    why it cannot be compiled, where the front end knows more than the operator tells. labels: result of a node made by
    the front end -> name that the user knows for the node it was made from. inner: results that the original model does
    not have. kinds: ONNX types of the model's inputs and outputs before floats become float32. lengths: inputs that are
    sequence lengths -> the largest length that an operator accepts."""

    proto: ModelProto
    onnx_bytes: bytes
    name: str
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    added_results: frozenset[str] = frozenset()
    interface_types: Mapping[str, int] = field(default_factory=dict[str, int])
    cache_lengths: Mapping[str, int] = field(default_factory=dict[str, int])

    def read_values(self, tensor: TensorProto) -> npt.NDArray[Any]:
        """Returns the value of a constant. Raises `ValueError` or `TypeError` if its data does not match its shape."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        entries = {e.key: int(e.value) for e in tensor.external_data if e.key in ("offset", "length")}
        data = memoryview(self.onnx_bytes)[entries["offset"] :][: entries["length"]]
        return np.frombuffer(data, "<f4").reshape(tuple(tensor.dims))


def read_model(source: str | Path | ModelProto) -> SourceModel:
    """Reads a model from an ONNX file, or a file `.mlir` of the dialect `onnx`.

    Raises `UserError` if it is not a complete ONNX model of less than 2 GiB.
    """
    if isinstance(source, ModelProto):
        return read_proto(source)
    path = arguments.parse_path("model", source, expected="the path of an ONNX file, or an onnx.ModelProto")
    if path.suffix == ".mlir":
        return read_proto(read_onnx_text(path), path.stem)
    return _source(_read_file(path), path.stem, str(path), path)


def read_proto(source: ModelProto, name: str = "") -> SourceModel:
    """Makes a `SourceModel` of a model in memory. `name`: overrides the name of its graph.

    Raises `UserError` as `read` does.
    """
    name = name or source.graph.name or "model"
    if _is_external(source):
        raise UserError(f"{name}: the weights are in other files; give the path of the model instead of the proto")
    return _source(_serialise(source, name), name, name)


def _source(data: bytes, name: str, where: str, path: Path | None = None) -> SourceModel:
    """Makes a `SourceModel`.

    `path`: file of the model, beside which external data may lie; None for a model in memory.
    """
    outline, ranges = strip_weights(data, INLINE_BYTES)
    proto = _parse(outline, where)
    if path is not None and _is_external(proto):
        return _source(_embedded(_parse(data, where), path, len(data)), name, where)
    # NOTE: without ranges, the bytes are not as protobuf writes them, and no weights were removed.
    for tensor, span in zip(proto.graph.initializer, ranges, strict=False):
        if span is not None:
            set_external_data(tensor, ORIGINAL_LOCATION, span[0], span[1] - span[0])
    return SourceModel(proto, data, name)


def _serialise(proto: ModelProto, where: str) -> bytes:
    data = proto.SerializeToString(deterministic=True)  # ByteSize serialises the model, too
    if len(data) > LIMIT_BYTES:
        raise UserError(f"{where}: the model with its weights is larger than 2 GiB, the limit of ONNX")
    return data


def _parse(data: bytes, where: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise UserError(f"{where}: not an ONNX model, or truncated") from None
    if not proto.graph.output:
        raise UserError(f"{where}: not an ONNX model: it has no graph with outputs")
    # protobuf gives bytes where a text is not UTF-8.
    if any(isinstance(text, bytes) for text in _names(proto)):
        raise UserError(f"{where}: not an ONNX model: a name in it is not UTF-8")
    return proto


def _names(proto: ModelProto) -> Iterator[object]:
    yield from (o.domain for o in proto.opset_import)
    for graph in walk_graphs(proto.graph):
        yield graph.name
        yield from (t.name for t in graph.initializer)
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (a.name for a in node.attribute)
        for value in (*graph.input, *graph.output):
            yield value.name
            yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yields the graph and, recursively, the subgraphs of its nodes (branches of If, bodies of loops)."""
    yield graph
    for inner in (g for node in graph.node for g in subgraphs(node)):
        yield from walk_graphs(inner)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yields the graph attributes of a node: the branches of an If, or the body of a loop."""
    for attribute in node.attribute:
        yield from (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else []))


def copy_header(proto: ModelProto) -> ModelProto:
    """Returns a model with the versions, properties, functions and names of another one, and with an empty graph."""
    copy = ModelProto()
    for source, target in ((proto, copy), (proto.graph, copy.graph)):
        for known, value in source.ListFields():
            if known.name in _OF_THE_GRAPH:
                continue
            if isinstance(value, str | bytes | int):
                setattr(target, known.name, value)
            else:
                getattr(target, known.name).MergeFrom(value)
    return copy


def find_reads(node: NodeProto) -> Iterator[str]:
    """Yields the tensors that a node reads, including reads in its subgraphs."""
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        yield from (name for inner in graph.node for name in find_reads(inner))


def _read_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LIMIT_BYTES:
            raise UserError(f"{path}: larger than 2 GiB, the limit of ONNX")
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a directory, where an ONNX model is expected") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not data:
        raise UserError(f"{path}: the file is empty")
    return data


def _is_external(proto: ModelProto) -> bool:
    return any(t.data_location == TensorProto.EXTERNAL for t in _tensors(proto))


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    for graph in walk_graphs(proto.graph):
        yield from graph.initializer
        yield from (a.t for node in graph.node for a in node.attribute if a.HasField("t"))


def _embedded(proto: ModelProto, model: Path, model_bytes: int) -> bytes:
    tensors = [t for t in _tensors(proto) if t.data_location == TensorProto.EXTERNAL]
    ranges = [_external_range(t, model) for t in tensors]
    if model_bytes + sum(length for _, _, length in ranges) > LIMIT_BYTES:
        raise UserError(f"{model}: the model with its weights is larger than 2 GiB, the limit of ONNX")
    for tensor, (path, offset, length) in zip(tensors, ranges, strict=True):
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return _serialise(proto, str(model))


def _external_range(tensor: TensorProto, model: Path) -> tuple[Path, int, int]:
    """Returns (file, offset, length) of a tensor's data. Only files below the model's folder are opened."""
    where = f"{model}: weights of '{tensor.name}'"
    entries = {e.key: e.value for e in tensor.external_data}
    path = _external_path(entries.get("location", ""), model, where)
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", path.stat().st_size - offset))
    except ValueError:
        raise UserError(f"{where}: offset and length must be numbers") from None
    if min(offset, length) < 0 or offset + length > path.stat().st_size:
        raise UserError(f"{where}: {path.name} ends before byte {offset + length}")
    return path, offset, length


def _external_path(location: str, model: Path, where: str) -> Path:
    relative = PurePosixPath(location)
    # A model is not trusted: it must not make us read any file that it names, and then publish it in out/.
    if not location or relative.is_absolute() or ".." in relative.parts or "\\" in location or ":" in location:
        raise UserError(f"{where}: '{location}' is not a file inside the model's folder")
    path = model.parent
    for part in relative.parts:
        path /= part
        if path.is_symlink():
            raise UserError(f"{where}: {path} is a link; copy the file to where the link is")
    if not path.is_file():
        raise UserError(f"{where}: {path}: no such file")
    return path
