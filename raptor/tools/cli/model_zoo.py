"""Command `raptor models`: lists the model builders, or writes a model as an ONNX file."""

from collections.abc import Sequence
from pathlib import Path

import models
from raptor.common.errors import UserError
from raptor.common.files import file_access


def show_models() -> None:
    """Prints every model with its options."""
    from rich.table import Table

    from raptor.common.terminal.console import LiteralConsole

    table = Table(box=None, pad_edge=False)
    for column in ("model", "what", "options"):
        table.add_column(column, overflow="fold")
    for spec in models.MODELS.values():
        options = ", ".join(f"{name}={o.default}" for name, o in spec.options.items())
        table.add_row(spec.name, spec.summary, options)
    LiteralConsole().print(table)


def write_model(name: str, path: Path, *, seed: int, options: Sequence[str], force: bool) -> int:
    """Builds a model and writes it as an ONNX file. Returns its size in bytes.

    Raises `UserError` for an unknown model or option, and if the file exists (without `force`) or cannot be written.
    """
    if path.exists() and not force:
        raise UserError(f"{path}: exists; choose another with -o, or replace it with --force")
    given: dict[str, models.Value] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"--option {option}: expected NAME=VALUE")
        given[key] = value
    try:
        content = models.build(name, seed=seed, **given).SerializeToString(deterministic=True)  # pyright: ignore[reportArgumentType]
    except (models.UnknownModelError, ValueError) as e:
        raise UserError(str(e)) from e
    file_access.write_atomic("-o", path, content)
    return len(content)
