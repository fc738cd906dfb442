"""The command line: what it prints, what it leaves behind, how it fails."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import models
import raptor
from docgen.cli import split_help
from raptor.compiler.compilation import PASS_OPTION
from raptor.tools.cli import app
from tests.paths import ROOT
from tests.pipeline import arch_file, conv_model, thesis_model
from tests.tiny_models import make_model, node, random

CHIP = ["--xbar", "3", "--xbars-per-core", "5", "--cores", "16"]


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Shell:
    """Runs commands in a directory of its own."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *args: str) -> Result:
        with pytest.raises(SystemExit) as stopped:
            app.main(list(args))
        captured = self.capture.readouterr()
        return Result(int(stopped.value.code or 0), captured.out, captured.err)

    def ok(self, *args: str) -> Result:
        result = self.run(*args)
        assert result.status == 0, result.err
        return result

    def refused(self, *args: str) -> str:
        """The message of a command that is refused with status 2, says so, and leaves everything as it was."""
        before = self.listing()
        result = self.run(*args)
        assert result.status == 2, (result.out, result.err)
        assert "Traceback" not in result.err + result.out
        assert "internal" not in result.err
        assert self.listing() == before
        return result.err

    def listing(self) -> list[tuple[str, int]]:
        """Lists every file and directory, also hidden ones, with its size."""
        return sorted((str(p.relative_to(self.folder)), p.stat().st_size) for p in self.folder.rglob("*"))

    def model(self, model: ModelProto, name: str = "model.onnx") -> str:
        (self.folder / name).write_bytes(model.SerializeToString())
        return name


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)


@pytest.fixture
def model(shell: Shell) -> str:
    return shell.model(thesis_model(4, 8))


# The usual way


def test_compile_then_validate(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP)
    assert "PASS" in shell.ok("validate", "out").out


def test_a_pipe_gets_plain_lines(shell: Shell, model: str, monkeypatch: pytest.MonkeyPatch):
    """A pipe gets no colours, no progress, no blanks at the ends of lines, and no broken tables."""
    monkeypatch.delenv("COLUMNS", raising=False)  # readline, which pytest imports, sets it for xdist's workers
    result = shell.ok("compile", model, *CHIP)
    assert "\x1b" not in result.out
    assert result.err == ""
    for args in (["models"], ["arch", "list"], ["simulate", "out"], ["explain", "out"], ["inspect", model]):
        result = shell.ok(*args)
        assert result.err == ""
        assert not re.search(r"[ \t]$", result.out, re.MULTILINE), args
    assert len(shell.ok("models").out.splitlines()) == len(models.MODELS) + 2  # a title, and a language model


def test_columns_are_obeyed_in_a_pipe(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, shell.ok("models").out.splitlines())) <= 60


@pytest.mark.parametrize("more", [[], ["--stop-after", "map"]])
def test_verbose_prints_a_line_for_each_stage(shell: Shell, model: str, more: list[str]):
    result = shell.ok("compile", model, *CHIP, "--verbose", *more)
    stages = result.err.splitlines()
    assert stages[0] == "raptor: load"
    assert stages[-2:] == (["raptor: compose gathers", "raptor: map"] if more else ["raptor: write", "raptor: check"])
    assert len(stages) == len(set(stages))


def test_verbose_and_quiet_contradict_each_other(shell: Shell, model: str):
    assert "--verbose: not with --quiet" in shell.refused("compile", model, *CHIP, "-q", "-v")


@pytest.mark.parametrize("command", ["validate", "check", "simulate", "explain"])
def test_json_on_the_terminal_is_all_there_is(shell: Shell, model: str, command: str):
    shell.run("compile", model, *CHIP)
    result = shell.run(command, "out", "--json", "-")
    assert result.status == 0
    assert json.loads(result.out)
    assert not (shell.folder / "-").exists()


def test_the_summary(shell: Shell, model: str):
    lines = shell.ok("compile", model, *CHIP, "--mapping", "raptor").out.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in lines if not line.startswith(" ")}
    assert rows["layers"] == "1, 1 of them on crossbars"
    assert rows["matrices"] == "54"
    assert rows["mapping"] == "raptor, tiles of 3 channels"
    assert rows["crossbars"] == "54 of 80 (67.5%)"
    assert rows["cores"] == "11 of 16 (68.8%)"
    assert "mvmul 600" in rows["instructions"]
    assert rows["output"].startswith("out/")
    assert {"local", "seconds"} <= rows.keys()


def test_the_summary_names_what_pimsim_does_not_load(shell: Shell):
    names = ["y", *(f"a{k}" for k in range(6))]
    nodes = [node("Exp", names[k], names[k + 1], name=f"exp{k}") for k in range(6)]
    nodes = [node("Softmax", "x", "y", name="soft0"), *nodes]
    onnx.save(make_model(nodes, {"x": (1, 4)}, ["a5"]), shell.folder / "m.onnx")
    text = shell.ok("compile", "m.onnx", "-o", "out", "--cores", "2").out
    assert (
        "note: pimsim-nn does not load this program: vsoftmax (1 node: soft0), "
        "vexp (6 nodes: exp0, exp1, exp2, exp3 and 2 more); --isa base refuses such models\n"
    ) in text
    assert "exp5" in shell.refused("compile", "m.onnx", "-o", "base", "--isa", "base")
    # It is what was asked for: our own output passes our own check.
    assert shell.ok("check", "out").status == 0


def test_the_summary_says_nothing_of_programs_that_pimsim_loads(shell: Shell, model: str):
    assert "pimsim" not in shell.ok("compile", model, *CHIP).out


def test_the_summary_notes_passes_of_the_converters(shell: Shell, model: str):
    wide = ("compile", model, "--cores", "8", "--xbar")
    assert "note: 2 passes: 256 rows by 128 DACs" in shell.ok(*wide, "256", "-o", "a").out
    assert "passes" not in shell.ok(*wide, "128x256", "-o", "b").out
    found = shell.ok("arch", "check", "a/arch.json").out
    assert "note arch-dac-passes" in found
    assert "2 passes: 256 rows by 128 DACs" in found


def test_the_summary_shows_warnings(shell: Shell):
    model = shell.model(make_model([node("Relu", "x")], {"x": (1, 8, 400, 400)}, ["y"]))
    assert (
        "warning: local memory: 1 of 1 cores need more"
        in shell.ok("compile", model, "--cores", "1", "--mapping", "raptor").out
    )


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet(shell: Shell, model: str, flag: str):
    nothing = Result(0, "", "")
    assert shell.ok("compile", model, *CHIP, flag) == nothing
    assert shell.ok("inspect", model, flag) == nothing
    assert shell.ok("arch", "new", "--xbar", "64", flag) == nothing
    assert shell.ok("models", "mlp", "--option", "width=0.1", flag) == nothing
    assert shell.ok("report", "out", flag) == nothing
    assert shell.ok("compare", "out", "out", flag, "-o", "compare.html") == nothing
    for command in ("simulate", "explain", "validate", "check"):
        assert len(shell.ok(command, "out", flag).out.splitlines()) == 1


def test_standard_output_takes_json_only(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP, "-q")
    for command in (
        ["simulate", "out", "--trace", "-"],
        ["report", "out", "-o", "-"],
        ["compare", "out", "out", "-o", "-"],
        ["models", "mlp", "-o", "-"],
        ["arch", "new", "-o", "-"],
        ["compile", model, *CHIP, "-o", "again", "--emit-mapping", "-"],
        ["compile", model, *CHIP, "-o", "-"],
    ):
        assert f"{command[-2]} -: standard output takes JSON only" in shell.refused(*command)


def test_formats(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP, "-o", "binary", "--format", "pim", "--weights", "npz")
    assert (shell.folder / "binary/core_0.pim").exists()
    assert list((shell.folder / "binary/weights").glob("core_*_weights.npz"))
    assert "PASS" in shell.ok("validate", "binary").out


def test_options_reach_the_compiler(shell: Shell, model: str):
    sizes = ["--xbar", "8x16", "--xbars-per-core", "7", "--cores", "9", "--bits", "16", "--cell-bits", "4"]
    shell.ok("compile", model, *sizes)
    options = json.loads((shell.folder / "out/manifest.json").read_text())["options"]
    assert options["xbar"] == [8, 16]
    assert (options["xbars_per_core"], options["cores"], options["bits"], options["cell_bits"]) == (7, 9, 16, 4)


def test_shapes(shell: Shell):
    model = shell.model(make_model([node("Relu", "x")], {"x": ("n", 4, 2, 2)}, ["y"]))
    shell.ok("compile", model, "--shape", "x=1,4,2,2", "--cores", "1")
    memory = json.loads((shell.folder / "out/memory.json").read_text())
    assert memory["inputs"][0]["shape"] == [1, 4, 2, 2]


@pytest.mark.parametrize("arch", ["bench", "arch.json"])
def test_architectures(shell: Shell, model: str, arch: str):
    arch_file(shell.folder, memory_size=12345)
    shell.ok("compile", model, "--arch", arch, "--cores", "4")
    written = json.loads((shell.folder / "out/arch.json").read_text())["chip_config"]
    assert written["core_cnt"] == 4
    size = written["core_config"]["local_memory_config"]["memory_size"]
    assert size == (12345 if arch == "arch.json" else 2**20)


# Looking inside


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("load", "graph "),
        ("fold_relu", "graph model {"),
        ("map", "mapping rows"),
        ("partition", "spat.graph"),
        ("map_global_memory", "global memory of"),
        ("allocate", "address = "),
    ],
)
def test_stop_after(shell: Shell, model: str, name: str, text: str):
    before = shell.listing()
    result = shell.ok("compile", model, *CHIP, "--stop-after", name)
    assert text in result.out
    assert result.err == ""
    assert shell.listing() == before


def test_stop_after_the_last_pass_shows_the_streams(shell: Shell, model: str):
    assert "mvmul rd=1 rs1=2" in shell.ok("compile", model, *CHIP, "--stop-after", "generate").out


def test_dump_ir(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP, "--dump-ir", "ir")
    written = sorted(p.name for p in (shell.folder / "ir").iterdir())
    assert written == [f"{i:02d}-{name}.txt" for i, name in enumerate(PASS_OPTION.choices)]
    (partition,) = (shell.folder / "ir").glob("*-partition.txt")
    assert partition.read_text().startswith("spat.graph")


def test_dump_ir_stops_where_asked(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP, "--dump-ir", "ir", "--stop-after", "map")
    assert len(list((shell.folder / "ir").iterdir())) == PASS_OPTION.choices.index("map") + 1
    assert not (shell.folder / "out").exists()


# Bad models


def test_no_such_model(shell: Shell):
    assert shell.refused("compile", "missing.onnx") == "raptor: error: missing.onnx: no such file\n"


@pytest.mark.parametrize("command", ["compile", "inspect", "quantize"])
def test_a_directory_in_place_of_a_model(shell: Shell, command: str):
    (shell.folder / "program").mkdir()
    assert shell.refused(command, "program") == "raptor: error: program: a directory, where an ONNX model is expected\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file is empty"),
        (b"\x00" * 40, "not an ONNX model, or truncated"),
        (b"not a model", "not an ONNX model, or truncated"),
        (b"{}", "not an ONNX model, or truncated"),
        (b"\x08\x08", "not an ONNX model: it has no graph with outputs"),
    ],
    ids=["empty", "zeros", "text", "json", "bare"],
)
def test_a_file_that_is_no_model(shell: Shell, content: bytes, fault: str):
    (shell.folder / "model.onnx").write_bytes(content)
    assert shell.refused("compile", "model.onnx") == f"raptor: error: model.onnx: {fault}\n"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_model(shell: Shell, part: float):
    content = thesis_model(4, 8).SerializeToString()
    (shell.folder / "model.onnx").write_bytes(content[: int(len(content) * part)])
    assert "model.onnx" in shell.refused("compile", "model.onnx")


def test_every_unsupported_node_is_named(shell: Shell):
    nodes = [
        node("NonZero", "x", "a", name="first_bad"),
        node("Relu", "x", "r", name="good"),
        node("Frobnicate", "r", "y", name="second_bad", domain="com.example"),
    ]
    model = shell.model(make_model(nodes, {"x": (1, 4, 2, 2)}, {"y": 4}))
    message = shell.refused("compile", model)
    assert "2 nodes cannot be compiled" in message
    assert "first_bad (NonZero)" in message
    assert "second_bad" in message
    assert "good" not in message


def test_an_unknown_dimension(shell: Shell):
    model = shell.model(make_model([node("Relu", "x")], {"x": ("batch", 4, "h", 2)}, ["y"]))
    message = shell.refused("compile", model)
    assert "input 'x' (1,4,h,2): h has no size" in message
    assert message.endswith("try: raptor compile model.onnx --dim h=SIZE\n")


@pytest.mark.parametrize("shape", ["x=1,4", "z=1,4,2,2", "x=1,5,2,2"])
def test_a_shape_that_does_not_fit(shell: Shell, shape: str):
    model = shell.model(make_model([node("Relu", "x")], {"x": ("batch", 4, 2, 2)}, ["y"]))
    assert shape.partition("=")[0] in shell.refused("compile", model, "--shape", shape)


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.COMPLEX64])
def test_a_model_of_other_numbers(shell: Shell, kind: int):
    value = [helper.make_tensor_value_info(name, kind, [1, 4]) for name in "xy"]
    graph = helper.make_graph([node("Identity", "x")], "tiny", value[:1], value[1:])
    model = shell.model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert "x" in shell.refused("compile", model)


def test_weights_that_are_not_numbers(shell: Shell):
    weights = random(4, 4, 1, 1)
    weights[0, 0] = np.nan
    message = shell.refused("compile", shell.model(conv_model((1, 4, 2, 2), 4, (1, 1), weights=weights)))
    assert "'w': 1 of 16 values are not finite" in message


def test_external_data_that_is_missing(shell: Shell):
    content = conv_model((1, 4, 2, 2), 4, (1, 1))
    onnx.save(content, shell.folder / "model.onnx", save_as_external_data=True, location="data", size_threshold=0)
    (shell.folder / "data").unlink()
    assert "data" in shell.refused("compile", "model.onnx")


# Bad chips


def test_too_few_cores(shell: Shell, model: str):
    message = shell.refused("compile", model, "--xbar", "3", "--xbars-per-core", "5", "--cores", "10")
    assert "conv (Conv)" in message
    assert "need 11, have 10" in message
    assert "--cores 11" in message


def test_the_advice_for_too_few_cores_works(shell: Shell, model: str):
    shell.ok("compile", model, "--xbar", "3", "--xbars-per-core", "5", "--cores", "11")


def test_too_little_local_memory(shell: Shell, model: str):
    arch_file(shell.folder, memory_size=64)
    message = shell.refused("compile", model, "--arch", "arch.json", *CHIP)
    assert re.search(
        r"core \d+, the fullest of \d+ that need more, .*: bytes of local memory: need \d+, have 64", message
    )
    assert "memory_size" in message


@pytest.mark.parametrize("value", ["", "0", "-3", "3x", "x3", "3x4x5", "three", "70000", "1.5", "٣"])
def test_a_bad_crossbar(shell: Shell, model: str, value: str):
    assert f"--xbar {value}: expected a size such as 128, or 128x256" in shell.refused(
        "compile", model, f"--xbar={value}"
    )


@pytest.mark.parametrize("value", ["x", "x=", "=1,2", "x=1,,2", "x=1,a", "x=1,-4", "x=1.5"])
def test_a_bad_shape(shell: Shell, model: str, value: str):
    assert f"--shape {value}: expected NAME=SIZES" in shell.refused("compile", model, f"--shape={value}")


@pytest.mark.parametrize("value", ["h", "h=", "=3", "h=3x", "h=-1", "h=1.5", "h=1,2", "h=1234567890"])
def test_a_bad_dimension(shell: Shell, model: str, value: str):
    assert f"--dim {value}: expected NAME=SIZE" in shell.refused("compile", model, f"--dim={value}")
    assert f"--dim {value}: expected NAME=SIZE" in shell.refused("inspect", model, f"--dim={value}")


@pytest.mark.parametrize("value", ["sr", "=3", "="])
def test_a_bad_constant(shell: Shell, model: str, value: str):
    assert f"--set {value}: expected NAME=VALUE" in shell.refused("compile", model, f"--set={value}")


@pytest.mark.parametrize("option", ["--shape", "--dim", "--set"])
@pytest.mark.parametrize("command", ["compile", "inspect"])
def test_a_name_given_twice(shell: Shell, model: str, command: str, option: str):
    assert f"{option} x: given twice" in shell.refused(command, model, option, "x=1", option, "x=2")


@pytest.mark.parametrize(("option", "allowed"), [("--format", "json, pim, both"), ("--weights", "json, npz")])
def test_a_bad_format(shell: Shell, model: str, option: str, allowed: str):
    assert f"{option} xml: expected one of: {allowed}" in shell.refused("compile", model, option, "xml")


def test_a_bad_instruction_set(shell: Shell, model: str):
    assert "--isa riscv: expected one of: extended, base" in shell.refused("compile", model, "--isa", "riscv")


def test_a_mapping_without_its_output(shell: Shell, model: str):
    message = shell.refused("compile", model, *CHIP, "--stop-after", "map", "--emit-mapping", "m.json")
    assert "--emit-mapping: not with --stop-after" in message
    assert not (shell.folder / "m.json").exists()


def test_a_bad_pass(shell: Shell, model: str):
    assert "--stop-after lunch: expected one of: load, fold_gains, drop_dead_channels" in shell.refused(
        "compile", model, "--stop-after", "lunch"
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--cores", "0"],
        ["--cores", "many"],
        ["--xbars-per-core", "-1"],
        ["--bits", "33"],
        ["--cell-bits", "0"],
        ["--nonsense"],
        ["extra"],
    ],
)
def test_bad_options(shell: Shell, model: str, options: Sequence[str]):
    assert options[0] in shell.refused("compile", model, *options)


def test_no_command_and_a_wrong_one(shell: Shell):
    assert "decompile" in shell.refused("decompile")
    assert shell.run().status in (0, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; give a file or one of: bench"),
        ("{", "not a JSON file"),
        ("[]", "expected an object with chip_config"),
        ("{}", "chip_config.network_config.layout: Field required"),
        ('{"chip_config": {"core_cmt": 4}}', "core_cmt"),
        ('{"chip_config": 3}', "chip_config"),
        ('{"chip_config": {"core_config": 3}}', "core_config: expected an object"),
        ('{"chip_config": {"core_config": {"matrix_config": []}}}', "matrix_config: expected an object"),
        ('{"chip_config": {"core_config": {"local_memory_config": 1}}}', "local_memory_config: expected an object"),
        ('{"chip_config": {"network_config": null}}', "network_config: expected an object"),
        (
            '{"chip_config": {"core_cnt": 9, "network_config": {"layout": [2, 2]}}}',
            "layout 2x2 has no room for 9 cores",
        ),
    ],
    ids=[
        "missing",
        "not json",
        "list",
        "empty",
        "misspelt",
        "number",
        "inner number",
        "list inside",
        "memory",
        "null",
        "mesh",
    ],
)
def test_a_bad_architecture(shell: Shell, model: str, content: str | None, message: str):
    if content is not None:
        (shell.folder / "arch.json").write_text(content)
    assert message in shell.refused("compile", model, "--arch", "arch.json")


# Bad places


def test_an_output_that_exists(shell: Shell, model: str):
    shell.ok("compile", model, *CHIP)
    assert "exists; choose another with -o, or replace it with --force" in shell.refused("compile", model, *CHIP)
    shell.ok("compile", model, *CHIP, "--force")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_directory_of_something_else(shell: Shell, model: str, force: list[str]):
    (shell.folder / "out").mkdir()
    (shell.folder / "out/precious").write_text("content")
    assert "exists and is not an output of raptor" in shell.refused("compile", model, *CHIP, *force)


def test_a_path_that_cannot_be_written(shell: Shell, model: str):
    assert "cannot be written" in shell.refused("compile", model, *CHIP, "-o", f"{model}/out")


def test_a_dump_that_cannot_be_written(shell: Shell, model: str):
    assert f"--dump-ir {model}/ir" in shell.refused("compile", model, *CHIP, "--dump-ir", f"{model}/ir")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("missing", "missing: no such file or directory"),
        ("text", "text: not a directory"),
        (".", "manifest.json: missing, or not a regular file of this directory"),
    ],
)
def test_a_directory_that_is_no_output(shell: Shell, name: str, fault: str):
    (shell.folder / "text").write_text("content")
    assert shell.refused("validate", name) == f"raptor: error: {fault}\n"


@pytest.mark.parametrize("command", ["validate", "simulate", "check", "explain", "report", "run", "compare x.onnx"])
def test_a_model_that_was_not_compiled(shell: Shell, model: str, command: str):
    refused = shell.refused(*command.replace("x.onnx", model).split(), model)
    assert refused == (
        f"raptor: error: {model}: a model, where a compiled program is expected; "
        f"compile it first: raptor compile {model}\n"
    )


@pytest.mark.parametrize("command", ["validate", "simulate", "check", "explain", "report", "compare missing"])
def test_a_program_that_is_not_there(shell: Shell, command: str):
    assert shell.refused(*command.split(), "missing") == "raptor: error: missing: no such file or directory\n"


@pytest.mark.parametrize("flags", [["--debug", "compile", "missing.onnx"], ["compile", "missing.onnx", "--debug"]])
def test_debug_raises(shell: Shell, flags: list[str]):
    with pytest.raises(raptor.UserError, match=r"^missing\.onnx: no such file$"):
        app.main(flags)


# A process of its own


def python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, cwd=cwd, env=environment, timeout=900, check=False
    )


MAIN = "import raptor.tools.cli.app; raptor.tools.cli.app.main()"


STOPPED = """
import os, signal, sys, time
from raptor.tools.cli import app
from raptor.output import writer
def stop(*_):
    os.kill(os.getpid(), signal.{name})
    time.sleep(60)
writer._npy = stop
app.main(sys.argv[1:])
"""
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Python does this too, unless SIGINT is ignored where it starts, as in a shell script that ends in `&`."""


@pytest.mark.parametrize(("name", "word", "status"), [("SIGINT", "interrupted", 130), ("SIGTERM", "terminated", 143)])
def test_signals_leave_nothing_behind(shell: Shell, model: str, name: str, word: str, status: int):
    """The signal comes while files are written; an earlier output stays as it was."""
    for output, options in (("new", []), ("out", ["--force"])):
        shell.run("compile", model, *CHIP, "-q")
        before = shell.listing()
        command = ["compile", model, *CHIP, "-o", output, *options]
        ended = python("-c", LISTENING + STOPPED.format(name=name), *command, cwd=shell.folder)
        assert (ended.returncode, ended.stderr) == (status, f"raptor: error: {word}\n")
        assert shell.listing() == before


def test_who_ignores_sigterm_is_not_stopped_by_it(shell: Shell, model: str):
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    script = ignoring + STOPPED.format(name="SIGTERM").replace("time.sleep(60)", "return b''")
    assert python("-c", script, "compile", model, *CHIP, cwd=shell.folder).returncode == 0


def test_debug_shows_the_traceback(tmp_path: Path):
    plain = python("-c", MAIN, "compile", "missing.onnx", cwd=tmp_path)
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert plain.stderr.splitlines()[-1].startswith("raptor: error: missing.onnx: ")
    debug = python("-c", MAIN, "compile", "missing.onnx", "--debug", cwd=tmp_path)
    assert debug.returncode != 0
    assert "Traceback" in debug.stderr


def imported(args: Sequence[str], cwd: Path) -> set[str]:
    """The modules that a command imports."""
    script = (
        "import sys, atexit, raptor.tools.cli.app\n"
        "atexit.register(lambda: print('\\nMODULES', *sys.modules, file=sys.stderr))\n"
        f"raptor.tools.cli.app.main({list(args)})\n"
    )
    result = python("-c", script, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return set(result.stderr.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["compile", "--help"], ["validate", "-h"], ["models"]])
def test_help_is_quick(tmp_path: Path, args: list[str]):
    heavy = {"onnx", "numba", "onnxruntime"}
    assert imported(args, tmp_path) & heavy == set()


def test_an_internal_error_asks_for_a_report(shell: Shell, model: str, monkeypatch: pytest.MonkeyPatch):
    def lower(*_: object) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr("raptor.pim.lower", lower)
    before = shell.listing()
    result = shell.run("compile", model, *CHIP)
    assert result.status == 70
    assert "internal error, please report it (--debug shows where): lower failed" in result.err
    assert "Traceback" not in result.err
    assert shell.listing() == before


def fails(error: BaseException) -> Callable[..., None]:
    def stage(*_: object, **__: object) -> None:
        raise error

    return stage


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 2, "out of memory; try"),
        (BufferError("odd"), 70, "internal error, please report it (--debug shows where): BufferError: odd"),
    ],
    ids=["interrupt", "memory", "other"],
)
def test_other_ends(
    shell: Shell, model: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
):
    monkeypatch.setattr("raptor.frontend.load", fails(error))
    before = shell.listing()
    result = shell.run("compile", model, *CHIP)
    assert result.status == status
    assert message in result.err
    assert shell.listing() == before


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(shell: Shell, flag: str):
    assert shell.ok(flag).out == f"raptor {raptor.__version__}\n"


def test_python_runs_it_as_a_module(tmp_path: Path):
    ended = python("-m", "raptor", "-V", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, f"raptor {raptor.__version__}\n")
    ended = python("-m", "raptor", "compile", "missing.onnx", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "raptor: error: missing.onnx: no such file\n")


# raptor models


def test_models_are_listed(shell: Shell):
    out = shell.ok("models").out
    for name in ("lenet5", "resnet18", "resnet34", "resnet50", "vgg16", "googlenet", "squeezenet", "mlp"):
        assert name in out
    assert shell.listing() == []


def test_a_model_is_written(shell: Shell):
    assert "lenet5.onnx: 0." in shell.ok("models", "lenet5").out
    onnx.checker.check_model(onnx.load(shell.folder / "lenet5.onnx"))
    shell.ok("models", "lenet5", "-o", "again.onnx", "-q")
    assert (shell.folder / "lenet5.onnx").read_bytes() == (shell.folder / "again.onnx").read_bytes()
    shell.ok("models", "lenet5", "-o", "other.onnx", "--seed", "1", "--option", "pool=max")
    assert (shell.folder / "other.onnx").read_bytes() != (shell.folder / "again.onnx").read_bytes()


def test_a_written_model_compiles(shell: Shell):
    shell.ok("models", "mlp", "--option", "width=0.1", "-q")
    shell.ok("compile", "mlp.onnx", "-q", "--xbar", "32")
    assert "PASS" in shell.ok("validate", "out").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lenet6"], "lenet6"),
        (["lenet5", "--option", "pool"], "--option pool: expected NAME=VALUE"),
        (["lenet5", "--option", "pool=median"], "median"),
        (["lenet5", "--option", "colour=red"], "colour"),
        (["lenet5", "--seed", "-1"], "--seed"),
        (["lenet5", "-o", "no/such/folder/x.onnx"], "cannot be written: No such file or directory"),
    ],
)
def test_models_refuses(shell: Shell, args: list[str], message: str):
    assert message in shell.refused("models", *args)


def test_a_model_that_exists_is_kept(shell: Shell):
    (shell.folder / "mlp.onnx").write_text("mine")
    assert "exists" in shell.refused("models", "mlp")
    shell.ok("models", "mlp", "--force", "--option", "width=0.1")
    assert (shell.folder / "mlp.onnx").stat().st_size > 4


# Help


def commands(group: object, name: str = "raptor") -> list[tuple[str, object]]:
    """Lists every command that does something, with its full name."""
    inner = getattr(group, "commands", {})
    below = [command for sub, found in inner.items() for command in commands(found, f"{name} {sub}")]
    return below or [(name, group)]


@pytest.mark.parametrize("words", [[], ["compile"], ["arch"], ["arch", "new"]])
def test_help_is_a_command_too(shell: Shell, words: list[str]):
    assert shell.ok("help", *words).out == shell.ok(*words, "--help").out
    assert "No such command 'decompile'" in shell.refused("help", "decompile")


@pytest.mark.parametrize(("name", "command"), commands(app.build_commands()))
def test_help_names_values_as_people_do(name: str, command: Any, shell: Shell):
    """The help has no braces, arguments in capitals, flags without a value, and lists short choices."""
    shown = shell.ok(*name.split()[1:], "--help").out
    assert not re.search(r"[{}]|<bool>", shown), shown
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            assert (parameter.metavar or "").upper() in shown
    if name == "raptor compile":
        assert all(choices in shown for choices in ("json|pim|both", "json|npz", "extended|base"))


@pytest.mark.parametrize(("name", "command"), commands(app.build_commands()))
def test_help_shows_an_example(name: str, command: object):
    """The text begins with one sentence. Examples are in docs/reference/cli.md, where they are run."""
    text, example = split_help(command)
    assert text.splitlines()[0].endswith(".")
    assert f"{name} " in f"{example} "
    assert "\n" not in example


def test_the_version_is_one(shell: Shell):
    assert shell.ok("--version").out == f"raptor {raptor.__version__}\n" == f"raptor {version('raptor-crossbar')}\n"
    assert f"\nversion: {raptor.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{raptor.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
