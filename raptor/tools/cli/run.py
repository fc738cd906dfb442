"""Commands `raptor run OUT` and `raptor generate OUT`."""

from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import typer

from raptor.common.errors import UserError
from raptor.common.options.option_conflicts import refuse_options
from raptor.common.terminal.escaping import escape_unprintable
from validator.cli_options import Device, Inputs, Out


def run_command(
    context: typer.Context,
    out: Out,
    inputs: Inputs = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")] = 0,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .npy for one output, .npz for all by name.")
    ] = Path("outputs.npz"),
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Execute a compiled model on inputs of yours, and write its outputs.

    A sequence NAME becomes the arrays NAME/0, NAME/1 ...; maps become one array of values, with NAME/keys beside it.
    With a device, its crossbars are written once and multiply; the reference engine does all else.

    Example: raptor run out -o scores.npy --device numpy
    """
    # numpy and the engine take half a second to import; `raptor --help` does without.
    from contextlib import nullcontext

    from raptor.common.files import file_access
    from raptor.common.terminal.console import LiteralConsole
    from raptor.device.program_execution import DeviceWriter
    from validator.hosted.any_program import list_shapes, load_any, non_tensor_outputs, read_inputs, run_any
    from validator.hosted.border_values import flatten_value

    if inputs:
        refuse_options(context, {"seed"}, "not with --input, which gives the numbers")
    file_access.check_file_replaceable("--output", output, force=force)
    program = load_any(out)
    _check_format(output, list_shapes(program)[1], non_tensor_outputs(program))
    with nullcontext() if device is None else DeviceWriter(device) as chips:
        placed = program if chips is None else program.write_to_device(chips)
        values = run_any(placed, read_inputs(placed, inputs or (), seed))
        parts = [part for name, value in values.items() for part in flatten_value(name, value).items()]
        found = dict(parts)
        if len(found) < len(parts):
            raise UserError(f"--output {output}: parts of two outputs have the same name: {', '.join(values)}")
        file_access.write_atomic("--output", output, _content(output, found))
        if not quiet:
            console = LiteralConsole()
            for line in [f"{name}  {list(array.shape)}" for name, array in found.items()] + list(chips or ()):
                console.print(line)


def _check_format(path: Path, outputs: Collection[str], others: Collection[str]) -> None:
    """Raises `UserError` before the run, which may take long, if the suffix of the file does not fit the outputs.

    `.npy` holds one tensor, `.npz` everything. `others`: the outputs that are no tensors (sequences, maps).
    """
    if path.suffix != ".npz" and (path.suffix != ".npy" or len(outputs) > 1 or others):
        raise UserError(
            f"--output {path}: expected a .npz file{', or .npy' if len(outputs) == 1 and not others else ''}"
        )


def _content(path: Path, found: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a .npy or .npz file. An archive may have any names, which `np.savez` does not allow."""
    import zipfile

    import numpy as np

    stream = BytesIO()
    plain = {name: array.astype(np.str_) if array.dtype.kind == "O" else array for name, array in found.items()}
    if path.suffix == ".npy":
        np.save(stream, next(iter(plain.values())), allow_pickle=False)
        return stream.getvalue()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in plain.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return stream.getvalue()


_CommonInputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="[NAME=]FILE", help="Inputs that all steps have in common: .npy, .npz, .pb."),
]


def generate_command(
    out: Out,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text that the model reads first, if its tokens are bytes.")
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option("--prompt-ids", metavar="ID,ID", help="Ids of the tokens that it reads, instead.")
    ] = None,
    inputs: _CommonInputs = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the best token, 1 draws by probability.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers, with a temperature.")] = 0,
    session: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Saved session to go on with; it is not changed.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="File for the session at the end.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="File for JSON; - for the terminal.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Generate tokens with a decoder: execute its instructions, step by step.

    The program must have been compiled with --capacity. A step takes one token. After a prompt of text, text is
    printed; the model's property tokenizer must be bytes.

    Example: raptor compile decoder.onnx --state auto --capacity 24 -o lm -q && raptor generate lm --prompt-ids 7,3,1
    """
    # numpy and the engine take half a second to import; `raptor --help` does without.
    import orjson

    from raptor.common.files import file_access
    from validator.decoding.decoder_session import DecoderSession
    from validator.decoding.generation import GenerationReport, Sampling, generate_tokens
    from validator.decoding.text_tokens import decode_tokens, encode_text, require_tokenizer
    from validator.execution.inputs import read_input_files
    from validator.load.output_directory import load_output

    ids = _read_prompt(prompt, prompt_ids)
    if seed and not temperature:
        raise UserError(f"--seed {seed}: only with --temperature, without which nothing is random")
    _check_saved(save, force=force)
    program = load_output(out)
    chip = DecoderSession(program, read_input_files(program.memory.inputs, inputs) if inputs else {})
    if prompt is not None:
        require_tokenizer(chip.program)
        ids = encode_text(prompt)
    if session is not None:
        chip.load(session)
    first = chip.position
    chip.require_prompt(ids, tokens)
    found = generate_tokens(chip, ids, tokens, Sampling(temperature, seed)).tokens
    text = None if prompt is None else decode_tokens(found)
    if save is not None:
        chip.save(save)
    if json is not None:
        report = GenerationReport(tuple(ids), found, first, chip.position, temperature, seed, text)
        file_access.print_or_write("--json", json, orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    if not (quiet or file_access.is_stdout(json)):
        print(",".join(map(str, found)) if text is None else escape_unprintable(text))


def _check_saved(save: Path | None, *, force: bool) -> None:
    """Raises `UserError` for a `--save` that may not be written, and for `--force` without one."""
    from raptor.common.files import file_access

    if force and save is None:
        raise UserError("--force: only with --save, whose file it replaces")
    if save is not None:
        file_access.refuse_stdout("--save", save)
        file_access.check_file_replaceable("--save", save, force=force)


def _read_prompt(text: str | None, ids: str | None) -> list[int]:
    """Returns the ids of `--prompt-ids`; an empty list for a `--prompt`. Raises `UserError` unless one is given."""
    if (text is None) == (ids is None):
        raise UserError("--prompt TEXT or --prompt-ids ID,ID: expected one of them")
    if text == "":
        raise UserError("--prompt: expected a text")
    return [] if ids is None else _ids(ids)


def _ids(text: str) -> list[int]:
    """Parses ids such as 7,3,19. Raises `UserError` for other texts."""
    parts = text.split(",")
    if not all(p.strip().isascii() and p.strip().isdigit() and len(p.strip()) < 10 for p in parts):
        raise UserError(f"--prompt-ids {text}: expected whole numbers such as 7,3,19")
    return [int(p) for p in parts]
