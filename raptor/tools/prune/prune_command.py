"""Command `raptor prune MODEL --share S`."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from raptor.common.options.option_conflicts import refuse_options
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options

if TYPE_CHECKING:
    from raptor.tools.prune.prune_model import PrunedModel, Refine


class PruneKeywords(TypedDict, total=False):
    """Keywords for the chip: only its crossbars count."""

    arch: str | Path | None
    xbar: int | tuple[int, int] | str | None
    cell_bits: int | None


@expand_options
def prune_command(
    context: typer.Context,
    model: ModelArgument,
    *,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the crossbars to do without.")] = 0.5,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Samples: other weights make up for what goes.", show_default=False),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Use the first so many.", show_default="all")] = None,
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz|DIR", help="Inputs x and labels y: tell the accuracy, too.", show_default=False),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=0, help="Passes over the samples in which what is left learns the outputs of the model.")
    ] = 0,
    mapping: Annotated[str, typer.Option(metavar="rows|raptor", help="Mapping whose matrices are to vanish.")] = "rows",
    products: Annotated[
        float, typer.Option(min=0, max=1000, help="Weight of a saved product beside a saved crossbar.")
    ] = 1.0,
    chip: PruneKeywords,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME-pruned.onnx")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Set whole tiles of the weights of a float model to 0, so that crossbars vanish.

    A tile is what the crossbars of one matrix hold. With --data, the weights that stay and the biases are changed so
    that the outputs of each layer are as near as possible to those of before; one sample in five decides how much of
    each layer goes. No labels are needed. --epochs trains after that, and needs PyTorch (the extra `train`).

    Example: raptor prune lenet5.onnx --xbar 16 --share 0.3
    """
    from raptor.common.errors import UserError
    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.graph.layers import tile_channels
    from raptor.options import ChipOptions, read_options
    from raptor.target.arch import load_chip
    from raptor.tools.prune.measure_accuracy import measure_top1
    from raptor.tools.prune.prune_model import prune_model

    if data is None:
        refuse_options(context, {"samples", "epochs"}, "needs --data, whose samples they are")
    refine = make_refine(epochs) if epochs else None
    if mapping not in ("rows", "raptor"):
        raise UserError(f"--mapping {mapping}: expected rows or raptor")
    target = output or Path(f"{model.stem}-pruned.onnx")
    file_access.refuse_stdout("-o", target)
    file_access.check_file_replaceable("-o", target, force=force)
    hardware = load_chip(read_options(ChipOptions, chip, PruneKeywords), network=False)
    with LiteralConsole(stderr=True).status("pruning ..."):
        given: dict[str, Any] = {"products": products, "refine": refine, "test": test}
        found = prune_model(model, hardware, tile_channels(hardware), share, mapping, data, samples, **given)
        top1 = None if test is None else [measure_top1(m, test) for m in (found.before, found.model)]
    found.save(target, force=force)
    _tell(found, top1, target, quiet=quiet)


def _tell(found: "PrunedModel", top1: Sequence[float] | None, target: Path, *, quiet: bool) -> None:
    """Prints what was pruned; with `quiet`, the accuracy alone. `top1`: before and after, if labels are known."""
    from raptor.common.terminal.console import LiteralConsole

    lines = [] if quiet else [*describe_pruning(found)]
    if top1 is not None:
        lines.append(f"top-1 {top1[1]:.2%}, before {top1[0]:.2%}")
    if not quiet:
        lines.append(f"pruned: {target}")
    for line in lines:
        LiteralConsole().print(line, soft_wrap=True)


def make_refine(epochs: int) -> "Refine":
    """Returns the training of a pruned model. Raises `UserError` without PyTorch."""
    from functools import partial

    from raptor.common.optional_packages import require_packages

    with require_packages("raptor prune --epochs", "'raptor-crossbar[train]'"):
        import_module("torch")
    from raptor.tools.prune.distil_model import DistillationSchedule, distil_model

    return partial(distil_model, schedule=DistillationSchedule(epochs))


def describe_pruning(found: "PrunedModel") -> Iterator[str]:
    """Yields a line for each layer: its tiles of zeros, its crossbars, and what its outputs lost."""
    layers = found.layers
    width = max((len(layer.node) for layer in layers), default=5)
    yield f"{'layer':{width}}  zero tiles  of tiles  crossbars  before  error"
    for layer in layers:
        error = "" if layer.error is None else f"{layer.error:.1%}"
        counts = f"{layer.zero_tiles:10}  {layer.tiles:8}  {layer.crossbars:9}  {layer.crossbars_before:6}"
        yield f"{layer.node:{width}}  {counts}  {error:>5}".rstrip()
    left, before = (sum(n) for n in zip(*((x.crossbars, x.crossbars_before) for x in layers), strict=True))
    yield f"{left} of {before} crossbars with one copy of each matrix"
    if found.error is not None:
        yield f"outputs: error {found.error:.1%}, with {found.held_out} samples to which nothing was fitted"
