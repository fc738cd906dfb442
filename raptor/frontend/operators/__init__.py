"""Importers of ONNX operators, one module per family."""

import importlib
import pkgutil
from functools import cache


@cache
def register_all() -> None:
    """Imports every module of this package and its rooms, which registers their importers and rules."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
