"""Measures quantisation noise: the signal-to-noise ratio of every quantised tensor against the float model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from raptor.tools.quantise.calibration_data import Sample
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.quantise.qdq_pairs import DQ, Q, QdqModel, QdqPair

Array = npt.NDArray[Any]


@dataclass(slots=True)
class SignalNoise:
    """A signal and its error: sums of squares over all samples, of the float values and of the differences."""

    signal: float = 0.0
    noise: float = 0.0

    def accumulate(self, wanted: Array, found: Array) -> None:
        exact = wanted.astype(np.float64)
        self.signal += float(np.square(exact).sum())
        self.noise += float(np.square(exact - found).sum())

    @property
    def decibels(self) -> float | None:
        """Signal-to-noise ratio in dB, 10 log10(signal / noise); None if there is no noise or no signal."""
        if not self.noise or not self.signal:
            return None
        return 10 * math.log10(self.signal / self.noise)


@dataclass(slots=True)
class TensorNoise:
    """Noise of a tensor: `total` with all layers quantised; `own` if its layer reads quantised reference values."""

    total: SignalNoise = field(default_factory=SignalNoise)
    own: SignalNoise = field(default_factory=SignalNoise)


def measure_noise(
    floats: ModelProto, model: ModelProto, samples: Sequence[Sample]
) -> tuple[dict[str, TensorNoise], SignalNoise]:
    """Runs both models with optimisations off; returns the noise of each quantised tensor, and of the outputs."""
    pairs = list(QdqModel(model).layer_pairs())
    ends = [v.name for v in model.graph.output]
    reference = OrtSession(with_outputs(floats, [p.tensor for p in pairs]))
    whole = OrtSession(with_outputs(model, [p.restored for p in pairs]))
    forced = OrtSession(_isolated_layers(model, pairs))
    costs, outputs = {p.tensor: TensorNoise() for p in pairs}, SignalNoise()
    for sample in samples:
        wanted, found = reference.run(sample), whole.run(sample)
        feeds = sample | {_input_name(p): wanted[p.tensor] for p in pairs if p.producer is not None}
        alone = forced.run(feeds)
        for pair in pairs:
            costs[pair.tensor].total.accumulate(wanted[pair.tensor], found[pair.restored])
            costs[pair.tensor].own.accumulate(wanted[pair.tensor], alone[_output_name(pair)])
        for name in ends:
            outputs.accumulate(wanted[name], found[name])
    return costs, outputs


class OutputNoise:
    """Outputs of a float model on some samples, as the reference for quantised versions of the model."""

    def __init__(self, floats: ModelProto, samples: Sequence[Sample]) -> None:
        self.samples, self.names = samples, [v.name for v in floats.graph.output]
        reference = OrtSession(floats)
        self.wanted = [reference.run(sample) for sample in samples]

    def measure_share(self, model: ModelProto) -> float:
        """Returns the output noise of a quantised model as a share of the float outputs' sum of squares."""
        session, found = OrtSession(model), SignalNoise()
        for sample, wanted in zip(self.samples, self.wanted, strict=True):
            values = session.run(sample)
            for name in self.names:
                found.accumulate(wanted[name], values[name])
        return found.noise / found.signal if found.signal else 0.0

    def largest_difference(self, model: ModelProto) -> float:
        """Returns the largest difference of an output element, as a share of the largest element of that output."""
        session, largest = OrtSession(model), 0.0
        values = [session.run(sample) for sample in self.samples]
        for name in self.names:
            top = max(float(np.abs(wanted[name]).max()) for wanted in self.wanted)
            gaps = (np.abs(w[name] - v[name]).max() for w, v in zip(self.wanted, values, strict=True))
            largest = max(largest, float(max(gaps)) / (top or 1.0))
        return largest


def with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Returns a copy with the tensors `names` as additional outputs, except model inputs, whose values are known."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {v.name for v in (*model.graph.output, *model.graph.input)}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    return copy


def _isolated_layers(model: ModelProto, pairs: Sequence[QdqPair]) -> ModelProto:
    """Returns a copy in which each layer reads the float model's values, quantised, so that only its own noise remains.

    Each QuantizeLinear reads a new model input instead of its layer's result; a Q/DQ pair after the layer is an output.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    fed = {p.quantise.name: _input_name(p) for p in pairs if p.producer is not None}
    for node in copy.graph.node:
        if node.op_type == Q and node.name in fed:
            node.input[0] = fed[node.name]
    copy.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in fed.values())
    del copy.graph.output[:]
    for pair in pairs:
        copy.graph.node.extend(_requantised_output(pair))
        copy.graph.output.append(ValueInfoProto(name=_output_name(pair)))
    return copy


def _requantised_output(pair: QdqPair) -> Iterator[Any]:
    quantise, domain, codes = pair.quantise, pair.quantise.domain, f"{pair.tensor}.codes"
    yield helper.make_node(Q, [pair.source, *quantise.input[1:]], [codes], domain=domain)
    yield helper.make_node(DQ, [codes, *quantise.input[1:]], [_output_name(pair)], domain=domain)


def _input_name(pair: QdqPair) -> str:
    return f"{pair.tensor}.float"


def _output_name(pair: QdqPair) -> str:
    return f"{pair.tensor}.alone"
