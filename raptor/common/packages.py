"""RAPTOR's packages `validator` and `models` have names that others use too: whose they are is looked at before use."""

import sys
from importlib.util import find_spec
from pathlib import Path

from raptor.common.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]
"""Where all of RAPTOR's packages lie, in a checkout and installed."""


def require_own(*names: str) -> None:
    """Raises `UserError` if `import` of one of these would give, or has given, what is not RAPTOR's."""
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
    """The folder of a package, or the file of a module, that `import` gives; None without any."""
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
