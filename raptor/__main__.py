"""Command `raptor`, also `python -m raptor`."""

import sys
from typing import NoReturn

from raptor.common import collector
from raptor.common.errors import UserError
from raptor.common.packages import old_distribution, require_own
from raptor.common.printable import printable
from raptor.common.stopping import INTERRUPTED


def main() -> NoReturn:
    """Runs the command line, after a check that `validator` is RAPTOR's own package. Warns of an old distribution."""
    with collector.seldom():
        _run()


def _run() -> NoReturn:
    try:
        require_own("validator")
        if warning := old_distribution():
            print(f"raptor: warning: {printable(warning)}", file=sys.stderr)
        from raptor.cli import app
    except UserError as e:
        print(f"raptor: error: {printable(str(e))}", file=sys.stderr)
        sys.exit(e.exit_status)
    except KeyboardInterrupt:
        print("raptor: error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    app.main()


if __name__ == "__main__":
    main()
