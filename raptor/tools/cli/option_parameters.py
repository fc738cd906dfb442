"""Expands groups of options of a compilation into single parameters of typer commands."""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast, is_typeddict

import typer

from raptor.common.option_spelling import flag_name
from raptor.common.options.arguments import MAX_INTEGER, IntegerRange, OneOf, parse_flag, parse_new_file, parse_path
from raptor.common.options.option_conflicts import is_on_command_line
from raptor.options import CompileOptions, OptionSpec, check_conflicts, collect_options, list_keywords, read_options
from raptor.tools.cli import shell_completion

ModelArgument = Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
CommandFunction = Callable[..., None]

_OPTIONS = collect_options(CompileOptions)


def expand_options(function: CommandFunction, *, shows_defaults: bool = True) -> CommandFunction:
    """Decorator: replaces each parameter that is a record of options, or a `TypedDict`, by one parameter per option.

    The decorated function gets the checked record, or a dict of the options on the command line. The command raises
    `UserError` for an option that would have no effect together with another.
    """
    signature = inspect.signature(function, eval_str=True)
    groups = {p.name: _keywords(p.annotation) for p in signature.parameters.values()}
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    expanded = [context] * ("context" not in groups)
    for parameter in signature.parameters.values():
        options = [_parameter(keyword, shows_default=shows_defaults) for keyword in groups[parameter.name]]
        expanded += options or [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(function)
    def command(context: typer.Context, **given: Any) -> None:
        if "context" in groups:
            given["context"] = context
        typed = {k: given.pop(k) for keywords in groups.values() for k in keywords}
        values = {k: _value(k, value) for k, value in typed.items() if is_on_command_line(context, k)}
        check_conflicts(values)
        for name, keywords in groups.items():
            group: Any = signature.parameters[name].annotation
            part = {k: values[k] for k in keywords if k in values}
            if keywords:
                given[name] = part if is_typeddict(group) else read_options(group, part)
        function(**given)

    command.__dict__["__signature__"] = inspect.Signature(expanded)
    return command


def _keywords(annotation: Any) -> tuple[str, ...]:
    """Returns the keywords of a group of options, in order; an empty tuple for any other annotation."""
    if is_typeddict(annotation):
        return tuple(keyword for keyword in _OPTIONS if keyword in list_keywords(annotation))
    return tuple(collect_options(annotation)) if is_dataclass(annotation) else ()


def _parameter(keyword: str, *, shows_default: bool) -> inspect.Parameter:
    """Returns the parameter of typer for an option."""
    option = _OPTIONS[keyword]
    kind, more = _kind(option)
    if option.shown and shows_default:
        more["show_default"] = option.shown
    if option.completion:
        more["autocompletion"] = getattr(shell_completion, option.completion)
    names = [option.short] * bool(option.short) + [flag_name(keyword).split()[0]]
    default = option.typed.choices[0] if option.typed else option.default or (None if kind is not bool else False)
    annotation = Annotated[kind if default is not None else kind | None, typer.Option(*names, **more)]
    return inspect.Parameter(keyword, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind(option: OptionSpec) -> tuple[Any, dict[str, Any]]:
    """Returns the type of the parameter for typer, and further keyword arguments of `typer.Option`."""
    check, more = option.typed or option.check, {"metavar": option.metavar, "help": option.help}
    if option.texts is not None:
        return list[str], {"metavar": option.texts.metavar, "help": f"{option.help} Repeatable."}
    if isinstance(check, IntegerRange):
        return int, more | {"min": check.minimum, "max": None if check.maximum == MAX_INTEGER else check.maximum}
    if isinstance(check, OneOf):
        names = [*map(str, cast("OneOf[Any]", check).choices)]
        return str, more | {"metavar": option.metavar or "|".join(names), "autocompletion": lambda: names}
    if check is parse_flag:
        return bool, more
    return (Path if check in (parse_path, parse_new_file) and option.metavar is None else str), more


def _value(keyword: str, typed: Any) -> Any:
    """Converts a value of the command line to the value of the Python keyword."""
    option = _OPTIONS[keyword]
    if option.typed is not None:
        return option.typed.choices.index(option.typed.parse(typed)) == 1
    return option.texts.parse(keyword, typed) if option.texts is not None else typed
