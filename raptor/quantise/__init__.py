"""Quantisation: turns a float ONNX model into one of integers (QDQ), and says what that costs."""

from raptor.quantise.policy import Policy, PolicySearch
from raptor.quantise.quantisation import Quantisation, QuantisationReport
from raptor.quantise.static import quantize

__all__ = ["Policy", "PolicySearch", "Quantisation", "QuantisationReport", "quantize"]
