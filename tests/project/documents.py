"""The blocks of a Markdown page, run in order in one directory.

    console     `$ ` and a command, then what it prints; `make` targets are only looked up (`make -n`)
    python      run in one namespace for the page; a `text` block right after it is what it prints
    py          Python that needs packages which the tests do without: must compile, is not run
    sh, yaml    run by tests/project/test_ci_page.py and tests/project/test_release.py
    json, text  not run

The directory starts with the files of pages/NAME beside this module, if there are any: those that the page's `py`
blocks wrote.
`...` in shown output stands for anything on its line, alone on a line for any number of lines.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raptor.tools.cli import app
from tests.paths import ROOT

GIVEN = Path(__file__).with_name("pages")
RUN = ("console", "python", "py")
SHOWN = ("json", "text", "sh", "yaml")

_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>(?:(?!\$ )[^\n]*\n)*)", re.MULTILINE)
_UNSTEADY = (
    (re.compile(r"^(seconds +).*(\n +.*)*", re.MULTILINE), r"\1..."),
    (re.compile(r"\bin \d+\.\d+ s\b"), "in ... s"),
    (re.compile(r"\babs .*"), "abs ..."),
)
"""Parts of output that differ between runs or machines, replaced when output is written into a page."""


@dataclass(frozen=True)
class Block:
    """`start`, `end`: of its body in the page's text."""

    language: str
    body: str
    start: int
    end: int


def pages() -> list[str]:
    """Returns all pages, relative to the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def blocks(text: str) -> list[Block]:
    return [Block(m["language"], m["body"], m.start("body"), m.end("body")) for m in _FENCE.finditer(text)]


@dataclass
class Page:
    """Runs one page in the current directory. `edits`: bodies that no longer say what is printed, as they should be."""

    text: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    edits: list[tuple[Block, str]] = field(default_factory=list)

    def run(self) -> None:
        found = blocks(self.text)
        for i, block in enumerate(found):
            if block.language == "console":
                self._note(block, "".join(self._commands(block.body)))
            elif block.language == "python":
                self._python(block, self._output_of(block, found[i + 1 :]))
            elif block.language == "py":
                compile(block.body, "<page>", "exec")

    def updated(self) -> str:
        text = self.text
        for block, body in reversed(self.edits):
            text = text[: block.start] + body + text[block.end :]
        return text

    def _commands(self, body: str) -> Iterator[str]:
        assert "".join(m[0] for m in _COMMAND.finditer(body)) == body, f"a console block starts with $: {body}"
        for match in _COMMAND.finditer(body):
            yield f"$ {match['command']}\n" + _settled(match["output"], shell(match["command"]))

    def _output_of(self, block: Block, following: list[Block]) -> Block | None:
        if following and following[0].language == "text":
            between = self.text[block.end : following[0].start]
            return following[0] if re.fullmatch(r"```\s*```text\n", between) else None
        return None

    def _python(self, block: Block, shown: Block | None) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.body, "<page>", "exec"), self.names)
        if shown is None:
            assert out.getvalue() == "", f"prints what the page does not show: {out.getvalue()}"
        else:
            self._note(shown, _settled(shown.body, out.getvalue()))

    def _note(self, block: Block, body: str) -> None:
        if body != block.body:
            self.edits.append((block, body))


def shell(command: str) -> str:
    """Returns the output of a command. After one that fails, another command must follow that shows it."""
    if command.startswith("make "):
        subprocess.run(
            ["make", "-n", *shlex.split(command, comments=True)[1:]], cwd=ROOT, check=True, capture_output=True
        )
        return ""
    words = shlex.split(command)
    if words[0] == "raptor" and not re.search(r"[|;&<>*$]", command):
        return _raptor(words[1:])
    ended = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        check=False,
    )
    assert ended.returncode == 0, f"{command}: status {ended.returncode}\n{ended.stdout}"
    return _shown(ended.stdout)


def _raptor(args: list[str]) -> str:
    """Runs raptor in this process, which saves half a second."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            app.main(args)
        except SystemExit as e:
            status = e.code
    assert status == 0, f"raptor {' '.join(args)}: status {status}\n{out.getvalue()}"
    return _shown(out.getvalue())


def _environment() -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TERM": "dumb",
        "PYTHONFAULTHANDLER": "1",
    }


def _shown(printed: str) -> str:
    """Removes spaces at the ends of lines, as an editor would."""
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def _settled(shown: str, printed: str) -> str:
    """`shown` if that is what was printed, else what it should be."""
    if re.fullmatch(_pattern(shown), printed, re.DOTALL):
        return shown
    for unsteady, wildcard in _UNSTEADY:
        printed = unsteady.sub(wildcard, printed)
    return printed


def _pattern(shown: str) -> str:
    lines = (
        ".*" if line == "...\n" else r"[^\n]*".join(map(re.escape, line.split("...")))
        for line in shown.splitlines(keepends=True)
    )
    return "".join(lines)
