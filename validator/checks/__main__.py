"""Command `python -m validator.checks OUT`, which checks a program."""

import sys
from collections.abc import Sequence

from validator.check_cli import command
from validator.standalone_cli import run_alone


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run_alone(command, "validator.checks", arguments)


if __name__ == "__main__":
    sys.exit(main())
