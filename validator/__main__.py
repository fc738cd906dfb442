"""`python -m validator OUT`."""

import sys

import typer

from raptor.errors import RaptorError
from raptor.printable import printable
from validator.cli import command


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    try:
        app(arguments, prog_name="validator")
    except RaptorError as e:
        print(f"error: {printable(str(e))}", file=sys.stderr)
        return e.exit_status
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
