"""Static quantisation with onnxruntime's quantiser, and the measurement of its noise."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from onnx import ModelProto, TensorProto, numpy_helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.common.options.option_values import QuantisationScheme, parse_states, parse_widths
from raptor.frontend.proto.model_checks import extract_fault
from raptor.frontend.proto.nodes import read_attributes
from raptor.options import InputKeywords, ModelInputs, read_options
from raptor.tools.quantise.calibration_data import (
    Sample,
    SampleReader,
    random_samples,
    read_sampled_inputs,
    read_samples,
)
from raptor.tools.quantise.mixed_precision import change_widths, find_weighted_layers
from raptor.tools.quantise.noise import TensorNoise, measure_noise
from raptor.tools.quantise.options import ALL_BITS_OPSET, QuantisationChoice, make_weight_policy, parse_choice
from raptor.tools.quantise.ort_quantizer import run_quantizer
from raptor.tools.quantise.policy import Policy, PolicySearch, parse_policy
from raptor.tools.quantise.pow2_scales import round_scales_to_powers
from raptor.tools.quantise.prepare_model import PreparedFloats, prepare_floats
from raptor.tools.quantise.qdq_pairs import DQ, QdqModel, QdqPair
from raptor.tools.quantise.quantisation import FloatNode, Quantisation, QuantisationReport, QuantisedLayer
from raptor.tools.quantise.state_scales import (
    find_model_states,
    make_step_samples,
    quantise_other_ends,
    share_state_scales,
)

RANDOM_SAMPLES = 16
"""Default number of random samples. More samples hardly change the range of a normal input."""

NO_SCALES: Mapping[str, Any] = {}
_BITS: Mapping[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
}


@dataclass(frozen=True, slots=True, eq=False)
class CalibratedModel:
    """A prepared float model, its samples, and its QDQ form.

    `base`: the QDQ model, with the same bits in all layers. `origin`: fields of the report on the source of the
    samples.
    """

    prepared: PreparedFloats
    choice: QuantisationChoice
    samples: Sequence[Sample]
    base: ModelProto
    origin: Mapping[str, Any]

    def quantise(self, policy: Policy) -> ModelProto:
        """Returns the QDQ model with the bits of a policy. Raises `UserError` for unknown layers."""
        model = ModelProto()
        model.CopyFrom(self.base)
        if policy.weights or policy.inputs:
            change_widths(model, self.prepared.proto, policy.weights, policy.inputs)
        if self.choice.scheme == "pow2":
            round_scales_to_powers(model, self.prepared.proto)
        return model


def quantize(
    model: "str | Path | ModelProto",
    *,
    data: str | Path | None = None,
    weights: int = 8,
    activations: int = 8,
    scheme: QuantisationScheme = "s8s8",
    per_channel: bool = False,
    layers: Mapping[str, int] | None = None,
    policy: str | Path | Policy | PolicySearch | None = None,
    seed: int = 0,
    samples: int | None = None,
    states: Mapping[str, str] | str | None = None,
    **inputs: Unpack[InputKeywords],
) -> Quantisation:
    """Quantises a float ONNX model to integers, in the form of QuantizeLinear and DequantizeLinear (QDQ).

    Ranges come from `data`, an .npz file with an array for each input, or else from standard normal inputs made from
    `seed`. `samples` is the number of samples: 16 random ones by default, or all of the file. `weights` are bits, 8 or
    4; `activations` 8 or 16. `scheme`: `s8s8` (signed, symmetric), `u8s8` (activations unsigned, with a zero point) or
    `pow2` (signed, symmetric, every scale a power of two). `per_channel`: a scale for each output channel of a weight.
    `layers`: bits of weights, keyed by layer name, that override `weights`. `policy`: bits of weights and inputs of
    single layers, as a file or a result of `search_policy`. `states`: output that is the next value of an input, as for
    `compile`: both get one scale, and samples are steps of sequences, in which the float model makes the states. Then
    `data` has arrays [steps, ...] or [sequences, steps, ...]. `shapes`, `dims` and `constants`: as for `compile`.

    Raises `UserError` that says what to change.
    """
    if layers is not None and policy is not None:
        raise UserError(f"{spell_option('layers')}: not with {spell_option('policy')}, which has the bits of layers")
    of_layers = (
        make_weight_policy(parse_widths("layers", {} if layers is None else layers))
        if policy is None
        else parse_policy(policy)
    )
    choice = parse_choice(scheme, weights, activations, per_channel, of_layers)
    given = CalibrationRequest(data, seed, samples, read_options(ModelInputs, inputs, InputKeywords), states)
    return _result(calibrate_model(model, choice, given), policy if isinstance(policy, PolicySearch) else None)


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Samples and input shapes as the caller passes them, not yet checked."""

    data: object
    seed: object
    samples: object
    inputs: ModelInputs
    states: object = None


def calibrate_model(
    model: "str | Path | ModelProto", choice: QuantisationChoice, given: CalibrationRequest, *, any_bits: bool = False
) -> CalibratedModel:
    """Prepares a float model, measures the ranges of its tensors, and quantises all layers with the same bits.

    `any_bits`: choose the operator set that supports all bits, because other policies will be applied later.

    Raises `UserError` that says what to change.
    """
    file = arguments.parse_optional_path("data", given.data)
    count = arguments.parse_optional_integer("samples", given.samples, 1)
    seed = arguments.parse_integer("seed", given.seed, 0)
    with tempfile.TemporaryDirectory(prefix="raptor-") as folder:
        prepared = prepare_floats(model, given.inputs, ALL_BITS_OPSET if any_bits else choice.opset, Path(folder))
        inputs = read_sampled_inputs(prepared.proto)
        states = find_model_states(prepared.proto, {} if given.states is None else parse_states("states", given.states))
        if states:
            wanted = count or (RANDOM_SAMPLES if file is None else None)
            samples = make_step_samples(prepared.proto, inputs, states, file, seed, wanted)
        elif file is None:
            samples = random_samples(inputs, seed, count or RANDOM_SAMPLES)
        else:
            samples = read_samples(file, inputs, count)
        if choice.per_channel:
            _check_per_channel(prepared.proto)
        base = _quantise_floats(prepared.proto, choice, samples, Path(folder))
        if scales := share_state_scales(base, states):
            base = _quantise_floats(prepared.proto, choice, samples, Path(folder), scales)
        quantise_other_ends(base, states)
    origin = {"data": None if file is None else str(file), "seed": seed if file is None else None}
    return CalibratedModel(prepared, choice, samples, base, origin)


def _check_per_channel(floats: ModelProto) -> None:
    """Raises `UserError` with the nodes whose bias onnxruntime's quantiser cannot scale per channel."""
    found = [
        f"{node.name} ({node.op_type}): {spell_option('per_channel', True)} is not for a bias of {groups} groups"
        for node in floats.graph.node
        if node.op_type == "ConvTranspose"
        and len(node.input) > 2
        and (groups := read_attributes(node).get("group", 1)) > 1
    ]
    if found:
        raise UserError("\n".join([*found, "leave it out, or add the bias by an Add of its own"]))


def _quantise_floats(
    floats: ModelProto,
    choice: QuantisationChoice,
    samples: Sequence[Sample],
    folder: Path,
    scales: Mapping[str, Any] = NO_SCALES,
) -> ModelProto:
    """Returns the QDQ model with the same bits in all layers. `scales`: of tensors that shall not have their own."""
    source, target = folder / "floats.onnx", folder / "quantised.onnx"
    source.write_bytes(floats.SerializeToString())
    try:
        model = run_quantizer(source, target, SampleReader(samples), choice.to_ort_arguments(scales))
    except Exception as error:  # the quantiser and onnxruntime raise a dozen types that have only Exception in common
        raise UserError(f"onnxruntime cannot quantise the model{_hint(choice)}: {extract_fault(error)}") from None
    if not any(n.op_type == DQ for n in model.graph.node):
        raise UserError("nothing to quantise: onnxruntime's quantiser left every layer in float")
    if choice.weights == 4:
        # onnxruntime's codes are -8 to 7. The magnitude 8 takes a bit more, which cells would use for one code only.
        change_widths(model, floats, dict.fromkeys(find_weighted_layers(model), 4), {})
    return model


def _hint(choice: QuantisationChoice) -> str:
    """Names the options with unusual values, which are often the reason why the quantiser fails."""
    unusual = [spell_option("weights", choice.weights)] * (choice.weights != 8)
    unusual += [spell_option("activations", choice.activations)] * (choice.activations != 8)
    unusual += [spell_option("per_channel", True)] * choice.per_channel
    return f" with {', '.join(unusual)}" if unusual else ""


def _result(source: CalibratedModel, search: PolicySearch | None) -> Quantisation:
    prepared, choice, samples = source.prepared, source.choice, source.samples
    model = source.quantise(choice.policy)
    onnx_bytes = model.SerializeToString(deterministic=True)
    costs, outputs = measure_noise(prepared.proto, model, samples)
    found = QdqModel(model)
    report = QuantisationReport(
        model=prepared.name,
        scheme=choice.scheme,
        weights=choice.weights,
        activations=choice.activations,
        per_channel=choice.per_channel,
        samples=len(samples),
        float_bytes=prepared.proto.ByteSize(),
        quantised_bytes=len(onnx_bytes),
        snr_db=outputs.decibels,
        layers=tuple(_layer(pair, found, costs[pair.tensor]) for pair in found.layer_pairs()),
        floats=tuple(FloatNode(node=n.name, op_type=n.op_type) for n in found.float_nodes()),
        notes=prepared.notes,
        search=search,
        **source.origin,
    )
    return Quantisation(onnx_bytes, report)


def _layer(pair: QdqPair, found: QdqModel, cost: TensorNoise) -> QuantisedLayer:
    node = pair.producer
    scale, zero_point = (numpy_helper.to_array(found.constants[name]) for name in pair.quantise.input[1:3])
    return QuantisedLayer(
        node=node.name if node else pair.tensor,
        op_type=pair.op_type,
        tensor=pair.tensor,
        bits=_BITS[found.constants[pair.quantise.input[2]].data_type],
        weight_bits=min(_weight_bits(found, node.input), default=None) if node else None,
        scale=float(scale),
        zero_point=int(zero_point),
        snr_db=cost.total.decibels,
        own_snr_db=cost.own.decibels,
    )


def _weight_bits(found: QdqModel, names: Sequence[str]) -> Iterator[int]:
    """Yields the bits of a layer's quantised weights; a bias, which has 32 bits, does not count."""
    for name in names:
        producer = found.producers.get(name)
        source = found.constants.get(producer.input[0]) if producer and producer.op_type == DQ else None
        if source is not None and source.data_type in _BITS:
            yield _BITS[source.data_type]
