"""Command `raptor models`: lists the model builders, or writes a model as an ONNX file."""

from collections.abc import Sequence
from pathlib import Path

import models
from models.trained import TRAINED
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
    for trained in TRAINED.values():
        table.add_row(trained.name, trained.summary, "")
    LiteralConsole().print(table)


def write_model(name: str, path: Path, *, seed: int, options: Sequence[str], force: bool) -> int:
    """Builds a model, or copies a trained one, and writes it as an ONNX file. Returns its size in bytes.

    Raises `UserError` for an unknown model or option, and options of a trained model; and if the file exists (without
    `force`) or cannot be written.
    """
    if path.exists() and not force:
        raise UserError(f"{path}: exists; choose another with -o, or replace it with --force")
    content = _read_trained(name, seed, options) if name in TRAINED else _build(name, seed, options)
    file_access.write_atomic("-o", path, content)
    return len(content)


def _read_trained(name: str, seed: int, options: Sequence[str]) -> bytes:
    if seed or options:
        raise UserError(f"{name}: a trained model has neither options nor a seed")
    return TRAINED[name].path.read_bytes()


def _build(name: str, seed: int, options: Sequence[str]) -> bytes:
    given: dict[str, models.Value] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"--option {option}: expected NAME=VALUE")
        given[key] = value
    try:
        return models.build(name, seed=seed, **given).SerializeToString(deterministic=True)  # pyright: ignore[reportArgumentType]
    except (models.UnknownModelError, ValueError) as e:
        raise UserError(str(e)) from e
