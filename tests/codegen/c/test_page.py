"""The shell commands of docs/how-to/c.md print what the page says."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import raptor
from tests.codegen.c.programs import build, needs_compiler
from tests.paths import ROOT
from tests.project.documents import blocks

PAGE = (ROOT / "docs" / "how-to" / "c.md").read_text()


@needs_compiler
def test_commands(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "raptor"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m raptor "$@"\n')
    command.chmod(0o755)
    raptor.compile(build("lenet5"), backend="c").save(tmp_path / "out")
    found = blocks(PAGE)
    tried = [(one.body, two.body) for one, two in pairwise(found) if one.language == "sh"]
    assert len(tried) == 2
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    for script, shown in tried:
        words = ["bash", "-euo", "pipefail", "-c", script]
        said = subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
        assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), said), said
