"""The server: each call of a tool runs in a process of its own, which is killed after the time limit.

Needs the package mcp (`pip install 'raptor-crossbar[mcp]'`), which RAPTOR does not install.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pydantic_core import to_jsonable_python

from raptor import __version__
from raptor.common.errors import UserError
from raptor.tools.mcp.schemas import ToolSchema
from raptor.tools.mcp.served_folder import ServedFolder, remove
from raptor.tools.mcp.tools import TOOLS, WRITING

_INSTRUCTIONS = """\
RAPTOR compiles ONNX models for chips of ReRAM crossbars, executes and simulates the result. All paths are relative to
one folder. compile_model returns the folder of a program, which the other tools take."""
_BEAT_SECONDS = 1.0
"""Longest time between two notifications of progress."""
_LONGEST_ANSWER = 2**26

Progress = Callable[[float, float, str], Awaitable[None]]


@dataclass(slots=True)
class ToolRunner:
    """Runs calls one after another: a compilation uses all cores. `seconds`: time limit of a call."""

    served: ServedFolder
    seconds: float
    one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, tool: str, arguments: dict[str, Any], progress: Progress) -> ToolSchema:
        """Runs a call in a process. `progress`: called with the seconds so far, their limit, and the stage.

        Raises `UserError` with what the tool says, and for a process that was stopped or has died.
        """
        kind: type[ToolSchema] = inspect.signature(TOOLS[tool], eval_str=True).return_annotation
        async with self.one:
            work = Path(mkdtemp(prefix="work-", dir=self.served.kept))
            try:
                answer = await self._run(tool, arguments, progress, work)
            finally:
                remove(work)
        if "error" in answer:
            raise UserError(answer["error"].replace(f"{self.served.root}{os.sep}", ""))
        return kind.model_validate(answer["result"])

    async def _run(self, tool: str, arguments: dict[str, Any], progress: Progress, work: Path) -> dict[str, Any]:
        """Returns the last answer of the process, which is dead afterwards, with all that it has started."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "raptor.tools.mcp.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.served.root,
            env=os.environ | {"TMPDIR": str(work), "PYTHONPATH": self._python_path()},
            start_new_session=True,
            limit=_LONGEST_ANSWER,
        )
        try:
            limits = {"model_bytes": self.served.model_bytes, "kept_bytes": self.served.kept_bytes}
            call = {"tool": tool, "arguments": arguments, "root": str(self.served.root)} | limits
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(call).encode())
            process.stdin.close()
            return await self._answer(process.stdout, progress) or {
                "error": f"the process of the tool has died (status {await process.wait()}), perhaps for lack of memory"
            }
        finally:
            _kill(process.pid)
            await process.wait()

    async def _answer(self, stream: asyncio.StreamReader, progress: Progress) -> dict[str, Any] | None:
        """Returns the result or the error that a process writes; None if it ends without one."""
        start, stage = time.monotonic(), "start"
        line = asyncio.ensure_future(stream.readline())
        try:
            while True:
                left = start + self.seconds - time.monotonic()
                if left <= 0:
                    return {"error": f"stopped after {self.seconds:g} s, the time limit of this server, in {stage}"}
                await asyncio.wait((line,), timeout=min(left, _BEAT_SECONDS))
                if line.done():
                    text = line.result()
                    answer: dict[str, Any] | None = json.loads(text) if text else None
                    if answer is None or "stage" not in answer:
                        return answer
                    stage = answer["stage"]
                    line = asyncio.ensure_future(stream.readline())
                await progress(time.monotonic() - start, self.seconds, stage)
        finally:
            line.cancel()

    def _python_path(self) -> str:
        """Returns where the process finds packages: as this one, but never in the served folder itself."""
        places = [Path(place).resolve() for place in sys.path if place]
        return os.pathsep.join(str(place) for place in places if place != self.served.root)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, signal.SIGKILL)


def make_server(root: Path, *, seconds: float, model_bytes: int, kept_bytes: int) -> Any:
    """Returns an `mcp.server.mcpserver.MCPServer` with all tools, for a folder and its limits.

    Raises `UserError` without the package mcp, and if `root` is no folder that can be written.
    """
    try:
        servers, types = import_module("mcp.server.mcpserver"), import_module("mcp_types")
        tool_error: type[Exception] = import_module("mcp.server.mcpserver.exceptions").ToolError
    except ImportError as e:
        raise UserError(f"raptor mcp needs the package mcp: {e}; pip install 'raptor-crossbar[mcp]'") from e
    if not root.is_dir() or not os.access(root, os.W_OK):
        raise UserError(f"{root}: not a folder that can be written")
    runner = ToolRunner(ServedFolder(root.resolve(), model_bytes, kept_bytes), seconds)
    server: Any = servers.MCPServer("raptor", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for name, function in TOOLS.items():
        hints: Any = types.ToolAnnotations(
            readOnlyHint=name not in WRITING, destructiveHint=False, idempotentHint=True, openWorldHint=False
        )
        server.add_tool(_make_tool(name, function, runner, servers.Context, tool_error), annotations=hints)
    return server


def _make_tool(
    name: str, function: Callable[..., ToolSchema], runner: ToolRunner, context_type: Any, tool_error: type[Exception]
) -> Callable[..., Awaitable[ToolSchema]]:
    """Returns a tool for the server: with the parameters of the function that a client gives, and the context."""

    async def tool(context: Any, **arguments: Any) -> ToolSchema:
        async def progress(done: float, total: float, stage: str) -> None:
            await context.report_progress(done, total, stage)

        try:
            return await runner.run(name, to_jsonable_python(arguments), progress)
        except UserError as e:
            raise tool_error(str(e)) from e

    whole = inspect.signature(function, eval_str=True)
    given = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in list(whole.parameters.values())[2:]]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=context_type)
    made: Any = tool
    made.__name__, made.__doc__ = name, function.__doc__
    made.__signature__ = whole.replace(parameters=[context, *given])
    made.__annotations__ = {each.name: each.annotation for each in (context, *given)}
    return made
