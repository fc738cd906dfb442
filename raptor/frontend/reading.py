"""Reading an ONNX file and the files it refers to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from raptor.errors import UserError

LIMIT_BYTES = 2**31 - 1
"""protobuf, and with it ONNX, onnxruntime and our `out/model.onnx`, stops here."""


@dataclass(slots=True, eq=False)
class Source:
    """`onnx_bytes` is the self-contained original; `proto` a copy of it that the front end may change and drop."""

    proto: ModelProto
    onnx_bytes: bytes
    name: str


def read(source: str | Path | ModelProto) -> Source:
    """Raises `UserError` if the source is not one complete ONNX model of less than 2 GiB."""
    if isinstance(source, ModelProto):
        return _from_proto(source)
    path = Path(source)
    data = _read_file(path)
    proto = _parse(data, str(path))
    external = [t for t in _tensors(proto) if t.data_location == TensorProto.EXTERNAL]
    if external:
        _embed(external, path, len(data))
        data = _serialise(proto, str(path))
    return Source(proto, data, path.stem)


def _from_proto(source: ModelProto) -> Source:
    name = source.graph.name or "model"
    if any(t.data_location == TensorProto.EXTERNAL for t in _tensors(source)):
        raise UserError(f"{name}: the weights are in other files; give the path of the model instead of the proto")
    data = _serialise(source, name)
    return Source(_parse(data, name), data, name)


def _serialise(proto: ModelProto, where: str) -> bytes:
    if proto.ByteSize() > LIMIT_BYTES:
        raise UserError(f"{where}: the model with its weights is larger than 2 GiB, the limit of ONNX")
    return proto.SerializeToString(deterministic=True)


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
    graph = proto.graph
    yield graph.name
    yield from (o.domain for o in proto.opset_import)
    yield from (t.name for t in graph.initializer)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (a.name for a in node.attribute)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def _read_file(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LIMIT_BYTES:
            raise UserError(f"{path}: larger than 2 GiB, the limit of ONNX")
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not data:
        raise UserError(f"{path}: the file is empty")
    return data


def _tensors(proto: ModelProto) -> Iterator[TensorProto]:
    yield from proto.graph.initializer
    for node in proto.graph.node:
        yield from (a.t for a in node.attribute if a.HasField("t"))


def _embed(tensors: list[TensorProto], model: Path, model_bytes: int) -> None:
    """Moves external data into the tensors."""
    ranges = [_external_range(t, model) for t in tensors]
    if model_bytes + sum(length for _, _, length in ranges) > LIMIT_BYTES:
        raise UserError(f"{model}: the model with its weights is larger than 2 GiB, the limit of ONNX")
    for tensor, (path, offset, length) in zip(tensors, ranges, strict=True):
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _external_range(tensor: TensorProto, model: Path) -> tuple[Path, int, int]:
    """(file, offset, length) of a tensor's data. Only files below the model's folder are ever opened."""
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
    # A model is data from elsewhere: it must not make us read, and then publish in out/, any file it names.
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
