"""Options of the command line that are more than a number or a word."""

from raptor.errors import UserError

DEFAULT_STRATEGY = "rows"
"""The mapping of who does not ask for one: hundreds of times faster on the chip than the reference, `raptor`."""


def parse_xbar(text: str | None) -> tuple[int, int] | None:
    """`128` or `128x256`: rows and columns of a crossbar."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(p.isascii() and p.isdigit() and 0 < int(p) < 2**16 for p in parts):
        raise UserError(f"--xbar {text}: expected a size such as 128, or 128x256 (rows x columns)")
    return int(parts[0]), int(parts[-1])


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`input=1,3,224,224`: a name and its sizes."""
    name, _, dims = text.rpartition("=")
    sizes = dims.split(",")
    if not name or not all(s.strip().isascii() and s.strip().isdigit() for s in sizes):
        raise UserError(f"--shape {text}: expected NAME=SIZES, such as input=1,3,224,224")
    return name, tuple(int(s) for s in sizes)
