"""Escapes untrusted names for output on a terminal."""

from unicodedata import category


def escape_unprintable(text: str, *, keep: str = "\n") -> str:
    """Escapes characters that control the terminal or reorder text.

    `keep`: characters that are not escaped.
    """
    hidden = {ord(c): repr(c)[1:-1] for c in set(text) if not (_is_shown(c) or c in keep)}
    return text.translate(hidden) if hidden else text


def _is_shown(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"
