"""Command `raptor quantize MODEL`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raptor.common.errors import UserError
from raptor.common.options.option_conflicts import is_on_command_line, refuse_options
from raptor.common.options.option_texts import STATES, WIDTHS
from raptor.options import ArchKeywords, InputKeywords, list_keywords
from raptor.tools.cli import shell_completion
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options

if TYPE_CHECKING:
    from raptor.tools.quantise.policy import PolicySearch
    from raptor.tools.quantise.quantisation import QuantisationReport

Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME-quantised.onnx")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Samples to measure ranges on: an array for each input (or x for one), samples in its first axis.",
        show_default="standard normal numbers",
    ),
]
Layer = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=8|4", help="Bits of the weights of one layer; can be repeated: mixed precision."),
]
Policy = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Bits of weights and inputs of layers, as --policy-out.")
]
Mixed = Annotated[
    bool, typer.Option("--mixed", help="Search for the layers that get 4 bits, until the --budget is met.")
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="latency|energy=SHARE", help="Share of what 8 bits everywhere take: latency=0.7."),
]
PolicyOut = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Also write the bits of layers to this file.")
]
Scheme = Annotated[
    str,
    typer.Option(
        metavar="s8s8|u8s8|pow2",
        help="s8s8: signed, symmetric; u8s8: activations unsigned, with a zero point; pow2: s8s8 with scales 2^k.",
        autocompletion=shell_completion.schemes,
    ),
]
PerChannel = Annotated[bool, typer.Option("--per-channel", help="A scale for each output channel of a weight.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first random sample; later ones use the next seeds.")]
Samples = Annotated[
    int | None,
    typer.Option(min=1, help="Samples to use.", show_default="16 random ones, or all of the file"),
]
State = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT=OUTPUT|auto",
        help="Output that is the next value of an input: both get one scale; auto: by names.",
    ),
]
_BITS = {"weights", "activations", "layer", "policy"}
_OF_SEARCH = {"budget", *list_keywords(ArchKeywords)}


@expand_options
def quantize_command(
    context: typer.Context,
    model: ModelArgument,
    *,
    output: Output = None,
    data: Data = None,
    weights: Annotated[int, typer.Option(metavar="8|4", help="Bits of a weight.")] = 8,
    layer: Layer = None,
    policy: Policy = None,
    mixed: Mixed = False,
    budget: Budget = None,
    policy_out: PolicyOut = None,
    chip: ArchKeywords,
    activations: Annotated[int, typer.Option(metavar="8|16", help="Bits of an activation.")] = 8,
    scheme: Scheme = "s8s8",
    per_channel: PerChannel = False,
    seed: Seed = 0,
    samples: Samples = None,
    state: State = None,
    inputs: InputKeywords,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every layer, not only the worst.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Quantise a float model to integers, and say what that costs in each layer.

    The quantiser is onnxruntime's. It writes QuantizeLinear and DequantizeLinear around every layer that has integers.
    With --mixed, layers get 4 bits where that saves the most on a chip for the noise that it costs.

    Example: raptor quantize lenet5.onnx -o int8.onnx --scheme u8s8
    """
    # onnxruntime's quantiser takes a moment to import; `raptor --help` does without.
    from raptor.common.files import file_access
    from raptor.common.options.option_values import SCHEME
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.quantise import quantize
    from raptor.tools.quantise.options import make_weight_policy
    from raptor.tools.quantise.policy import parse_policy

    _check(context, mixed=mixed, data=data, layer=layer, policy=policy)
    target = output or Path(f"{model.stem}-quantised.onnx")
    _check_files(target, policy_out, force=force)
    given: dict[str, Any] = {
        "data": data,
        "scheme": SCHEME.parse(scheme),
        **{"per_channel": per_channel, "seed": seed, "samples": samples},
        "states": STATES.parse("states", state) if state else None,
        **inputs,
    }
    chosen = make_weight_policy(WIDTHS.parse("layers", layer or ())) if policy is None else parse_policy(policy)
    with LiteralConsole(stderr=True).status("quantising ...") as status:
        if mixed:
            chosen = _search(model, budget or "", status.update, {**chip, **given})
        found = quantize(model, weights=weights, activations=activations, policy=chosen, **given)
    found.save(target, force=force)
    if policy_out is not None:
        file_access.write_atomic("--policy-out", policy_out, parse_policy(chosen).to_json())
    _report(found.report, target, json, quiet=quiet, every=every)


def _check_files(target: Path, policy_out: Path | None, *, force: bool) -> None:
    """Refuses files that exist, unless they may be replaced."""
    from raptor.common.files import file_access

    file_access.check_file_replaceable("-o", target, force=force)
    if policy_out is not None:
        file_access.check_file_replaceable("--policy-out", policy_out, force=force)


def _search(model: Path, budget: str, update: Callable[[str], None], options: dict[str, Any]) -> "PolicySearch":
    """Searches for the bits of layers. `update`: shows what is being done."""
    from raptor.compiler.pass_driver import Driver
    from raptor.tools.quantise.precision_search import search_policy

    driver = Driver(started=lambda what: update(f"{what} ..."))
    return search_policy(model, budget=_budget(budget), driver=driver, **options)


def _report(report: "QuantisationReport", target: Path, json: Path | None, *, quiet: bool, every: bool) -> None:
    """Writes the report as JSON and prints it, as the command line asks for."""
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.cli.quantize_view import show_quantisation, write_quantisation

    if json is not None:
        write_quantisation(json, report)
    if not (quiet or file_access.is_stdout(json)):
        show_quantisation(report, target, LiteralConsole(), every=every)


def _budget(text: str) -> dict[str, float]:
    """Parses `latency=0.7`: a goal and a share of it."""
    name, _, value = text.partition("=")
    try:
        return {name: float(value)}
    except ValueError:
        raise UserError(f"--budget {text}: expected GOAL=SHARE, such as latency=0.7") from None


def _check(
    context: typer.Context, *, mixed: bool, data: Path | None, layer: Sequence[str] | None, policy: Path | None
) -> None:
    """Raises `UserError` for options that would have no effect."""
    if data is not None:
        refuse_options(context, {"seed"}, "not with --data, which gives the samples")
    if mixed:
        refuse_options(context, _BITS, "not with --mixed, which chooses the bits")
        if not is_on_command_line(context, "budget"):
            raise UserError("--mixed: say how much is wanted, such as --budget latency=0.7")
    else:
        refuse_options(context, _OF_SEARCH, "only with --mixed, which uses it")
    if policy is not None:
        refuse_options(context, {"layer"}, "not with --policy, which has the bits of layers")
    if not mixed and not layer:
        refuse_options(context, {"policy_out"}, "only with --mixed or --layer, which choose the bits of layers")
