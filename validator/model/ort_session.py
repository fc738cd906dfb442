"""Sessions of onnxruntime, with every graph optimisation off and on one thread, and the shapes they infer."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto

from raptor.common.errors import UserError
from validator.model import int8_saturation
from validator.model.types import number_type


def create_session(model: str | bytes, path: Path) -> Any:
    """Opens a model, given as a file name or as content. Raises `UserError` that names `path`.

    Its products of integers are exact, also on machines where onnxruntime's saturate
    (`validator.model.int8_saturation`)."""
    try:
        return _opened(int8_saturation.avoid_saturation(model) if _saturates() else model)
    except Exception as e:  # onnxruntime's exceptions have no common base
        raise UserError(f"{path}: onnxruntime cannot load it: {e}") from e


def run(opened: Any, names: Sequence[str], feed: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Returns the results `names` of a session. Raises `UserError` that begins with `where` if it fails."""
    try:
        return dict(zip(names, opened.run(list(names), dict(feed)), strict=True))
    except Exception as e:  # onnxruntime's exceptions have no common base
        raise UserError(f"{where}{e}") from e


def create_optimised_session(path: Path) -> Any:
    """Opens a model with every optimisation of onnxruntime. Raises `UserError` as `create_session` does."""
    try:
        return _opened(str(path), optimise=True)
    except Exception as e:  # onnxruntime's exceptions have no common base
        raise UserError(f"{path}: onnxruntime cannot load it: {e}") from e


def _opened(model: str | bytes, *, optimise: bool = False) -> Any:
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]

    ort: Any = onnxruntime
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@cache
def _saturates() -> bool:
    """Checks whether this machine's onnxruntime saturates products of unsigned and signed bytes."""
    model, feeds, wanted = int8_saturation.make_saturation_probe()
    return not np.array_equal(_opened(model).run(None, feeds)[0], wanted)


def infer_types(model: ModelProto, names: Sequence[str]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Returns shapes and float types of tensors as onnxruntime infers them; open shapes and other types are left out.

    It continues after operators that are functions, where onnx's own inference stops.
    """
    asked = ModelProto.FromString(model.SerializeToString())
    add_outputs(asked, names)
    found = {o.name: o for o in create_session(asked.SerializeToString(), Path(model.graph.name)).get_outputs()}
    types = {name: number_type(found[name].type) for name in names}
    return {
        name: (tuple(found[name].shape), dtype)
        for name, dtype in types.items()
        if dtype is not None and dtype.kind == "f" and all(isinstance(size, int) for size in found[name].shape)
    }


def add_outputs(model: ModelProto, names: Iterable[str]) -> tuple[str, ...]:
    """Makes tensors outputs of a model; returns those that were none. onnxruntime infers their types."""
    present = {output.name for output in model.graph.output}
    added = tuple(name for name in names if name not in present)
    model.graph.output.extend(ValueInfoProto(name=name) for name in added)
    return added


def read_model(path: Path) -> ModelProto:
    """Reads an ONNX model. Raises `UserError` if the file holds none."""
    import onnx

    try:
        return onnx.load(str(path))  # pyright: ignore[reportUnknownMemberType]
    except Exception as e:  # exceptions of protobuf and onnx have no common base
        raise UserError(f"{path}: not an ONNX model: {e}") from e
