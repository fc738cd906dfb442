"""Entry point of the command line, its commands, and the errors that it prints. Commands call the Python API."""

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

import raptor.tools.cli.accuracy
import raptor.tools.cli.arch
import raptor.tools.cli.explain
import raptor.tools.cli.explore
import raptor.tools.cli.inspect
import raptor.tools.cli.quantize
import raptor.tools.cli.report
import raptor.tools.cli.run
import raptor.tools.harden.harden_command
import raptor.tools.mcp.command
import raptor.tools.prune.prune_command
import raptor.tools.repair.repair_command
import raptor.tools.repair.yield_command
import raptor.tools.train.train_command
import raptor.tools.trim.trim_command
import validator.check_cli
import validator.cli
import validator.simulate.cli
from raptor.common.errors import (
    IncompleteError,
    InternalError,
    RaptorError,
    UserError,
)
from raptor.common.option_spelling import flag_name, spell_as_flags
from raptor.common.options.option_conflicts import refuse_options
from raptor.common.package_clashes import require_own_packages
from raptor.common.process.address_space import check_address_space
from raptor.common.process.signals import EXIT_INTERRUPTED, StopSignals
from raptor.common.terminal.escaping import escape_unprintable
from raptor.options import CompileKeywords, OutputOptions
from raptor.tools.cli import shell_completion
from raptor.tools.cli.help_layout import simplify_usage
from raptor.tools.cli.option_parameters import ModelArgument, QuietOption, expand_options

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


@spell_as_flags()
def main(argv: list[str] | None = None) -> NoReturn:
    """Runs a command. Exit status: 0 done, 1 mismatch, 2 bad input, 3 deadlock, 70 a bug, 130 and 143 stopped."""
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        # The terminal may lack letters of a name. The stubs do not say which buffer such a stream has.
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportUnknownMemberType] see above
    stopper = StopSignals()
    try:
        with stopper.handle_signals():
            _run([a for a in args if a != "--debug"], debug="--debug" in args)
    except KeyboardInterrupt:
        _fail(*stopper.describe_stop())


def _run(args: list[str], *, debug: bool) -> NoReturn:
    try:
        check_address_space()
        _check_encoding(args)
        build_commands()(args=args, prog_name="raptor")
    except RaptorError as e:
        if debug:
            raise
        _fail(_with_command(e, args) if isinstance(e, IncompleteError) else str(e), e.exit_status)
    except SystemExit as e:
        if e.code == EXIT_INTERRUPTED:  # typer's answer to Ctrl-C, without a message
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
    """Returns the message of the error, with the complete command to type instead."""
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
    """Truncates long lines, because a name from a file could fill the terminal."""
    lines = escape_unprintable(message).splitlines()
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
    """Returns a writer of programs to a device, for the commands of the validator that run programs on one."""
    from raptor.device.program_execution import DeviceWriter

    return DeviceWriter(device)


@app.command("compile")
@expand_options
def compile_command(model: ModelArgument, options: CompileKeywords, output: OutputOptions) -> None:
    """Compile an ONNX model to instruction streams.

    Example: raptor compile lenet5.onnx --xbar 128 --cores 20
    """
    import raptor
    from raptor.codegen.machine_backend import find_backend, refuse_options
    from raptor.common.files import file_access
    from raptor.common.process.forked_task import BackgroundChecks
    from raptor.common.process.thread_pool import CheckedThreadPool
    from raptor.compiler.pass_driver import Driver, StoppedAfterPass
    from raptor.output import writer as outputs
    from raptor.tools.cli import compile_view

    folder, stop_after, dump_ir = output.output, output.stop_after, output.dump_ir
    emitted = {name: options.get(name) for name in ("emit_mapping", "emit_ops")}
    file_access.refuse_stdout("-o", folder)
    if stop_after and output.force and not dump_ir:
        raise UserError("--force: not with --stop-after, which prints what a pass returns and writes no output")
    if dump_ir is not None and dump_ir.is_dir() and any(dump_ir.iterdir()) and not output.force:
        raise UserError(f"--dump-ir {dump_ir}: is not empty; --force replaces what has the same names")
    for name, file in emitted.items():
        if file is not None:
            file_access.check_file_replaceable(flag_name(name), Path(file), force=output.force)
    refuse_options(find_backend(options.get("backend") or "pimsim"), output)
    if output.verbose and output.quiet:
        raise UserError("--verbose: not with --quiet")
    passes: Any = {}
    if output.from_mlir is not None:
        from raptor.mlir.program_file import ProgramFile

        program_file = ProgramFile.read(output.from_mlir)
        passes = {program_file.after: program_file}
    keep = nullcontext() if stop_after else outputs.reserve_folder(folder, force=output.force)
    shown = compile_view.show_progress(quiet=output.quiet or stop_after is not None, verbose=output.verbose)
    # What is shown or written before the end is checked before.
    at_once = stop_after or dump_ir or passes or any(emitted.values())
    with keep, shown as started, nullcontext() if at_once else BackgroundChecks() as beside:
        forms: Any = {"dump": dump_ir, "dump_format": output.dump_format, "passes": passes}
        driver = Driver(**forms, stop_after=stop_after, started=started, beside=beside)
        try:
            program = raptor.compile(model, driver=driver, **options)
        except StoppedAfterPass as stopped:
            print(escape_unprintable(stopped.text), end="")
            return
        with CheckedThreadPool(1) as pool:
            findings = pool.submit(program.check)
            forms = {"stream_format": output.stream_format, "weight_format": output.weight_format}
            driver.timed("write", program.save, folder, **forms, force=output.force)
            found = driver.timed("check", findings.result)
    if not output.quiet:
        compile_view.show_summary(program, folder)
        compile_view.show_findings(found)


@app.command("models")
def models_command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Model to write; without it, all are listed.", autocompletion=shell_completion.models),
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
    quiet: QuietOption = False,
) -> None:
    """List the built-in models, or write one as an ONNX file, with seeded weights or trained ones.

    Example: raptor models lenet5 -o lenet5.onnx
    """
    require_own_packages("models")
    from raptor.tools.cli import model_zoo

    if name is None:
        refuse_options(context, {"output", "seed", "option", "force", "quiet"}, "needs the NAME of a model to write")
        model_zoo.show_models()
        return
    path = output or Path(f"{name}.onnx")
    size = model_zoo.write_model(name, path, seed=seed, options=option or [], force=force)
    if not quiet:
        print(f"{path}: {size / 1e6:.1f} MB")


app.command("quantize")(raptor.tools.cli.quantize.quantize_command)
app.command("prune")(raptor.tools.prune.prune_command.prune_command)
app.command("validate")(validator.cli.command)
app.command("accuracy")(raptor.tools.cli.accuracy.accuracy_command)
app.command("harden")(raptor.tools.harden.harden_command.harden_command)
app.command("train")(raptor.tools.train.train_command.train_command)
app.command("trim")(raptor.tools.trim.trim_command.trim_command)
app.command("repair")(raptor.tools.repair.repair_command.repair_command)
app.command("yield")(raptor.tools.repair.yield_command.yield_command)
app.command("run")(raptor.tools.cli.run.run_command)
app.command("generate")(raptor.tools.cli.run.generate_command)
app.command("check")(validator.check_cli.command)
app.command("simulate")(validator.simulate.cli.command)
app.command("report")(raptor.tools.cli.report.report_command)
app.command("compare")(raptor.tools.cli.report.compare_command)
app.command("inspect")(raptor.tools.cli.inspect.inspect_command)
app.command("explain")(raptor.tools.cli.explain.explain_command)
app.command("mcp")(raptor.tools.mcp.command.mcp_command)
app.add_typer(raptor.tools.cli.arch.app, name="arch")
app.add_typer(raptor.tools.cli.explore.app, name="explore")


@app.command("help")
def help_command(
    name: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Command to show; default: all.")] = None,
) -> None:
    """Show what a command does, as its --help.

    Example: raptor help compile
    """
    build_commands()(args=[*(name or ()), "--help"], prog_name="raptor")


def build_commands() -> Any:
    """Returns the command `raptor` with all its subcommands, as typer runs it."""
    return simplify_usage(get_command(app))
