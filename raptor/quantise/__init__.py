"""Post-training quantisation: turns a float ONNX model into a QDQ model of integers and measures the added noise."""

from raptor.quantise.policy import Policy, PolicySearch
from raptor.quantise.quantisation import Quantisation, QuantisationReport
from raptor.quantise.static import quantize

__all__ = ["Policy", "PolicySearch", "Quantisation", "QuantisationReport", "quantize"]
