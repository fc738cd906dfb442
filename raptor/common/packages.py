"""Check of import names: other projects, too, have packages called `validator` and `models`."""

import sys
from importlib.util import find_spec
from pathlib import Path

from raptor.common.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds all packages of RAPTOR, in a checkout and when installed."""


def require_own(*names: str) -> None:
    """Raises `UserError` if `import` of one of these names would find, or has found, a package that is not RAPTOR's."""
    for name in names:
        found = _origin(name)
        if found is None:
            raise UserError(f"RAPTOR's package {name!r} is not at {_ROOT}: install RAPTOR again")
        if found != _ROOT / name:
            raise UserError(
                f"{found} is in the way of RAPTOR's own package {name!r}: rename it, or run RAPTOR where Python does "
                "not find it: in another folder, without PYTHONPATH"
            )


def _origin(name: str) -> Path | None:
    """Returns the folder of a package, or the file of a module, that `import` finds; None if it finds nothing."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module else find_spec(name)
    except ValueError:  # made by hand, it has none
        spec = None
    file = (spec.origin if spec else None) or getattr(module, "__file__", None)
    if file is not None:
        path = Path(file).resolve()
        return path.parent if path.name == "__init__.py" else path
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]).resolve() if folders else None
