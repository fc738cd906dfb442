"""QONNX (`Quant`, `BipolarQuant`, `MultiThreshold`, networks of signs) to standard ONNX, before anything else reads it.

The result has QuantizeLinear and DequantizeLinear nodes only, so the compiler, onnxruntime and the definition of the
validator read the same model. Where a quantiser follows a layer of integers, what stands between them (bias, batch
normalisation, Relu) becomes thresholds of the layer's sums: integers, so nothing is rounded.
"""
