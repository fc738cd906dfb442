"""Command `raptor`, also `python -m raptor`."""

import sys
from typing import NoReturn

from raptor.common.errors import UserError
from raptor.common.package_clashes import require_own_packages, warn_old_distribution
from raptor.common.process import gc_policy
from raptor.common.process.signals import EXIT_INTERRUPTED
from raptor.common.terminal.escaping import escape_unprintable


def main() -> NoReturn:
    """Runs the command line, after a check that `validator` is RAPTOR's own package. Warns of an old distribution."""
    with gc_policy.defer_gc():
        _run()


def _run() -> NoReturn:
    try:
        require_own_packages("validator")
        if warning := warn_old_distribution():
            print(f"raptor: warning: {escape_unprintable(warning)}", file=sys.stderr)
        from raptor.tools.cli import app
    except UserError as e:
        print(f"raptor: error: {escape_unprintable(str(e))}", file=sys.stderr)
        sys.exit(e.exit_status)
    except KeyboardInterrupt:
        print("raptor: error: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    app.main()


if __name__ == "__main__":
    main()
