"""Unifies `--help` over versions of typer, some of which show arguments as `{out}` and flags as `<bool>`."""

from typing import Any


def simplify_usage(command: Any) -> Any:
    """Changes a command and its subcommands in place: arguments in capitals, no braces, flags without a value.

    Typer has types of its own for commands and parameters, so they are `Any` here.
    """
    for parameter in command.params:
        _name(parameter)
    pieces, help_option = command.collect_usage_pieces, command.get_help_option

    def without_braces(ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in pieces(ctx)]

    def named(ctx: Any) -> Any:
        return _name(help_option(ctx))

    command.collect_usage_pieces, command.get_help_option = without_braces, named
    for inner in getattr(command, "commands", {}).values():
        simplify_usage(inner)
    return command


def _name(parameter: Any) -> Any:
    if parameter is None or parameter.metavar is not None:
        return parameter
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.name.upper()
    elif parameter.is_flag:
        parameter.metavar = ""
    return parameter
