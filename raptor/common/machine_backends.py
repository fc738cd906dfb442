"""Registry of back ends: the machines that `raptor compile --backend` knows, by name."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from raptor.common.entry_points import find_entry_points, load_entry_point
from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option

GROUP = "raptor.backends"
"""Group of the entry points with which other packages add back ends."""
OWN_BACKENDS: Mapping[str, tuple[str, str]] = {
    "pimsim": ("raptor.codegen.pimsim.back_end", "PIMSIM_BACKEND"),
    "c": ("raptor.codegen.c.back_end", "C_BACKEND"),
}
"""Module and name of RAPTOR's own back ends; they are known without an installation."""


_registered: dict[str, Any] = {}


def register_backend(backend: Any) -> None:
    """Adds a back end to this process by its `name`; a package that others install has an entry point instead.

    Raises `UserError` for the name of one of RAPTOR's own.
    """
    if backend.name in OWN_BACKENDS:
        raise UserError(f"{spell_option('backend', backend.name)}: the name of a machine that RAPTOR has")
    _registered[backend.name] = backend


def list_backends() -> tuple[str, ...]:
    """Returns the names of all back ends: RAPTOR's own, then those of installed packages and of this process."""
    others = find_entry_points(GROUP).keys() | _registered.keys()
    return (*OWN_BACKENDS, *sorted(others - OWN_BACKENDS.keys()))


def load_backend(name: str) -> Any:
    """Imports the back end `name` (see `raptor.codegen.machine_backend`).

    Raises `UserError` if there is none, or if the package that has it cannot be imported.
    """
    if name in OWN_BACKENDS:
        module, variable = OWN_BACKENDS[name]
        return getattr(import_module(module), variable)
    if name in _registered:
        return _registered[name]
    installed = find_entry_points(GROUP)
    if name not in installed:
        raise UserError(f"{spell_option('backend', name)}: expected one of: {', '.join(list_backends())}")
    return load_entry_point("back end", installed[name])
