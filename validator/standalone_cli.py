"""Command lines that need no `raptor`: `python -m validator` and `python -m validator.checks`."""

import sys
from collections.abc import Callable, Sequence

import typer

from raptor.common.errors import RaptorError
from raptor.common.option_spelling import spell_as_flags
from raptor.common.terminal.escaping import escape_unprintable


@spell_as_flags()
def run_alone(command: Callable[..., None], name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs `command` under `name` and returns its exit status. `arguments`: None for `sys.argv`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(arguments, prog_name=name)
    except RaptorError as e:
        print(f"error: {escape_unprintable(str(e))}", file=sys.stderr)
        return e.exit_status
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    return 0
