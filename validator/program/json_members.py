"""Finds the members of a large JSON object as text, so that one can be decoded without the others."""

from collections.abc import Mapping

import msgspec

from raptor.target.instruction_json import DECODE_ERRORS


def split_members(text: bytes | msgspec.Raw) -> Mapping[str, msgspec.Raw]:
    """Returns the text of each member of a JSON object, as views of `text`; empty for text that is no object."""
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DECODE_ERRORS:
        return {}
