"""Console output that shows untrusted strings (names from files) literally: no markup, emoji or control characters.

A name in brackets is not markup, `:x:` is not an emoji, and no name controls the terminal or starts a new line.
"""

import os
import re
from typing import Any

from rich import console
from rich.text import Text

from raptor.common.terminal.escaping import escape_unprintable

_PIPE_COLUMNS = 10_000
"""Width, in characters, for output into a pipe without the variable COLUMNS: tables are not wrapped there."""
_TRAILING = re.compile(" +(?=\n)")
"""Matches the blanks at the end of a line, with which rich pads the last column of a table."""


class LiteralConsole(console.Console):
    """A rich console without markup. Styles are passed as `style` or in a `Text`."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _PIPE_COLUMNS

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints like `rich.console.Console.print`; output into a pipe has no trailing blanks."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        super().print(Text(_TRAILING.sub("", captured.get())), end="", soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_unprintable(text, keep=""), **options)
