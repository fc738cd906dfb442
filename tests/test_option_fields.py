"""Options are fields: keywords, flags, values as texts, and combinations that are refused follow from them."""

from typing import Any

import pytest

from raptor.common.errors import UserError
from raptor.common.option_spelling import flag_name, spell_as_flags
from raptor.common.options.arguments import parse_flag
from raptor.options import (
    ChipOptions,
    CompileKeywords,
    CompileOptions,
    InspectKeywords,
    OutputOptions,
    collect_options,
    list_keywords,
    read_options,
)
from raptor.tools.cli import app
from raptor.tools.explore.study.search_space import to_command_line

OPTIONS = collect_options(CompileOptions)
TOGETHER = [
    (name, *pair, word)
    for name, option in OPTIONS.items()
    for pair, word in ((option.only_with, "only"), (option.not_with, "not"))
    if pair is not None
]


def value(name: str) -> Any:
    """The example of an option as the value of its keyword."""
    option = OPTIONS[name]
    if option.check is parse_flag:
        return True
    if option.texts is not None:
        return option.texts.parse(name, [option.example])
    return int(option.example) if option.example.isdigit() and name != "xbar" else option.example


def test_the_keywords_of_compile_are_the_fields() -> None:
    assert set(list_keywords(CompileKeywords)) == set(OPTIONS) - set(collect_options(OutputOptions))


def test_a_command_has_the_options_of_its_keywords() -> None:
    compile_, inspect = (app.build_commands().commands[name].params for name in ("compile", "inspect"))
    assert [p.name for p in compile_ if p.name in OPTIONS] == list(OPTIONS)
    assert {p.name for p in inspect if p.name in OPTIONS} == {*list_keywords(InspectKeywords), "quiet"}


@pytest.mark.parametrize("name", list_keywords(CompileKeywords))
def test_an_example_differs_from_the_default(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    option = OPTIONS[name]
    assert option.check(name, value(name)) != option.default


@pytest.mark.parametrize("name", list_keywords(CompileKeywords))
def test_a_value_as_words_is_the_example(name: str) -> None:
    words = [flag_name(name).split()[0], *([OPTIONS[name].example] if OPTIONS[name].example else [])]
    assert list(to_command_line({name: value(name)})) == words


@pytest.mark.parametrize(("name", "other", "reason", "word"), TOGETHER)
def test_an_option_without_effect_is_refused(name: str, other: str, reason: str, word: str, tmp_path: Any) -> None:
    given = {k: v for k, v in {name: value(name), other: value(other)}.items() if word == "not" or k != other}
    with spell_as_flags(), pytest.raises(UserError) as raised:
        read_options(CompileOptions, given)
    assert str(raised.value) == f"{flag_name(name)}: {word} with {flag_name(other)}, {reason}"


def test_none_stands_for_the_default() -> None:
    assert read_options(CompileOptions, dict.fromkeys(OPTIONS)) == CompileOptions()


def test_other_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lunch'"):
        read_options(ChipOptions, {"lunch": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'cores'"):
        read_options(CompileOptions, {"cores": 4}, InspectKeywords)


def test_goals_of_rounds_start_no_search() -> None:
    found = read_options(CompileOptions, {"optimize": "writes", "rounds": True, "mapping": "raptor"})
    assert found.mapping.objective is None
    for given, message in (
        ({"optimize": "writes"}, "optimize='writes': only with rounds=True, which writes for each batch"),
        ({"optimize": "writes", "rounds": True, "effort": 2}, "effort=: only with optimize=, which it belongs to"),
        ({"fields": {"interface": "core"}}, "fields='interface': only with emit_ops=, which alone uses it"),
    ):
        with pytest.raises(UserError) as raised:
            read_options(CompileOptions, given)
        assert str(raised.value) == message
