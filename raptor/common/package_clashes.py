"""Checks for name clashes with other projects: packages `validator` and `models`, and a distribution `raptor`."""

import sys
from importlib.util import find_spec
from pathlib import Path

from raptor.common.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]
"""Folder that contains all packages of RAPTOR, in a checkout and when installed."""
_OLD_NAME = "raptor"
"""Former name of the distribution `raptor-crossbar`; on the package index it belongs to another project."""
_COMMAND = "raptor = raptor.__main__:main"
_MOST_CHARACTERS = 10_000
"""Characters of a list of entry points that are read at most."""


def warn_old_distribution() -> str | None:
    """Returns a warning if RAPTOR is also installed under its former name, which owns the same files; else None.

    pip does not replace a distribution by one of another name, and `pip uninstall` deletes all files that it lists.
    """
    for folder in map(Path, dict.fromkeys(sys.path)):
        for file in folder.glob(f"{_OLD_NAME}-*.dist-info/entry_points.txt"):
            if _COMMAND in _beginning(file).splitlines():
                return (
                    f"{file.parent} is RAPTOR by its old name {_OLD_NAME!r}; to uninstall it later would remove files "
                    "of raptor-crossbar: run `pip uninstall raptor` now, then install raptor-crossbar again with "
                    "--force-reinstall --no-deps"
                )
    return None


def _beginning(path: Path) -> str:
    """Returns the first characters of a file; empty if it cannot be read."""
    try:
        with path.open(errors="replace") as file:
            return file.read(_MOST_CHARACTERS)
    except OSError:
        return ""


def require_own_packages(*names: str) -> None:
    """Raises `UserError` if one of these names is imported, or would be imported, from another project."""
    for name in names:
        origin = _origin(name)
        if origin is None:
            raise UserError(f"RAPTOR's package {name!r} is not at {_ROOT}: install RAPTOR again")
        if origin != _ROOT / name:
            raise UserError(
                f"{origin} is in the way of RAPTOR's own package {name!r}: rename it, or run RAPTOR where Python does "
                "not find it: in another folder, without PYTHONPATH"
            )


def _origin(name: str) -> Path | None:
    """Returns the folder of a package, or the file of a module, that `import` finds; None if it finds nothing."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module else find_spec(name)
    except ValueError:  # a module that was made by hand has no spec
        spec = None
    file = (spec.origin if spec else None) or getattr(module, "__file__", None)
    if file is not None:
        path = Path(file).resolve()
        return path.parent if path.name == "__init__.py" else path
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]).resolve() if folders else None
