"""Command line: a thin layer over the Python API."""

import errno
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

import raptor.cli.accuracy
import raptor.cli.arch
import raptor.cli.explain
import raptor.cli.explore
import raptor.cli.inspection
import raptor.cli.quantise
import raptor.cli.report
import raptor.cli.run
import validator.check_cli
import validator.cli
import validator.simulate.cli
from raptor.cli import completion, model_options
from raptor.cli.usage import plain_usage
from raptor.common.errors import (
    IncompleteError,
    InternalError,
    RaptorError,
    UserError,
)
from raptor.common.limits import check_memory
from raptor.common.options import (
    CUTS,
    DEFAULT_DEVICE,
    DEFAULT_STRATEGY,
    GOAL,
    ISA,
    OBJECTIVE,
    REQUANT,
    STREAM_FORMAT,
    WEIGHT_FORMAT,
)
from raptor.common.packages import require_own
from raptor.common.printable import printable
from raptor.common.spelling import flags
from raptor.common.stopping import INTERRUPTED, Stopper
from raptor.common.together import refuse_given

app = typer.Typer(
    name="raptor",
    help="Compile ONNX models for chips of ReRAM crossbars, and compare the result with onnxruntime.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

_INTERNAL = InternalError.exit_status
_LONGEST_LINE = 2000
_OUT_OF_MEMORY = "out of memory; try a smaller model or image, or --format pim --weights npz"


@flags()
def main(argv: list[str] | None = None) -> NoReturn:
    """Runs a command. Exit status: 0 done, 1 mismatch, 2 bad input, 3 deadlock, 70 a bug, 130 and 143 stopped."""
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        # The terminal may lack letters of a name. The stubs do not say which buffer such a stream has.
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportUnknownMemberType] see above
    stopper = Stopper()
    try:
        with stopper.watching():
            _run([a for a in args if a != "--debug"], debug="--debug" in args)
    except KeyboardInterrupt:
        _fail(*stopper.end())


def _run(args: list[str], *, debug: bool) -> NoReturn:
    try:
        check_memory()
        _check_encoding(args)
        command()(args=args, prog_name="raptor")
    except RaptorError as e:
        if debug:
            raise
        _fail(_with_command(e, args) if isinstance(e, IncompleteError) else str(e), e.exit_status)
    except SystemExit as e:
        if e.code == INTERRUPTED:  # typer's answer to Ctrl-C, without a message
            raise KeyboardInterrupt from e
        raise
    except MemoryError:
        _fail(_OUT_OF_MEMORY, UserError.exit_status)
    except OSError as e:  # a full disk for temporary files, say
        _fail(_OUT_OF_MEMORY if e.errno == errno.ENOMEM else str(e), UserError.exit_status)
    except Exception as e:  # whatever it is, it is our bug: the user reads so, not a traceback
        _fail_unexpectedly(e, debug=debug)
    sys.exit(0)


def _with_command(error: IncompleteError, args: Sequence[str]) -> str:
    """Says what is missing, and the complete command to type instead."""
    words = [a for a in args if a != "--debug"]
    end = words.index("--") if "--" in words else len(words)
    return f"{error.found}\ntry: raptor {shlex.join([*words[:end], *error.options, *words[end:]])}"


def _check_encoding(args: Sequence[str]) -> None:
    for argument in args:
        try:
            argument.encode()
        except UnicodeEncodeError as e:
            raise UserError(f"{argument}: not UTF-8, so that onnxruntime and JSON cannot name it; rename it") from e


def _fail_unexpectedly(error: Exception, *, debug: bool) -> NoReturn:
    if isinstance(error.__cause__, KeyboardInterrupt):  # Python raises this if compiled code returns after a Ctrl-C
        raise KeyboardInterrupt from error
    if debug:
        raise error
    _fail(f"{type(error).__name__}: {error}", _INTERNAL)


def _fail(message: str, status: int) -> NoReturn:
    kind = "internal error, please report it (--debug shows where)" if status == _INTERNAL else "error"
    print(f"raptor: {kind}: {_cut(message)}", file=sys.stderr)
    sys.exit(status)


def _cut(message: str) -> str:
    """Shortens long lines: a name from a file could fill the terminal."""
    lines = printable(message).splitlines()
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines)


def _version(wanted: bool) -> None:
    if wanted:
        from raptor import __version__

        print(f"raptor {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction] typer calls it
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere on the line.")
    ] = False,
) -> None:
    context.obj = _chips


def _chips(device: str) -> Any:
    """Returns crossbars of a device, for the commands that run programs on them."""
    from raptor.device.programs import Chips

    return Chips(device)


Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]


@app.command("compile")
def compile_command(
    context: typer.Context,
    model: model_options.Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write.")] = Path("out"),
    xbar: model_options.Xbar = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of the chip.", show_default="144")] = None,
    xbars_per_core: model_options.XbarsPerCore = None,
    bits: model_options.Bits = 8,
    cell_bits: model_options.CellBits = None,
    chips: Annotated[
        int | None, typer.Option(min=1, help="Chips in a row, each with so many cores.", show_default="1")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(metavar="PRESET|NS:PJ", help="Cost of a flit from chip to chip: board-ht, package-ucie, 5:13000."),
    ] = None,
    arch: model_options.Arch = None,
    field: model_options.Field = None,
    shape: model_options.Shape = None,
    dim: model_options.Dim = None,
    constant: model_options.Set = None,
    stream_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="json|pim|both",
            help=f"Streams: {STREAM_FORMAT}.",
            autocompletion=completion.stream_formats,
        ),
    ] = "json",
    weights: Annotated[
        str,
        typer.Option(
            metavar="json|npz", help=f"Crossbar weights: {WEIGHT_FORMAT}.", autocompletion=completion.weight_formats
        ),
    ] = "json",
    mapping: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Strategy: rows: layers stream; raptor, the reference; pixelwise; or a stored mapping.json.",
            show_default=DEFAULT_STRATEGY,
            autocompletion=completion.strategies,
        ),
    ] = None,
    optimize: Annotated[
        str | None,
        typer.Option(
            metavar="GOAL",
            help=f"Search instead: {OBJECTIVE}, by the built-in simulator; or writes, of rounds.",
            autocompletion=completion.objectives,
        ),
    ] = None,
    effort: Annotated[
        int | None,
        typer.Option(min=1, help="Mappings that --optimize tries at most.", show_default="5; more for small models"),
    ] = None,
    emit_mapping: Annotated[Path | None, typer.Option(help="Also write the mapping to this file.")] = None,
    emit_ops: Annotated[
        Path | None, typer.Option(help="Also write the flow of operators, as the chip's interface has them.")
    ] = None,
    knob: model_options.Knob = None,
    isa: model_options.InstructionSet = "extended",
    requant: Annotated[
        str | None,
        typer.Option(
            metavar="exact|short|instruction",
            help="How a quantised model's sums become integers of few bits: exact; short: faster, rounds some "
            "otherwise; instruction: by the extended vrequant.",
            show_default="exact",
            autocompletion=completion.requants,
        ),
    ] = None,
    host: model_options.Host = False,
    host_ops: model_options.HostOps = None,
    host_nodes: model_options.HostNodes = None,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Cut a model that is too large into rounds, each written before it runs.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples for which a round is written, with --rounds.", show_default="1")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="FILE|PRESET", help="Device file with the costs of writing.", show_default=DEFAULT_DEVICE),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(CUTS.names),
            help="Where a model in rounds is cut: first-fit and each-layer show what a simpler method takes.",
            show_default="best",
            autocompletion=completion.cuts,
        ),
    ] = None,
    dump_ir: Annotated[Path | None, typer.Option(help="Directory for the text of every level.")] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(metavar="PASS", help="Print what this pass returns, and stop.", autocompletion=completion.passes),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print each stage on a separate line.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compile an ONNX model to instruction streams.

    Example: raptor compile lenet5.onnx --xbar 128 --cores 20
    """
    import raptor
    from raptor.cli import progress
    from raptor.common import storage
    from raptor.common.beside import Beside
    from raptor.common.threads import Threads
    from raptor.driver import Driver, Stopped
    from raptor.output import writer as outputs

    streams, matrices = STREAM_FORMAT.parse(stream_format), WEIGHT_FORMAT.parse(weights)
    base_isa = ISA.parse(isa) == "base"
    storage.check_no_terminal("-o", output)
    if stop_after is not None:
        useless = {"output", "stream_format", "weights", "emit_mapping", "emit_ops", "quiet"}
        useless |= set() if dump_ir else {"force"}
        refuse_given(context, useless, "not with --stop-after, which prints what a pass returns and writes no output")
    if dump_ir is not None and dump_ir.is_dir() and any(dump_ir.iterdir()) and not force:
        raise UserError(f"--dump-ir {dump_ir}: is not empty; --force replaces what has the same names")
    for name, file in (("--emit-mapping", emit_mapping), ("--emit-ops", emit_ops)):
        if file is not None:
            storage.check_replaceable(name, file, force=force)
    if verbose and quiet:
        raise UserError("--verbose: not with --quiet")
    keep = nullcontext() if stop_after else outputs.reserved(output, force=force)
    shown = progress.progress(quiet=quiet or stop_after is not None, verbose=verbose)
    # What is shown or written before the end is checked before.
    at_once = stop_after or dump_ir or emit_mapping or emit_ops
    with keep, shown as started, nullcontext() if at_once else Beside() as beside:
        driver = Driver(dump=dump_ir, stop_after=stop_after, started=started, beside=beside)
        try:
            program = raptor.compile(
                model,
                xbar=xbar,
                cores=cores,
                xbars_per_core=xbars_per_core,
                bits=bits,
                cell_bits=cell_bits,
                chips=chips,
                link=link,
                arch=arch,
                fields=model_options.read_fields(field or ()),
                shapes=model_options.read_shapes(shape or ()),
                dims=model_options.read_dims(dim or ()),
                constants=model_options.read_constants(constant or ()),
                mapping=mapping,
                optimize=None if optimize is None else GOAL.parse(optimize),
                effort=effort,
                emit_mapping=emit_mapping,
                emit_ops=emit_ops,
                knobs=model_options.read_knobs(knob or ()),
                base_isa=base_isa,
                requant=None if requant is None else REQUANT.parse(requant),
                host=host,
                host_ops=model_options.read_names(host_ops or ()),
                host_nodes=model_options.read_names(host_nodes or ()),
                rounds=rounds,
                batch=batch,
                device=device,
                cuts=None if cuts is None else CUTS.parse(cuts),
                driver=driver,
            )
        except Stopped as stopped:
            print(printable(stopped.text), end="")
            return
        with Threads(1) as pool:
            findings = pool.submit(program.check)
            driver.timed("write", program.save, output, stream_format=streams, weight_format=matrices, force=force)
            found = driver.timed("check", findings.result)
    if not quiet:
        progress.show_summary(program, output)
        progress.show_findings(found)


@app.command("models")
def models_command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Model to write; without it, all are listed.", autocompletion=completion.models),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write.", show_default="NAME.onnx")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the model, such as head=global_average_pool."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
) -> None:
    """List the built-in models, or write one as an ONNX file with seeded weights.

    Example: raptor models lenet5 -o lenet5.onnx
    """
    require_own("models")
    from raptor.cli import zoo

    if name is None:
        refuse_given(context, {"output", "seed", "option", "force", "quiet"}, "needs the NAME of a model to write")
        zoo.show()
        return
    path = output or Path(f"{name}.onnx")
    size = zoo.write(name, path, seed=seed, options=option or [], force=force)
    if not quiet:
        print(f"{path}: {size / 1e6:.1f} MB")


app.command("quantize")(raptor.cli.quantise.command)
app.command("validate")(validator.cli.command)
app.command("accuracy")(raptor.cli.accuracy.command)
app.command("run")(raptor.cli.run.command)
app.command("check")(validator.check_cli.command)
app.command("simulate")(validator.simulate.cli.command)
app.command("report")(raptor.cli.report.report_command)
app.command("compare")(raptor.cli.report.compare_command)
app.command("inspect")(raptor.cli.inspection.command)
app.command("explain")(raptor.cli.explain.command)
app.add_typer(raptor.cli.arch.app, name="arch")
app.add_typer(raptor.cli.explore.app, name="explore")


@app.command("help")
def help_command(
    name: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Command to show; default: all.")] = None,
) -> None:
    """Show what a command does, as its --help.

    Example: raptor help compile
    """
    command()(args=[*(name or ()), "--help"], prog_name="raptor")


def command() -> Any:
    """Returns all commands as typer runs and shows them."""
    return plain_usage(get_command(app))
