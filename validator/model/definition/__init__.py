"""The definition: the integers that an ONNX model means, computed from the model itself without rounding.

An integer tensor is an array of its own type. A tensor between DequantizeLinear and QuantizeLinear is a `ExactReal`: a
sum of integers times float32 scales, without rounding. QuantizeLinear, and the QLinear operators, round it once and
exactly (`rounding`). Nodes whose results have no such form are float sections, which onnxruntime computes (`sections`).
Nothing here knows the compiler."""
