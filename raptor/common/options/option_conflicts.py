"""Refuses command-line options that would have no effect."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from raptor.common.errors import UserError

if TYPE_CHECKING:
    import typer


def refuse_options(context: "typer.Context", parameters: Collection[str], reason: str) -> None:
    """Raises `UserError` for the first of these parameters that is on the command line.

    Call this where the parameters would have no effect. `parameters`: names of the command function's arguments.
    """
    for parameter in context.command.params:
        if parameter.name in parameters and is_on_command_line(context, parameter.name or ""):
            raise UserError(f"{max(parameter.opts, key=len)}: {reason}")


def is_on_command_line(context: "typer.Context", parameter: str) -> bool:
    """Returns True if the user gave the parameter on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
