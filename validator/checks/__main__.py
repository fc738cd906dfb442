"""`python -m validator.checks --docs FILE` writes the reference; `python -m validator.checks OUT` checks a program."""

import sys
from pathlib import Path

import typer

from raptor.errors import RaptorError
from validator.check_cli import command
from validator.checks.docs import page


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit status."""
    if arguments[:1] == ["--docs"]:
        Path(arguments[1]).write_text(page())
        return 0
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(arguments, prog_name="validator.checks")
    except RaptorError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_status
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
