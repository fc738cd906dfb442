"""Domains of operators, and sets of operators that are treated alike."""

STANDARD_DOMAINS = ("", "ai.onnx")
CONTRIB_DOMAIN = "com.microsoft"
"""Domain of onnxruntime's own operators, such as those that its quantiser writes."""
QUANTISED_OPS = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
        *("QGemm", "QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat"),
        *("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "DynamicQuantizeLinear"),
    )
)
"""Operators that quantise, dequantise, or compute with quantised integers."""
MOVE_OPS = frozenset(
    (
        *("DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity"),
        *("MaxPool", "Pad", "Reshape", "Resize", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze", "Upsample", "GlobalMaxPool", "Concat", "Cast", "ScatterND"),
        *("ScatterElements", "Scatter", "Trilu", "TensorScatter", "MaxUnpool"),
    )
)
"""Operators whose result elements are operand elements, so that they apply to quantised integers unchanged."""
RANDOM_OPS = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Operators with random results, which are never folded."""
DYNAMIC_QUANT_OPS = frozenset(("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits"))
"""Operators of onnxruntime that multiply float activations by quantised weights."""
