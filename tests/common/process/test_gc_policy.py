"""Objects kept until the process ends: those of a command that compiles one program, and of nothing else."""

import pytest

import models
import raptor
from raptor.common.process import gc_policy
from raptor.common.process.forked_task import BackgroundChecks
from raptor.compiler.pass_driver import Driver


def test_only_a_command_keeps_what_it_has_compiled(monkeypatch: pytest.MonkeyPatch):
    kept: list[object] = []
    monkeypatch.setattr(gc_policy, "_kept", kept)
    raptor.compile(models.build("mlp"), cores=4)  # as a point of a study does
    assert kept == []
    with BackgroundChecks() as beside:
        raptor.compile(models.build("mlp"), cores=4, driver=Driver(beside=beside))
    assert len(kept) == 1
