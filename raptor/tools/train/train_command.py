"""Command `raptor train MODEL`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raptor.options import InputKeywords
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options
from raptor.tools.harden.harden_command import RequiredCells, WeightBits, show_report
from validator.cli_options import CrossbarSettings

if TYPE_CHECKING:
    from raptor.tools.train.train_model import TrainingReport


Data = Annotated[
    Path,
    typer.Option(metavar="FILE.npz|DIR", help="Inputs and labels, as for raptor accuracy.", show_default=False),
]
Noise = Annotated[
    str,
    typer.Option(
        metavar="auto|device|SHARE",
        help="Errors in training: a share of the largest weight of each channel, those of the cells, or the best.",
    ),
]
PolicyOption = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Bits of weights and inputs of layers, as for raptor quantize.")
]
Test = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE.npz|DIR", help="Samples that --data must not have; can be repeated."),
]


@expand_options
def train_command(
    model: ModelArgument,
    *,
    cells: RequiredCells,
    data: Data,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME-trained.onnx")
    ] = None,
    noise: Noise = "auto",
    weights: WeightBits = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the samples, with each noise.")] = 100,
    validation: Annotated[float, typer.Option(help="Share of the samples that is not trained on.")] = 0.15,
    test: Test = None,
    scratch: Annotated[bool, typer.Option("--scratch", help="Start from new weights.")] = False,
    shift: Annotated[int, typer.Option(min=0, max=64, help="Largest random shift of an image or a signal.")] = 0,
    rate: Annotated[float, typer.Option(help="Rate of the optimiser Adam in the first step.")] = 0.003,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    refit: Annotated[
        bool, typer.Option("--refit", help="Train once more with the chosen noise, on all samples.")
    ] = False,
    policy: PolicyOption = None,
    settings: CrossbarSettings = None,
    inputs: InputKeywords,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Train a float classifier under the errors of cells, so that they cost less accuracy.

    Nothing is chosen on the samples of --test. Needs PyTorch, which the extra `train` of raptor-crossbar installs.

    Example: raptor train --help
    """
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.tools.train.train_model import train
    from validator.crossbar.chip_settings import parse_settings

    target = output or Path(f"{model.stem}-trained.onnx")
    file_access.check_file_replaceable("-o", target, force=force)
    given: dict[str, Any] = {
        "noise": noise,
        "weights": weights,
        "epochs": epochs,
        "validation": validation,
        "test": test or (),
        "scratch": scratch,
        "shift": shift,
        "rate": rate,
        "seed": seed,
        "refit": refit,
        "policy": policy,
        "settings": parse_settings("--with", settings or ()),
        **inputs,
    }
    with LiteralConsole(stderr=True).status("training ...") as status:
        found = train(model, cells=cells, data=data, tick=status.update, **given)
    found.save(target, force=force)
    lines = (*describe_training(found.report), f"trained for {found.report.device}: {target}")
    show_report(found.report, lines, json, quiet=quiet)


def describe_training(report: "TrainingReport") -> list[str]:
    """Returns lines of text: what each noise reaches on validation samples, as floats and on chips."""
    head = f"{'noise':>8}  float   chips  lowest chip   loss"
    rows = [
        f"{name:>8}  {found.floats:5.1%}  {found.chips:6.1%}  {found.lowest:11.1%}  {found.loss:5.3f}"
        for name, found in (("before", report.before), *((f"{t.noise}", t) for t in report.tried))
    ]
    samples = f"{report.training} samples for training, {report.validation} for validation"
    again = "; trained once more with all of them" if report.refit else ""
    lines = [head, *rows, f"{samples}; noise {report.chosen} has the least loss on chips{again}"]
    if all(found.loss > report.before.loss for found in report.tried) and report.tried:
        lines.append("the model as given has less loss on chips: more epochs or another rate may help")
    return lines
