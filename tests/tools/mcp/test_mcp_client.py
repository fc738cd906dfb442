"""A client of the Model Context Protocol, in process and over standard input and output, with attacks."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from raptor.tools.mcp.server import make_server
from raptor.tools.mcp.tools import TOOLS, WRITING
from tests.paths import ROOT
from tests.project.documents import Page
from tests.tools.mcp.test_tool_runner import SECRET, linear

mcp: Any = pytest.importorskip("mcp", reason="the package mcp is not here (pip install 'raptor-crossbar[mcp]')")
pytestmark = pytest.mark.frameworks


@pytest.fixture(params=["in process", "stdio"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A server of a folder with a model, a link, and a secret file beside it."""
    root = tmp_path / "served"
    root.mkdir()
    (tmp_path / "secret").write_text(SECRET)
    onnx.save(linear(), root / "linear.onnx")
    (root / "link.onnx").symlink_to(tmp_path / "secret")
    (root / "large.onnx").write_bytes(bytes(1_000_001))
    if request.param == "in process":
        return make_server(root, seconds=100, model_bytes=10**6, kept_bytes=10**7)
    arguments = ["-m", "raptor", "mcp", str(root), "--seconds", "100", "--model-mb", "1", "--kept-mb", "10"]
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "PATH") if name in os.environ}
    return mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment)


async def session(server: Any) -> None:
    async with mcp.Client(server) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {*tools} == {*TOOLS}
        for name, tool in tools.items():
            assert tool.output_schema["properties"]
            assert tool.annotations.read_only_hint == (name not in WRITING)
            assert not {"served", "report", "context"} & {*tool.input_schema["properties"]}
        assert len(json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in tools.values()])) < 25_000
        stages = list[str]()

        async def progress(done: float, limit: float | None, stage: str | None) -> None:
            stages.append(f"{stage}")

        async def call(name: str, **arguments: Any) -> Any:
            return await client.call_tool(name, arguments, progress_callback=progress)

        made = await call("compile_model", model="linear.onnx", options={"cores": 2})
        assert not made.is_error
        assert "lower" in stages
        program = made.structured_content["program"]
        for name, key in (("validate_program", "passed"), ("simulate_program", "latency_ns")):
            assert (await call(name, program=program)).structured_content[key]
        page = await call("read_stream", program=program, core=0, count=1)
        assert json.loads(page.structured_content["lines"][0])["op"]
        await attack(call, program)


ATTACKS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("inspect_model", {"model": "../secret"}, "not a path below the served folder"),
    ("inspect_model", {"model": "link.onnx"}, "or a link"),
    ("inspect_model", {"model": "/etc/passwd"}, "not a path below the served folder"),
    ("inspect_model", {"model": "x" * 5000}, "at most 300"),
    ("inspect_model", {"model": "large.onnx"}, "more than the 1000000"),
    ("inspect_model", {"model": 7}, "valid string"),
    ("inspect_model", {}, "[Ff]ield required"),
    ("simulate_program", {"program": ".."}, "not a path below the served folder"),
    ("simulate_program", {"program": "."}, "not a path below the served folder"),
    ("compile_model", {"model": "linear.onnx", "options": {"arch": "../secret"}}, "match pattern"),
    ("compile_model", {"model": "linear.onnx", "options": {"emit_mapping": "../x"}}, "not permitted"),
    ("compile_model", {"model": "linear.onnx", "options": {"cores": 10**30}}, "less than or equal"),
    ("compile_model", {"model": "linear.onnx", "options": {"cores": 1, "xbars_per_core": 1, "xbar": "2"}}, "try cores"),
    ("read_level", {"model": "linear.onnx", "level": "../../x"}, "expected one of"),
)


async def attack(call: Any, program: str) -> None:
    """Every wrong call is an error with a reason, tells nothing of other files, and the server goes on."""
    for name, arguments, says in ATTACKS:
        refused = await call(name, **arguments)
        text = refused.content[0].text
        assert refused.is_error
        assert pytest.RaisesExc(ValueError, match=says).matches(ValueError(text)), text
        assert SECRET not in text
        assert "Traceback" not in text
    many = await call("read_stream", program=program, core=0, count=10**6)
    assert many.is_error
    assert not (await call("check_program", program=program)).is_error


def test_a_client(server: Any):
    asyncio.run(session(server))


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "agents.md").read_text()
    page = Page(text.replace("```py\n", "```python\n"))
    page.run()
    assert [body for _, body in page.edits] == []
