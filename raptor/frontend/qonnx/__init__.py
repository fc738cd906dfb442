"""Translates QONNX (`Quant`, `BipolarQuant`, `MultiThreshold`) and networks of Sign to standard quantised ONNX.

The result has QuantizeLinear and DequantizeLinear nodes only, so that compiler, onnxruntime and validator read the same
model. Where a quantiser follows an integer layer, the operators between them (bias, batch normalisation, Relu) are
absorbed into integer thresholds on the layer's sums, so that nothing is rounded.
"""
