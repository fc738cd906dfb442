"""How `--help` shows arguments and flags: versions of typer differ, and some say `{out}` and `<bool>`."""

from typing import Any


def plain_usage(command: Any) -> Any:
    """The command, and those in it, with arguments in capitals, without braces, and flags without a value.

    Typer brings its own types, so that none of theirs is named here.
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
        plain_usage(inner)
    return command


def _name(parameter: Any) -> Any:
    if parameter is None or parameter.metavar is not None:
        return parameter
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.name.upper()
    elif parameter.is_flag:
        parameter.metavar = ""
    return parameter
