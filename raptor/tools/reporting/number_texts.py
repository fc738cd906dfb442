"""Text forms of numbers and names."""

from collections.abc import Iterable, Sequence
from html import escape

NO_BREAK_SPACE = "\u00a0"
"""No-break space."""


def format_size(count: float) -> str:
    """Returns a number of bytes with a decimal prefix."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            shown = f"{count / scale:#.3g}" if count < 999.5 * scale else f"{count / scale:.0f}"
            return f"{shown.rstrip('.')}{NO_BREAK_SPACE}{unit}"
    return f"{count:.0f}{NO_BREAK_SPACE}B"


def format_share(part: float) -> str:
    """Returns a fraction in per cent."""
    if 0 < part < 0.0005:
        return f"<0.1{NO_BREAK_SPACE}%"
    return f"{100 * part:.1f}{NO_BREAK_SPACE}%"


def format_shape(dims: Sequence[int]) -> str:
    """Returns a shape as text: `1x3x224x224`."""
    return "x".join(map(str, dims)) or "scalar"


def format_ranges(numbers: Iterable[int]) -> str:
    """Returns ascending integers with runs joined: `0-3, 7`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def escape_markup(name: str) -> str:
    """Escapes a name for a figure, where plotly would interpret `<b>` and the like as markup."""
    return escape(name, quote=False)
