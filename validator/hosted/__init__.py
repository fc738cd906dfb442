"""Programs in segments: some run on the chip, the others in onnxruntime on the host."""
