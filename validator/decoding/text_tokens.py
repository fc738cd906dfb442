"""Text of a decoder's tokens, for models whose metadata name their tokenizer."""

from collections.abc import Sequence

from onnx import ModelProto

from raptor.common.errors import UserError
from raptor.output import files
from validator.program.program import LoadedProgram

TOKENIZER, BYTES = "tokenizer", "bytes"
"""Property of a model that names its tokenizer, and the only value: each byte of the UTF-8 text is a token."""


def require_tokenizer(program: LoadedProgram) -> None:
    """Raises `UserError` unless the tokens of the program's model are bytes of text."""
    model = ModelProto.FromString((program.folder / files.ORIGINAL).read_bytes())
    named = {p.key: p.value for p in model.metadata_props}.get(TOKENIZER)
    if named != BYTES:
        found = f"tokenizer {named!r}" if named else "no tokenizer"
        raise UserError(
            f"{program.folder}: its model names {found}; only the property {TOKENIZER}={BYTES} is known, so give ids"
        )


def encode_text(text: str) -> list[int]:
    """Returns the tokens of a text: its bytes in UTF-8."""
    return list(text.encode())


def decode_tokens(tokens: Sequence[int]) -> str:
    """Returns the text of tokens. Bytes that are no UTF-8, and tokens that are no bytes, become U+FFFD."""
    return b"".join(bytes([t]) if t < 256 else b"\xff" for t in tokens).decode(errors="replace")
