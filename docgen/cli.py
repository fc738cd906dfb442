"""Writes docs/reference/cli.md: every command with its `--help`."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import raptor.tools.cli.app
from docgen.markdown import GENERATED_NOTE, format_code, format_table

COMMAND_ORDER = ("models", "quantize", "inspect", "compile", "validate", "simulate", "check", "arch")
"""Commands in the order in which a newcomer needs them; others follow in the order of `raptor --help`."""

HEAD = f"""# Command line

{GENERATED_NOTE.format("the commands themselves (`raptor --help`)")}
Every command has the exit status 0 for success, 2 if the input is wrong, and 70 for a bug in RAPTOR. Other statuses
are in the description of the command, and all of them are in the
[questions](../how-to/faq.md#what-does-the-exit-status-mean).
A command that is stopped by Ctrl-C (130) or SIGTERM (143) leaves nothing half written. `--debug`, at any place of the
line, shows the traceback of an error. `raptor --install-completion` adds completion of commands and options to your
shell; open a new shell afterwards.

The examples of this page work in an empty directory, from top to bottom.
"""


def render_page() -> str:
    group = _commands(raptor.tools.cli.app.build_commands())
    names = [*(name for name in COMMAND_ORDER if name in group), *(name for name in group if name not in COMMAND_ORDER)]
    return "\n".join([HEAD, *(_section(f"raptor {name}", group[name]) for name in names)])


def _commands(command: Any) -> dict[str, Any]:
    """Returns the subcommands by name; {} for a plain command. Typer has types of its own, so they are `Any`."""
    return dict(getattr(command, "commands", {}))


def _section(name: str, command: Any) -> str:
    inner = _commands(command)
    text, example = split_help(command)
    parts = [f"## {name}\n\n{text}\n"]
    if example:
        parts.append(f"```console\n$ {example}\n...\n```\n")
    if rows := list(_rows(command)):
        parts.append(format_table(("argument or option", "default", "meaning"), rows))
    return "\n".join(parts + [_section(f"{name} {sub}", inner[sub]) for sub in inner])


def split_help(command: Any) -> tuple[str, str]:
    """Splits the help text of a command into description and example."""
    text, _, example = inspect.cleandoc(command.help or "").partition("\n\nExample: ")
    return text, example


def _rows(command: Any) -> Iterator[tuple[str, str, str]]:
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = format_code(parameter.metavar)
        else:
            name = ", ".join(format_code(option) for option in parameter.opts)
        yield name, format_code(_default(parameter)), _sentence(parameter.help or "")


def _default(parameter: Any) -> str:
    """Returns the default as `--help` shows it."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.show_default is False or parameter.default is None or parameter.default is False:
        return ""
    return str(getattr(parameter.default, "value", parameter.default))


def _sentence(text: str) -> str:
    return re.sub(r"\s+", " ", text)
