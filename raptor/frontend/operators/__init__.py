"""Importers of ONNX operators, one module for each family."""

import importlib
import pkgutil
from functools import cache


@cache
def register_all() -> None:
    """Imports every module of this folder; each registers its importers."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
