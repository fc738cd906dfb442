"""Operators of onnxruntime (`com.microsoft`) in language models, expressed in standard ONNX operators."""
