"""`raptor`, also `python -m raptor`."""

import sys
from typing import NoReturn

from raptor.errors import UserError
from raptor.packages import require_own
from raptor.printable import printable
from raptor.stopping import INTERRUPTED


def main() -> NoReturn:
    """Entry point: `raptor.cli.main`, once it is sure that what it imports is RAPTOR's own."""
    try:
        require_own("validator")
        from raptor import cli
    except UserError as e:
        print(f"raptor: error: {printable(str(e))}", file=sys.stderr)
        sys.exit(e.exit_status)
    except KeyboardInterrupt:
        print("raptor: error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
