"""Typed wrappers of onnxruntime's sessions and of its quantiser, without the quantiser's log messages."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

Array = npt.NDArray[Any]


def run_preprocessing(source: Path, target: Path) -> ModelProto:
    """Folds constants and batch normalisation and infers shapes; writes the model to `target` and returns it.

    Raises one of a dozen exception types if onnxruntime fails.
    """
    with _quietly():
        quant_pre_process(source, target, skip_symbolic_shape=True)
    return onnx.load(str(target))


def run_quantizer(source: Path, target: Path, samples: CalibrationDataReader, options: Mapping[str, Any]) -> ModelProto:
    """Writes the QDQ model to `target` and returns it. Raises one of a dozen exception types if onnxruntime fails."""
    with _quietly():
        quantize_static(source, target, samples, quant_format=QuantFormat.QDQ, **options)
    return onnx.load(str(target))


@contextmanager
def _quietly() -> Generator[None]:
    """Drops log messages inside the block; the quantiser's messages would configure the root logger permanently."""
    root, silence = logging.getLogger(), logging.NullHandler()
    before = root.manager.disable
    root.addHandler(silence)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        root.removeHandler(silence)


class OrtSession:
    """An onnxruntime session with all graph optimisations off."""

    def __init__(self, model: ModelProto) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session: Any = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        self._inputs: list[str] = [i.name for i in self._session.get_inputs()]
        self._outputs: list[str] = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Returns outputs and feeds, keyed by tensor name. Feeds that are not inputs of the model are ignored."""
        values: list[Array] = self._session.run(None, {name: feeds[name] for name in self._inputs})
        return dict(feeds) | dict(zip(self._outputs, values, strict=True))
