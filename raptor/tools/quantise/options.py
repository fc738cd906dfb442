"""Options of quantisation: bit widths, and how scales and zero points are chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxruntime.quantization import QuantType

from raptor.common.options import arguments
from raptor.common.options.option_values import SCHEME, QuantisationScheme
from raptor.tools.quantise.policy import Policy

NO_POLICY = Policy()
ALL_BITS_OPSET = 21
"""Oldest operator set whose QuantizeLinear supports 4 and 16 bits."""
WEIGHT_BITS = (8, 4)
ACTIVATION_BITS = (8, 16)
_TYPES = {
    (False, 8): QuantType.QInt8,
    (False, 16): QuantType.QInt16,
    (True, 8): QuantType.QUInt8,
    (True, 16): QuantType.QUInt16,
}


@dataclass(frozen=True, slots=True)
class QuantisationChoice:
    """A quantisation scheme and its bit widths. Weights are signed and symmetric (zero point 0) in every scheme.

    `s8s8`: activations are signed and symmetric as well. `u8s8`: activations are unsigned and have a zero point.
    `pow2`: like `s8s8`, with every scale a power of two. The 8 in the names is the usual width. `policy`: bits of
    single layers, which override `weights` and `activations`.
    """

    scheme: QuantisationScheme = "s8s8"
    weights: int = 8
    activations: int = 8
    per_channel: bool = False
    policy: Policy = NO_POLICY

    @property
    def opset(self) -> int:
        """Oldest operator set that supports the choice: 13 has scales per channel, 21 has 4 and 16 bits."""
        of_layers = {*self.policy.weights.values(), *self.policy.inputs.values()}
        widths = {self.weights, self.activations, *of_layers}
        return ALL_BITS_OPSET if widths != {8} else 13

    def to_ort_arguments(self, scales: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the equivalent keyword arguments of onnxruntime's `quantize_static`. `scales`: of some tensors."""
        unsigned = self.scheme == "u8s8"
        return {
            "weight_type": QuantType.QInt8 if self.weights == 8 else QuantType.QInt4,
            "activation_type": _TYPES[unsigned, self.activations],
            "per_channel": self.per_channel,
            "extra_options": {
                "ActivationSymmetric": not unsigned,
                "WeightSymmetric": True,
                **({"TensorQuantOverrides": dict(scales)} if scales else {}),
            },
        }


def parse_choice(
    scheme: object, weights: object, activations: object, per_channel: object, policy: Policy
) -> QuantisationChoice:
    """Returns the checked choice. Raises `UserError` that names the option with an invalid value."""
    return QuantisationChoice(
        SCHEME.parse(scheme),
        _width("weights", weights, WEIGHT_BITS),
        _width("activations", activations, ACTIVATION_BITS),
        arguments.parse_flag("per_channel", per_channel),
        policy,
    )


def make_weight_policy(layers: Mapping[str, object]) -> Policy:
    """Returns a policy with these bits of weights, keyed by layer name. Raises `UserError` for an invalid width."""
    return Policy.model_validate({"weights": {n: _width("layers", bits, WEIGHT_BITS) for n, bits in layers.items()}})


def _width(keyword: str, value: object, widths: tuple[int, ...]) -> int:
    expected = " or ".join(map(str, widths))
    number = arguments.parse_integer(keyword, value, 1, expected=expected)
    if number not in widths:
        raise arguments.argument_error(keyword, value, expected)
    return number
