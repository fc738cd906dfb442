"""Models in float64, and again with random errors as large as those of rounding to float32."""

from validator.model.float64.model import Float64Model, NoFloat64Error, load_float64

__all__ = ["Float64Model", "NoFloat64Error", "load_float64"]
