"""What is printed for people. Strings hold names from files: they are shown letter by letter.

A name in brackets is no markup, `:x:` no picture, and none controls the terminal or begins a line of its own.
"""

import os
import re
from typing import Any

from rich import console
from rich.text import Text

from raptor.common.printable import printable

_PIPE_COLUMNS = 10_000
"""A pipe has no edge at which a table would have to be broken, unless COLUMNS says so."""
_TRAILING = re.compile(" +(?=\n)")
"""Rich fills the last column of a table with blanks."""


class Console(console.Console):
    """Styles come with `style` or in a `Text` made for them."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = _PIPE_COLUMNS

    def print(self, *objects: Any, **options: Any) -> None:
        """As of rich; a pipe gets no blanks at the ends of lines."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        super().print(Text(_TRAILING.sub("", captured.get())), end="", soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, keep=""), **options)
