"""Names from files, made safe for a terminal."""

from unicodedata import category


def printable(text: str, *, keep: str = "\n") -> str:
    """Replaces characters that control the terminal or change the order of others by escapes.

    `keep`: characters that stay as they are.
    """
    hidden = {ord(c): repr(c)[1:-1] for c in set(text) if not (_is_shown(c) or c in keep)}
    return text.translate(hidden) if hidden else text


def _is_shown(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"
