"""Quantised models by onnxruntime's quantiser, and their comparison with onnxruntime."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from raptor.frontend import LoadedModel, load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Tensor
from tests.tiny_models import Array, golden, random


class _Samples(CalibrationDataReader):
    def __init__(self, model: ModelProto, count: int = 4) -> None:
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        self._left: Iterator[dict[str, Array]] = iter(
            [{n: random(*s, seed=seed) for n, s in shapes.items()} for seed in range(count)]
        )

    def get_next(self) -> dict[str, Array]:
        return next(self._left, None)  # pyright: ignore[reportReturnType]


def quantise(
    model: ModelProto,
    folder: Path,
    *,
    form: str = "QDQ",
    activations: str = "QInt8",
    weights: str = "QInt8",
    **more: Any,
) -> ModelProto:
    """Writes a float model in integers, as `onnxruntime.quantization.quantize_static` does."""
    source, target = folder / "float.onnx", folder / "quantised.onnx"
    onnx.save(model, source)
    quantize_static(
        source,
        target,
        _Samples(model),
        quant_format=QuantFormat[form],
        activation_type=QuantType[activations],
        weight_type=QuantType[weights],
        **more,
    )
    return onnx.load(target)


def encode(tensor: Tensor, values: Array) -> Array:
    """Returns the elements on the chip for values of the model's tensor."""
    coding = tensor.coding
    if coding is None:
        return values
    if not coding.scale:
        return values.astype(np.int64) - coding.offset
    scale, zero = (_spread(tensor, v) for v in (coding.scale, coding.zero_point))
    rounded = np.rint(values / scale.astype(np.float32)) + zero
    return np.clip(rounded, tensor.element.low, tensor.element.high).astype(np.int64)


def decode(tensor: Tensor, elements: Array) -> Array:
    """Returns the values of the model's tensor for elements on the chip."""
    coding = tensor.coding
    if coding is None:
        return elements
    if not coding.scale:
        return elements + coding.offset
    scale, zero = (_spread(tensor, v) for v in (coding.scale, coding.zero_point))
    return (elements - zero).astype(np.float32) * scale.astype(np.float32)


def _spread(tensor: Tensor, values: tuple[float, ...]) -> Array:
    coding = tensor.coding
    assert coding is not None
    if coding.axis is None:
        return np.asarray(values)
    return np.asarray(values).reshape(*(1,) * coding.axis, -1, *(1,) * (len(tensor.shape) - coding.axis - 1))


def samples(model: LoadedModel, seed: int = 7) -> dict[str, Array]:
    """Returns random inputs of the model, floats or integers of the whole range of their type."""
    inputs: dict[str, Array] = {}
    for i, name in enumerate(model.graph.inputs):
        tensor = model.graph.tensors[name]
        inputs[name] = random(*tensor.shape, seed=seed + i)
        if tensor.coding is not None and not tensor.coding.scale:
            whole = np.random.default_rng(seed + i).integers(
                tensor.element.low, tensor.element.high, tensor.shape, endpoint=True
            )
            inputs[name] = (whole + tensor.coding.offset).astype(onnx_type(tensor.coding.dtype))
    return inputs


def onnx_type(name: str) -> Any:
    """Returns numpy's type of ONNX's integers."""
    return onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, name.upper()))


def run(
    model: LoadedModel, inputs: Mapping[str, Array], instead: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Returns the values of all tensors of the model, computed from the graph; readers see the values `instead`."""
    tensors = model.graph.tensors
    seen = {n: encode(tensors[n], v) for n, v in (instead or {}).items()}
    elements = evaluate_graph(model.graph, {n: encode(tensors[n], v) for n, v in inputs.items()}, seen)
    return {n: decode(tensors[n], v) for n, v in elements.items()}


def compare(proto: ModelProto, *, tolerance: float = 2e-5, off: float = 0.002) -> LoadedModel:
    """Loads a model and compares all its tensors with onnxruntime, each computed from onnxruntime's operands.

    Integers differ by at most one, where a float of onnxruntime is rounded near a tie. off: largest part of the
    integers of a tensor that may differ, if it has more than some hundred.
    """
    model = load(proto)
    model.graph.verify()
    inputs, tensors = samples(model), model.graph.tensors
    known = [n for n, t in tensors.items() if t.in_model and n not in model.graph.inputs]
    judge = golden(proto, inputs, known)
    found = run(model, inputs, judge)
    for name, wanted in judge.items():
        tensor = tensors[name]
        assert tensor.shape == wanted.shape, name
        if tensor.element.kind == "float":
            np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)
            continue
        coding = tensor.coding
        assert coding is not None, name
        step = np.asarray(coding.scale or (1.0,)).max()
        apart = np.abs(found[name].astype(np.float64) - wanted.astype(np.float64)) / step
        assert apart.max() <= 1 + 1e-3, (name, apart.max())
        assert (apart > 0.5).sum() <= max(1, off * apart.size), (name, (apart > 0.5).mean())
    return model
