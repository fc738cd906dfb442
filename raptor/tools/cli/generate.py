"""Command `raptor generate OUT`."""

from pathlib import Path
from typing import Annotated

import typer

from raptor.common.errors import UserError
from validator.cli_options import Out


def generate_command(
    out: Out,
    prompt_ids: Annotated[
        str,
        typer.Option("--prompt-ids", metavar="ID,ID", help="Tokens that the model reads first.", show_default=False),
    ],
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

    The program must have been compiled with --capacity. A step takes one token.

    Example: raptor generate out --prompt-ids 7,3,19 --tokens 8
    """
    # numpy and the engine take half a second to import; `raptor --help` does without.
    import orjson

    from raptor.common.files import file_access
    from validator.decoding.decoder_session import DecoderSession
    from validator.decoding.generation import GenerationReport, Sampling, generate_tokens
    from validator.load.output_directory import load_output

    prompt = _ids(prompt_ids)
    if seed and not temperature:
        raise UserError(f"--seed {seed}: only with --temperature, without which nothing is random")
    if save is not None:
        file_access.refuse_stdout("--save", save)
        file_access.check_file_replaceable("--save", save, force=force)
    chip = DecoderSession(load_output(out))
    if session is not None:
        chip.load(session)
    first = chip.position
    chip.require_room(len(prompt) + tokens - 1)
    found = generate_tokens(chip, prompt, tokens, Sampling(temperature, seed)).tokens
    if save is not None:
        chip.save(save)
    if json is not None:
        report = GenerationReport(tuple(prompt), found, first, chip.position, temperature, seed)
        file_access.print_or_write("--json", json, orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    if not (quiet or file_access.is_stdout(json)):
        print(",".join(map(str, found)))


def _ids(text: str) -> list[int]:
    """Parses ids such as 7,3,19. Raises `UserError` for other texts."""
    parts = text.split(",")
    if not all(p.strip().isascii() and p.strip().isdigit() and len(p.strip()) < 10 for p in parts):
        raise UserError(f"--prompt-ids {text}: expected whole numbers such as 7,3,19")
    return [int(p) for p in parts]
