"""Importers of ONNX operators, one module per family."""

import importlib
import pkgutil
from functools import cache


@cache
def register_all() -> None:
    """Imports every module of this package, which registers its importers and rules."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
