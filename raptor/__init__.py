"""RAPTOR compiles ONNX models for chips of ReRAM crossbars and compares the result with onnxruntime.

    import raptor

    program = raptor.compile("resnet18.onnx", xbar=128, cores=200)
    program.save("out")
    assert program.validate().passed

Importing this package is cheap: the compiler is loaded at the first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from raptor.common.errors import (
    CapacityError,
    InternalError,
    RaptorError,
    UnsupportedError,
    UserError,
)

if TYPE_CHECKING:
    from raptor import device as device
    from raptor.api import (
        Program,
        compile,
        load,
        simulate,
    )
    from raptor.compiler.analysis.inspection import inspect
    from raptor.integrations import jax as jax
    from raptor.integrations import onnx_backend, onnxruntime_session
    from raptor.integrations import torch as torch
    from raptor.integrations.decoder_session import Session
    from raptor.tools.quantise import Quantisation, quantize
    from raptor.tools.quantise.precision_search import search_policy
    from raptor.tools.trim.trim_output import TrimmedProgram, trim

    backend, session = onnx_backend, onnxruntime_session

# onnxruntime would write below ~/.cache/Microsoft and report to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

__all__ = [
    "CapacityError",
    "InternalError",
    "Program",
    "Quantisation",
    "RaptorError",
    "Session",
    "TrimmedProgram",
    "UnsupportedError",
    "UserError",
    "__version__",
    "compile",
    "inspect",
    "load",
    "quantize",
    "search_policy",
    "simulate",
    "trim",
]

_HOMES = dict.fromkeys(("Program", "compile", "load", "simulate"), "raptor.api") | {
    "Session": "raptor.integrations.decoder_session",
    "inspect": "raptor.compiler.analysis.inspection",
    "Quantisation": "raptor.tools.quantise",
    "quantize": "raptor.tools.quantise",
    "search_policy": "raptor.tools.quantise.precision_search",
    "TrimmedProgram": "raptor.tools.trim.trim_output",
    "trim": "raptor.tools.trim.trim_output",
}


_MODULES = {
    "backend": "raptor.integrations.onnx_backend",
    "device": "raptor.device",
    "jax": "raptor.integrations.jax",
    "session": "raptor.integrations.onnxruntime_session",
    "torch": "raptor.integrations.torch",
}
"""Modules that are attributes of this package, loaded at the first use."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'raptor' has no attribute {name!r}")
