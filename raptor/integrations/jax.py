"""JAX: a function becomes a program through jax2onnx. RAPTOR does not install either.

import raptor

program = raptor.jax.compile(function, (image,), xbar=128, cores=200)
print(raptor.jax.compare(function, (image,), program))
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from raptor import api
from raptor.api import Program
from raptor.common.optional_packages import require_packages
from raptor.common.options import arguments
from raptor.integrations.framework_export import (
    FrameworkComparison,
    flatten_arrays,
    wrap_export_errors,
)
from raptor.integrations.framework_export import compare_export as compare_exported
from raptor.options import CompileKeywords

if TYPE_CHECKING:
    from onnx import ModelProto

_PACKAGES = ("jax", "jaxlib", "jax2onnx")


def compile(function: Callable[..., Any], example_inputs: Any, **options: Unpack[CompileKeywords]) -> Program:
    """Exports a function of arrays to ONNX, and compiles it. Arrays that it closes over become weights.

    `example_inputs`: an array, or a tuple of the arguments; their shapes become those of the program. `options`: those
    of `raptor.compile`.

    Raises `UserError` if JAX or jax2onnx are missing or the function cannot be exported, and the errors of
    `raptor.compile`.
    """
    return api.compile(export(function, example_inputs), **options)


def export(function: Callable[..., Any], example_inputs: Any) -> "ModelProto":
    """Exports a function by `jax2onnx.to_onnx`. Returns the ONNX model. Arguments and errors as for `compile`."""
    with require_packages("raptor.jax", *_PACKAGES):
        jax2onnx: Any = import_module("jax2onnx")
    if not callable(function):
        raise arguments.argument_error("function", function, "a function of arrays")
    examples = flatten_arrays("example_inputs", example_inputs)
    with wrap_export_errors("jax2onnx.to_onnx", *_PACKAGES):
        return jax2onnx.to_onnx(function, examples)


def compare(
    function: Callable[..., Any],
    example_inputs: Any,
    program: Program | None = None,
    *,
    tolerance: float = 1e-4,
    **options: Unpack[CompileKeywords],
) -> FrameworkComparison:
    """Compares the exported model (in onnxruntime) with the function, and the compiled program with the exported model.

    So an error is either the exporter's or RAPTOR's. Without `program`, the function is compiled with `options`.
    Raises the errors of `compile`, and `UserError` if the inputs do not fit.
    """
    tolerance = arguments.parse_finite("tolerance", tolerance, 0)
    model = export(function, example_inputs)
    program = program or api.compile(model, **options)
    examples = flatten_arrays("example_inputs", example_inputs)
    wanted = flatten_arrays("the function's result", function(*examples))
    return compare_exported(model, program, [*map(np.asarray, examples)], [*map(np.asarray, wanted)], tolerance)
