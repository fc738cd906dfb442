"""The command line: a thin layer over the Python API."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from threading import Timer
from typing import Annotated, NoReturn

import typer

import raptor.arch_cli
import raptor.explain_cli
import raptor.inspection_cli
import raptor.reporting.cli
import validator.check_cli
import validator.cli
import validator.simulate.cli
from raptor import completion
from raptor.errors import InternalError, RaptorError, UserError
from raptor.limits import check_memory
from raptor.options import DEFAULT_STRATEGY, parse_shape, parse_xbar
from raptor.printable import printable

app = typer.Typer(
    name="raptor",
    help="Compiles ONNX models to ReRAM crossbar accelerators, and proves the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

_INTERRUPTED = 130
_INTERNAL = InternalError.exit_status
_LONGEST_LINE = 2000
_OUT_OF_MEMORY = "out of memory; try a smaller model or image, or --format pim --weights npz"


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point. Exit status: 0 done, 1 mismatch, 2 bad input, 3 deadlock, 70 a bug of RAPTOR."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    sys.unraisablehook = _keep_interrupt
    if isinstance(sys.stdout, TextIOWrapper):
        # A name may have letters that the terminal has not. The stubs leave open which buffer such a stream has.
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportUnknownMemberType] see above
    try:
        check_memory()
        _check_encoding(args)
        app(args=[a for a in args if a != "--debug"])
    except RaptorError as e:
        if debug:
            raise
        _fail(str(e), e.exit_status)
    except SystemExit as e:
        if e.code == _INTERRUPTED:  # typer's answer to Ctrl-C, without a word
            _fail("interrupted", _INTERRUPTED)
        raise
    except MemoryError:
        _fail(_OUT_OF_MEMORY, UserError.exit_status)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except OSError as e:  # a full disk for temporary files, say
        _fail(_OUT_OF_MEMORY if e.errno == errno.ENOMEM else str(e), UserError.exit_status)
    except Exception as e:
        _fail_unexpectedly(e, debug=debug)
    sys.exit(0)


def _check_encoding(args: Sequence[str]) -> None:
    for argument in args:
        try:
            argument.encode()
        except UnicodeEncodeError as e:
            raise UserError(f"{argument}: not UTF-8, so that onnxruntime and JSON cannot name it; rename it") from e


def _fail_unexpectedly(error: Exception, *, debug: bool) -> NoReturn:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Python's answer when compiled code returns in spite of it
        _fail("interrupted", _INTERRUPTED)
    if debug:
        raise error
    _fail(f"{type(error).__name__}: {error}", _INTERNAL)


def _keep_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """Ctrl-C where a library cannot pass it on, as while pydantic builds its classes, comes again a little later."""
    if lost.exc_type is KeyboardInterrupt:
        Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def _fail(message: str, status: int) -> NoReturn:
    kind = "internal error, please report it (--debug shows where)" if status == _INTERNAL else "error"
    print(f"raptor: {kind}: {_cut(message)}", file=sys.stderr)
    sys.exit(status)


def _cut(message: str) -> str:
    """Names in messages come from files: none may fill the terminal with one line."""
    lines = printable(message).splitlines()
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines)


def _version(wanted: bool) -> None:
    if wanted:
        from raptor import __version__

        print(f"raptor {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction] typer calls it
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere on the line.")
    ] = False,
) -> None:
    pass


Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write.")] = Path("out"),
    xbar: Annotated[
        str | None, typer.Option(help="Crossbar size: 128, or 128x256 (rows x columns).", show_default="128x128")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of the chip.", show_default="144")] = None,
    xbars_per_core: Annotated[int | None, typer.Option(min=1, help="Crossbars of a core.", show_default="64")] = None,
    bits: Annotated[int, typer.Option(min=1, max=32, help="Bits of an activation and of a weight.")] = 8,
    cell_bits: Annotated[int | None, typer.Option(min=1, help="Bits of a crossbar cell.", show_default="8")] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Architecture file of pimsim-nn, or preset.", show_default="bench", autocompletion=completion.presets
        ),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape of an input, such as input=1,3,224,224. Repeatable.")
    ] = None,
    stream_format: Annotated[str, typer.Option("--format", help="Streams: json, pim or both.")] = "json",
    weights: Annotated[str, typer.Option(help="Crossbar weights: json or npz.")] = "json",
    mapping: Annotated[
        str,
        typer.Option(
            help="Strategy: rows: layers stream; raptor, the reference; pixelwise; or an --emit-mapping file.",
            autocompletion=completion.strategies,
        ),
    ] = DEFAULT_STRATEGY,
    optimize: Annotated[
        str | None,
        typer.Option(
            help="Search instead: latency, throughput or energy, by the built-in simulator.",
            autocompletion=completion.objectives,
        ),
    ] = None,
    effort: Annotated[int | None, typer.Option(min=1, help="Mappings that --optimize tries.", show_default="4")] = None,
    emit_mapping: Annotated[Path | None, typer.Option(help="Also write the mapping to this file.")] = None,
    isa: Annotated[str, typer.Option(help="extended, or base: only instructions that pimsim-nn runs.")] = "extended",
    dump_ir: Annotated[Path | None, typer.Option(help="Directory for the text of every level.")] = None,
    stop_after: Annotated[
        str | None, typer.Option(help="Print what this pass returns, and stop.", autocompletion=completion.passes)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compile an ONNX model to instruction streams.

    Example: raptor compile lenet5.onnx --xbar 128 --cores 20
    """
    import raptor
    from raptor import output as outputs
    from raptor import terminal
    from raptor.driver import Driver, Stopped
    from raptor.threads import Threads

    choices = {"--format": (stream_format, ("json", "pim", "both")), "--weights": (weights, ("json", "npz"))}
    choices["--isa"] = (isa, ("extended", "base"))
    choices["--optimize"] = (optimize or "latency", ("latency", "throughput", "energy"))
    for option, (value, allowed) in choices.items():
        if value not in allowed:
            raise UserError(f"{option} {value}: expected one of: {', '.join(allowed)}")
    if stop_after is None:
        outputs.check_replaceable(output, force=force)
    if emit_mapping is not None and stop_after is not None:
        raise UserError("--emit-mapping: not with --stop-after, which ends before it is known that the mapping works")
    if emit_mapping is not None and emit_mapping.exists() and not force:
        raise UserError(f"--emit-mapping {emit_mapping}: exists; --force replaces it")
    with terminal.progress(quiet or stop_after is not None) as started:
        driver = Driver(dump=dump_ir, stop_after=stop_after, started=started)
        try:
            program = raptor.compile(
                model,
                xbar=parse_xbar(xbar),
                cores=cores,
                xbars_per_core=xbars_per_core,
                bits=bits,
                cell_bits=cell_bits,
                arch=arch,
                shapes=dict(map(parse_shape, shape or ())),
                mapping=mapping,
                optimize=optimize,  # pyright: ignore[reportArgumentType] checked above
                effort=effort,
                emit_mapping=emit_mapping,
                base_isa=isa == "base",
                driver=driver,
            )
        except Stopped as stopped:
            print(printable(stopped.text), end="")
            return
        with Threads(1) as pool:
            findings = pool.submit(program.check)
            driver.timed(
                "write",
                program.save,
                output,
                stream_format=stream_format,  # pyright: ignore[reportArgumentType] checked above
                weight_format=weights,  # pyright: ignore[reportArgumentType]
                force=force,
            )
            found = driver.timed("check", findings.result)
    if not quiet:
        terminal.show_summary(program, output)
        terminal.show_findings(found)


@app.command("models")
def models_command(
    name: Annotated[
        str | None,
        typer.Argument(help="Model to write; without it, all are listed.", autocompletion=completion.models),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME.onnx")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the model, such as head=global_average_pool.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
) -> None:
    """List the built-in models, or write one as an ONNX file with seeded weights.

    Example: raptor models lenet5 -o lenet5.onnx
    """
    from raptor import zoo

    if name is None:
        zoo.show()
        return
    path = output or Path(f"{name}.onnx")
    size = zoo.write(name, path, seed=seed, options=option or [], force=force)
    if not quiet:
        print(f"{path}: {size / 1e6:.1f} MB")


app.command("validate")(validator.cli.command)
app.command("check")(validator.check_cli.command)
app.command("simulate")(validator.simulate.cli.command)
app.command("report")(raptor.reporting.cli.report_command)
app.command("compare")(raptor.reporting.cli.compare_command)
app.command("inspect")(raptor.inspection_cli.command)
app.command("explain")(raptor.explain_cli.command)
app.add_typer(raptor.arch_cli.app, name="arch")
