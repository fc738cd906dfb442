"""Text that holds names from files, made fit for a terminal."""

from unicodedata import category


def printable(text: str, *, keep: str = "\n") -> str:
    """Without characters that control the terminal or change the order of others: they are shown as escapes.

    `keep` are left as they are.
    """
    hidden = {ord(c): repr(c)[1:-1] for c in set(text) if not (_is_shown(c) or c in keep)}
    return text.translate(hidden) if hidden else text


def _is_shown(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"
