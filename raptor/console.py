"""What is printed for people. Strings hold names from files: they are shown letter by letter.

A name in brackets is no markup, `:x:` no picture, and none controls the terminal or begins a line of its own.
"""

from typing import Any

from rich import console
from rich.text import Text

from raptor.printable import printable


class Console(console.Console):
    """Styles come with `style` or in a `Text` made for them."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, keep=""), **options)
