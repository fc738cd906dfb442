"""Post-training quantisation: turns a float ONNX model into a QDQ model of integers and measures the added noise."""

from raptor.tools.quantise.policy import Policy, PolicySearch
from raptor.tools.quantise.quantisation import Quantisation, QuantisationReport
from raptor.tools.quantise.static_quantisation import quantize

__all__ = ["Policy", "PolicySearch", "Quantisation", "QuantisationReport", "quantize"]
