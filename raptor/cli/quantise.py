"""Command `raptor quantize MODEL`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.cli import completion, model_options


def command(
    context: typer.Context,
    model: model_options.Model,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME-quantised.onnx")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="Samples to measure ranges on: an array for each input, samples in its first axis.",
            show_default="standard normal numbers",
        ),
    ] = None,
    weights: Annotated[int, typer.Option(metavar="8|4", help="Bits of a weight.")] = 8,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=8|4", help="Bits of the weights of one layer; can be repeated: mixed precision."),
    ] = None,
    activations: Annotated[int, typer.Option(metavar="8|16", help="Bits of an activation.")] = 8,
    scheme: Annotated[
        str,
        typer.Option(
            metavar="s8s8|u8s8|pow2",
            help="s8s8: signed, symmetric; u8s8: activations unsigned, with a zero point; pow2: s8s8 with scales 2^k.",
            autocompletion=completion.schemes,
        ),
    ] = "s8s8",
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A scale for each output channel of a weight.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first random sample; later ones use the next seeds.")
    ] = 0,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples to use.", show_default="16 random ones, or all of the file"),
    ] = None,
    shape: model_options.Shape = None,
    dim: model_options.Dim = None,
    constant: model_options.Set = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Print every layer, not only the worst.")] = False,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Quantise a float model to integers, and say what that costs in each layer.

    The quantiser is onnxruntime's. It writes QuantizeLinear and DequantizeLinear around every layer that has integers.

    Example: raptor quantize lenet5.onnx -o int8.onnx --scheme u8s8
    """
    # onnxruntime's quantiser takes a moment to import; `raptor --help` does without.
    from raptor.cli.quantise_view import show, write
    from raptor.common import storage
    from raptor.common.console import Console
    from raptor.common.options import SCHEME
    from raptor.common.together import refuse_given
    from raptor.quantise import quantize

    if data is not None:
        refuse_given(context, {"seed"}, "not with --data, which gives the samples")
    target = output or Path(f"{model.stem}-quantised.onnx")
    storage.check_replaceable("-o", target, force=force)
    with Console(stderr=True).status("quantising ..."):
        found = quantize(
            model,
            data=data,
            weights=weights,
            activations=activations,
            scheme=SCHEME.parse(scheme),
            per_channel=per_channel,
            layers=model_options.read_widths(layer or ()),
            seed=seed,
            samples=samples,
            shapes=model_options.read_shapes(shape or ()),
            dims=model_options.read_dims(dim or ()),
            constants=model_options.read_constants(constant or ()),
        )
    found.save(target, force=force)
    if json is not None:
        write(json, found.report)
    if not (quiet or storage.is_terminal(json)):
        show(found.report, target, Console(), every=every)
