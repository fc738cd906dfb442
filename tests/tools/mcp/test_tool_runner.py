"""Calls of tools in processes, without the package mcp: results, limits, and attacks on the served folder."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import onnx
import pytest

from raptor.common.errors import UserError
from raptor.tools.mcp import schemas
from raptor.tools.mcp.served_folder import KEPT, ServedFolder
from raptor.tools.mcp.server import ToolRunner, make_server
from tests.tiny_models import make_model, node, random

T = TypeVar("T", bound=schemas.ToolSchema)
SECRET = "the content of the secret file"


async def ignore(done: float, limit: float, stage: str) -> None:
    pass


def runner(root: Path, *, model_bytes: int = 10**6, kept_bytes: int = 10**7, seconds: float = 100) -> ToolRunner:
    return ToolRunner(ServedFolder(root.resolve(), model_bytes, kept_bytes), seconds)


def run(runner: ToolRunner, kind: type[T], tool: str, **arguments: Any) -> T:
    found = asyncio.run(runner.run(tool, arguments, ignore))
    assert isinstance(found, kind)
    return found


def compiled(runner: ToolRunner, **arguments: Any) -> schemas.CompileResult:
    return run(runner, schemas.CompileResult, "compile_model", **({"model": "linear.onnx"} | arguments))


def linear(outputs: int = 4) -> onnx.ModelProto:
    return make_model([node("Gemm", "x w", "y", name="linear")], {"x": (1, 3)}, ["y"], {"w": random(3, outputs)})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a model, beside a secret file."""
    folder = tmp_path / "served"
    folder.mkdir()
    (tmp_path / "secret").write_text(SECRET)
    onnx.save(linear(), folder / "linear.onnx")
    return folder


def test_all_tools(root: Path):
    own = runner(root)
    small = {"cores": 2, "xbar": "8"}
    inspected = run(own, schemas.InspectResult, "inspect_model", model="linear.onnx", options={"xbar": "8"})
    assert (inspected.compiles, inspected.xbars, inspected.operators) == (True, 1, {"Gemm": 1})
    made = compiled(own, options=small)
    assert (made.reused, made.xbars_used, made.cores_available) == (False, 1, 2)
    assert (root / made.program / "manifest.json").is_file()
    assert compiled(own, options=small).model_dump() == made.model_dump() | {"reused": True}
    assert compiled(own, options={"cores": 3, "xbar": "8"}).program != made.program
    validated = run(own, schemas.ValidateResult, "validate_program", program=made.program)
    assert (validated.passed, [each.name for each in validated.outputs]) == (True, ["y"])
    simulated = run(own, schemas.SimulateResult, "simulate_program", program=made.program)
    assert simulated.latency_ns is not None
    assert simulated.latency_ns > 0
    explained = run(own, schemas.ExplainResult, "explain_program", program=made.program)
    assert (explained.latency_ns, [layer.node for layer in explained.layers]) == (simulated.latency_ns, ["linear"])
    assert run(own, schemas.CheckResult, "check_program", program=made.program).findings_total == 0


def test_pages(root: Path):
    own = runner(root)
    made = compiled(own)
    stream = {"program": made.program, "core": 0}
    whole = run(own, schemas.TextPage, "read_stream", **stream, count=500)
    assert len(whole.lines) == made.instructions
    assert whole.next_line is None
    assert all(line.startswith('{"op":') and line.endswith("}") for line in whole.lines)
    page = run(own, schemas.TextPage, "read_stream", **stream, first=1, count=2)
    assert (page.lines, page.next_line) == (whole.lines[1:3], 3)
    for _ in range(2):  # the second one from the kept text
        level = run(own, schemas.TextPage, "read_level", model="linear.onnx", level="lower", count=1)
        assert (level.lines, level.next_line) == (['pim.program "linear" {'], 1)
    with pytest.raises(UserError, match="expected one of: load, "):
        run(own, schemas.TextPage, "read_level", model="linear.onnx", level="higher")
    with pytest.raises(UserError, match="core 9999 has no stream"):
        run(own, schemas.TextPage, "read_stream", program=made.program, core=9999)


def test_what_the_compiler_refuses_arrives_with_what_to_change(root: Path):
    with pytest.raises(UserError, match="cores: need 4, have 1; try cores=4"):
        compiled(runner(root), options={"cores": 1, "xbars_per_core": 1, "xbar": "2"})
    (root / "noise.onnx").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(UserError, match=r"^noise.onnx: not an ONNX model, or truncated$"):
        compiled(runner(root), model="noise.onnx")
    assert [path.name for path in (root / KEPT).iterdir()] == []


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "a path above": lambda root: "../secret",
    "a path above, by a folder": lambda root: "folder/../../secret",
    "an absolute path": lambda root: str(root.parent / "secret"),
    "an absolute path inside": lambda root: str(root / "linear.onnx"),
    "the folder": lambda root: ".",
    "no path": lambda root: "",
    "a null character": lambda root: "linear.onnx\0",
    "a long name": lambda root: "x" * 299,
    "a link": lambda root: link(root / "link.onnx", root.parent / "secret"),
    "a link inside": lambda root: link(root / "link.onnx", root / "linear.onnx"),
    "a folder that is a link": lambda root: f"{link(root / 'up', root.parent)}/secret",
    "a link to itself": lambda root: link(root / "circle", root / "circle"),
    "a pipe": lambda root: pipe(root / "pipe.onnx"),
    "a folder as a model": lambda root: folder(root / "folder"),
}


def link(path: Path, to: Path) -> str:
    path.symlink_to(to)
    return path.name


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return path.name


def folder(path: Path) -> str:
    path.mkdir()
    return path.name


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_way_out_of_the_folder(name: str, root: Path):
    path = OUTSIDE[name](root)
    served = ServedFolder(root.resolve(), 10**6, 10**7)
    for find in (served.find_model, served.find_program):
        if find == served.find_program and name == "a folder as a model":
            continue
        with pytest.raises(UserError) as refused:
            find(path)
        assert SECRET not in str(refused.value)


def test_no_way_out_by_the_content_of_files(root: Path):
    own = runner(root)
    outside = onnx.load(root / "linear.onnx")
    onnx.external_data_helper.set_external_data(outside.graph.initializer[0], "../secret", 0, 24)
    outside.graph.initializer[0].ClearField("raw_data")
    onnx.save(outside, root / "outside.onnx")
    with pytest.raises(UserError, match="not a file inside the model's folder"):
        compiled(own, model="outside.onnx")
    made = compiled(own)
    (root / made.program / "core_0.json").unlink()
    link(root / made.program / "core_0.json", root.parent / "secret")
    for tool in ("read_stream", "check_program", "simulate_program"):
        core = {"core": 0} if tool == "read_stream" else {}
        with pytest.raises(UserError, match=r"core_0\.json is a link") as refused:
            run(own, schemas.ToolSchema, tool, program=made.program, **core)
        assert SECRET not in str(refused.value)
    with pytest.raises(UserError, match="no preset"):
        compiled(own, options={"arch": "secret"})
    with pytest.raises(UserError, match="arch"):
        compiled(own, options={"arch": "../secret"})
    with pytest.raises(UserError, match="emit_mapping"):
        compiled(own, options={"emit_mapping": "../secret"})


def test_a_network_table_outside_is_not_read(root: Path):
    """The architecture file of a program names one."""
    own = runner(root)
    made = compiled(own)
    path = root / made.program / "arch.json"
    text = path.read_text()
    assert '"net_config_file_path": "' in text
    start = text.index('"net_config_file_path": "') + len('"net_config_file_path": "')
    path.write_text(text[:start] + "../../../secret" + text[text.index('"', start) :])
    for tool in ("check_program", "simulate_program", "explain_program", "validate_program"):
        with suppress(UserError):
            assert SECRET not in run(own, schemas.ToolSchema, tool, program=made.program).model_dump_json()


def test_results_are_not_kept_behind_a_link(root: Path):
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    link(root / KEPT, elsewhere)
    with pytest.raises(UserError, match="a link or a file, where results are to be kept"):
        compiled(runner(root))
    assert [*elsewhere.iterdir()] == []


def test_code_in_the_folder_is_not_run(root: Path):
    for name in ("json", "numpy", "onnx", "raptor", "pydantic", "sitecustomize", "tempfile"):
        (root / f"{name}.py").write_text(f"open({str(root.parent / 'run')!r}, 'w')")
    assert compiled(runner(root)).instructions > 0
    assert not (root.parent / "run").exists()


def test_limits_of_size(root: Path):
    size = (root / "linear.onnx").stat().st_size
    with pytest.raises(UserError, match=rf"linear\.onnx: {size} bytes, more than the {size - 1} that"):
        compiled(runner(root, model_bytes=size - 1))
    with pytest.raises(UserError, match=r"more than the 20000 that this server keeps|File too large|cannot be written"):
        compiled(runner(root, kept_bytes=20_000))
    assert [path.name for path in (root / KEPT).iterdir()] == []


def test_weights_in_other_files_count(root: Path):
    onnx.save(linear(4000), root / "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    assert (root / "large.onnx").stat().st_size < 2000
    with pytest.raises(UserError, match="bytes with its weights, more than the 20000"):
        compiled(runner(root, model_bytes=20_000), model="large.onnx")


def test_what_was_used_longest_ago_makes_room(root: Path):
    own = runner(root)
    first, second = (compiled(own, options={"cores": cores}).program for cores in (2, 3))
    size = sum(path.stat().st_size for path in (root / first).rglob("*"))
    os.utime(root / second, (1, 1))
    third = compiled(runner(root, kept_bytes=int(2.7 * size)), options={"cores": 4}).program
    assert {path.name for path in (root / KEPT).iterdir()} == {Path(first).name, Path(third).name}


def workers(root: Path) -> list[int]:
    """Numbers of the processes of tools in a folder."""
    found = list[int]()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").resolve() == root.resolve():
                found.append(int(entry.name))
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@linux
def test_a_time_limit(root: Path):
    own = runner(root, seconds=0.3)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"stopped after 0\.3 s, the time limit of this server, in start"):
        compiled(own)
    assert time.monotonic() - start < 5
    assert workers(root) == []
    assert [path.name for path in (root / KEPT).iterdir()] == []


async def _interrupted(root: Path, stop: Callable[["asyncio.Task[Any]"], object]) -> Any:
    task = asyncio.create_task(runner(root).run("compile_model", {"model": "linear.onnx"}, ignore))
    while not workers(root):
        await asyncio.sleep(0.01)
    stop(task)
    return await task


@linux
def test_a_client_that_cancels(root: Path):
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_interrupted(root, lambda task: task.cancel()))
    assert workers(root) == []
    assert [path.name for path in (root / KEPT).iterdir()] == []


@linux
def test_calls_run_one_after_another(root: Path):
    async def both() -> int:
        own, most = runner(root), 0
        calls = [asyncio.create_task(own.run("inspect_model", {"model": "linear.onnx"}, ignore)) for _ in range(2)]
        while not all(call.done() for call in calls):
            most = max(most, len(workers(root)))
            await asyncio.sleep(0.01)
        assert [call.exception() for call in calls] == [None, None]
        return most

    assert asyncio.run(both()) == 1


@linux
def test_a_process_that_dies(root: Path):
    with pytest.raises(UserError, match=r"the process of the tool has died \(status -9\)"):
        asyncio.run(_interrupted(root, lambda task: [os.kill(pid, signal.SIGKILL) for pid in workers(root)]))
    assert [path.name for path in (root / KEPT).iterdir()] == []


def test_progress_names_stages_and_grows(root: Path):
    seen = list[tuple[float, float, str]]()

    async def progress(done: float, limit: float, stage: str) -> None:
        seen.append((done, limit, stage))

    asyncio.run(runner(root).run("compile_model", {"model": "linear.onnx"}, progress))
    done, limits, stages = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(limits) == {100}
    assert {"load", "partition", "allocate", "write"} <= set(stages)


def test_the_command_says_what_is_missing(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(UserError, match=r"needs the package mcp: .*pip install 'raptor-crossbar\[mcp\]'"):
        make_server(root, seconds=1, model_bytes=1, kept_bytes=1)
