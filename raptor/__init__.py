"""RAPTOR compiles ONNX models to multicore ReRAM crossbar accelerators and proves the result.

    import raptor

    program = raptor.compile("resnet18.onnx", xbar=128, cores=200)
    program.save("out")
    assert program.validate().passed

Importing this package is cheap: the compiler is loaded at the first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from raptor.errors import CapacityError, InternalError, RaptorError, UnsupportedError, UserError

if TYPE_CHECKING:
    from raptor.program import Program, compile, load

# onnxruntime would write below ~/.cache/Microsoft and report to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

__all__ = [
    "CapacityError",
    "InternalError",
    "Program",
    "RaptorError",
    "UnsupportedError",
    "UserError",
    "__version__",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("Program", "compile", "load"):
        return getattr(import_module("raptor.program"), name)
    raise AttributeError(f"module 'raptor' has no attribute {name!r}")
