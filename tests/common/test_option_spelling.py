"""Options in messages are spelled as the user writes them: as flags of a command, or as keywords of a function."""

from typing import Any

import pytest

from raptor.common import option_spelling
from raptor.common.option_spelling import spell_option


@pytest.mark.parametrize(
    ("value", "flag", "keyword"),
    [
        ((), "--overlap", "overlap="),
        ((True,), "--overlap", "overlap=True"),
        ((1,), "--overlap 1", "overlap=1"),
        ((12,), "--overlap 12", "overlap=12"),
        (((8, 4),), "--overlap 8x4", "overlap=(8, 4)"),
    ],
)
def test_an_option_with_its_value(value: tuple[Any, ...], flag: str, keyword: str, monkeypatch: pytest.MonkeyPatch):
    assert spell_option("overlap", *value) == keyword
    monkeypatch.setattr(option_spelling, "_by_flags", True)
    assert spell_option("overlap", *value) == flag
