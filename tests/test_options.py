"""An option acts or is refused: alone, and beside every other option of its command.

Every command runs with one option, with another, and with both, in the same states of a folder. With both, something
must differ from each alone (exit status, standard output, files, what the engine was told), or the command must end
with status 2 and a sentence. A new option without a value here fails the test of completeness. The default suite tries
a share of the pairs of those commands that take long, and the slow one all of them.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, is_dataclass
from io import BytesIO, TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.common.option_spelling import flag_name
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.compiler.pass_driver import Driver
from raptor.options import (
    CompileOptions,
    CoreKeywords,
    InputKeywords,
    InspectKeywords,
    PolicyKeywords,
    RoundOptions,
    collect_options,
    list_keywords,
)
from raptor.target import arch as architectures
from raptor.target.chip_file import chip_to_json
from raptor.tools.cli import app
from raptor.tools.explore import study_driver
from raptor.tools.explore.evaluation import worker_pool
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord
from raptor.tools.explore.study.study_file import read_study
from raptor.tools.repair import measure_yield
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from tests.decoder_models import plain_decoder
from tests.oversized_models import dense
from tests.stateful_models import elman_step
from tests.tiny_models import make_model, node, random
from tests.tools.reporting.measured import measured
from validator.accuracy import measure
from validator.accuracy.accuracy_report import to_json
from validator.judge import bit_true, sample_runs


@dataclass(frozen=True)
class Command:
    """`words` come before the options; `options`: by their name, the words to give."""

    words: tuple[str, ...]
    options: dict[str, tuple[str, ...]]


def examples(kind: Any) -> dict[str, tuple[str, ...]]:
    """The options of a record or of a class of keywords, each with its example."""
    names = collect_options(kind) if is_dataclass(kind) else list_keywords(kind)
    found = {
        flag_name(name).split()[0]: option for name, option in collect_options(CompileOptions).items() if name in names
    }
    return {word: (word, option.example) if option.example else (word,) for word, option in found.items()}


ROUNDS = examples(RoundOptions)
COMPILE = {word: words for word, words in examples(CompileOptions).items() if word not in ROUNDS}
SCALES = range(1, 37)
"""The example of `--set`: an input of this shape is mapped, so that even `--stop-after` shows it."""

COMMANDS = {
    "compile": Command(("compile", "model.onnx"), COMPILE),
    "inspect": Command(
        ("inspect", "model.onnx"),
        {
            **examples(InspectKeywords),
            "--quiet": ("--quiet",),
            "--json": ("--json", "found.json"),
        },
    ),
    "models": Command(
        ("models",),
        {
            "NAME": ("mlp",),
            "--output": ("-o", "other.onnx"),
            "--seed": ("--seed", "3"),
            "--option": ("--option", "width=0.25"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "quantize": Command(
        ("quantize", "deep.onnx"),
        {
            "--output": ("-o", "int8.onnx"),
            "--data": ("--data", "data.npz"),
            "--weights": ("--weights", "4"),
            "--layer": ("--layer", "my_conv=4"),
            "--policy": ("--policy", "policy.json"),
            "--policy-out": ("--policy-out", "chosen.json"),
            "--mixed": ("--mixed",),
            "--budget": ("--budget", "latency=0.99"),
            "--activations": ("--activations", "16"),
            "--scheme": ("--scheme", "u8s8"),
            "--per-channel": ("--per-channel",),
            "--seed": ("--seed", "3"),
            "--samples": ("--samples", "2"),
            **examples(PolicyKeywords),
            **{k: COMPILE[k] for k in ("--force", "--quiet")},
            "--all": ("--all",),
            "--json": ("--json", "found.json"),
        },
    ),
    "quantize: mixed": Command(
        (
            *(
                "quantize",
                "wide.onnx",
                "--output",
                "mixed.onnx",
                "--mixed",
                "--budget",
                "latency=0.99",
                "--samples",
                "1",
            ),
            *("--xbar", "8", "--xbars-per-core", "1"),
        ),
        {
            "--policy-out": ("--policy-out", "chosen.json"),
            **{k: COMPILE[k] for k in ("--cell-bits", "--arch", "--field")},
            "--xbar": ("--xbar", "16"),
            "--cores": ("--cores", "1"),
            "--xbars-per-core": ("--xbars-per-core", "8"),
        },
    ),
    "quantize: states": Command(("quantize", "step.onnx", "--samples", "2"), {"--state": ("--state", "auto")}),
    "validate": Command(
        ("validate", "out"),
        {
            "--input": ("--input", "x.npy"),
            "--seed": ("--seed", "4000"),
            "--samples": ("--samples", "3"),
            "--tolerance": ("--tolerance", "1e-30"),
            "--layers": ("--layers",),
            "--engine": ("--engine", "python"),
            "--junit": ("--junit", "found.xml"),
            "--schedule": ("--schedule", "round-robin"),
            "--json": ("--json", "found.json"),
            "--device": ("--device", "numpy"),
            "--max-steps": ("--max-steps", "1000000"),
            "--no-hash": ("--no-hash",),
            "--quiet": ("--quiet",),
        },
    ),
    "validate: integers": Command(
        ("validate", "int8"),
        {
            "--crossbar": ("--crossbar", "noisy"),
            "--cells": ("--cells", "reram-wan2022"),
            "--with": ("--with", "seed=3"),
            "--device": ("--device", "integer"),
            "--input": ("--input", "image.npy"),
            "--seed": ("--seed", "4000"),
            "--samples": ("--samples", "3"),
            "--layers": ("--layers",),
            "--engine": ("--engine", "python"),
            "--schedule": ("--schedule", "round-robin"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "accuracy": Command(
        ("accuracy", "int8", "--crossbar", "sliced"),
        {
            "--data": ("--data", "labelled.npz"),
            "--cells": ("--cells", "isaac"),
            "--with": ("--with", "adc_bits=3"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "accuracy: data": Command(
        ("accuracy", "int8", "--data", "labelled.npz"),
        {
            "--crossbar": ("--crossbar", "noisy"),
            "--cells": ("--cells", "isaac"),
            "--samples": ("--samples", "2"),
            "--workers": ("--workers", "3"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "accuracy: noisy": Command(
        ("accuracy", "int8", "--data", "labelled.npz", "--crossbar", "noisy", "--cells", "reram-wan2022"),
        {
            "--with": ("--with", "programming_noise=0.2"),
            "--sweep": ("--sweep", "adc_bits=2,3"),
            "--chips": ("--chips", "2"),
            "--samples": ("--samples", "2"),
            "--calibration": ("--calibration", "1"),
            "--calibration-data": ("--calibration-data", "seen.npz"),
            "--csv": ("--csv", "found.csv"),
            "--plot": ("--plot", "found.html"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "accuracy: trim": Command(
        ("accuracy", "die", "--data", "labelled.npz", "--crossbar", "noisy", "--cells", "reram-milo"),
        {
            "--calibration-data": ("--calibration-data", "seen.npz"),
            "--trim": ("--trim",),
        },
    ),
    "trim: device": Command(("trim", "die", "--data", "seen.npz"), {"--device": ("--device", "integer")}),
    "trim": Command(
        ("trim", "die", "--data", "seen.npz", "--cells", "reram-milo"),
        {
            "--chip": ("--chip", "3"),
            "--with": ("--with", "programming_noise=0.2"),
            "--samples": ("--samples", "2"),
            "--output": ("-o", "trimmed"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "prune": Command(
        ("prune", "prune.onnx", "--arch", "two.json", "--mapping", "raptor"),
        {
            "--share": ("--share", "0.25"),
            "--data": ("--data", "seen.npz"),
            "--samples": ("--samples", "1"),
            "--test": ("--test", "labelled.npz"),
            "--mapping": ("--mapping", "rows"),
            "--xbar": ("--xbar", "4"),
            "--cell-bits": ("--cell-bits", "4"),
            "--output": ("-o", "pruned.onnx"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "harden": Command(
        ("harden", "deep.onnx", "--cells", "reram-milo", "--data", "data.npz"),
        {
            "--weights": ("--weights", "4"),
            "--with": ("--with", "levels=shared"),
            "--clip": ("--clip",),
            "--samples": ("--samples", "2"),
            **examples(InputKeywords),
            "--output": ("-o", "hard.onnx"),
            "--force": ("--force",),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "repair": Command(
        ("repair", "cells", "--chip", "stuck.json"),
        {
            "--cells": ("--cells", "reram-milo"),
            "--with": ("--with", "levels=shared"),
            "--output": ("-o", "repaired"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "yield": Command(
        ("yield", "cells", "--data", "labelled.npz", "--json", "found.json"),
        {
            "--rates": ("--rates", "0.3"),
            "--methods": ("--methods", "written"),
            "--least": ("--least", "0.5"),
            "--chips": ("--chips", "1"),
            "--samples": ("--samples", "2"),
            "--cells": ("--cells", "reram-milo"),
            "--with": ("--with", "encoding=differential"),
            "--on-share": ("--on-share", "0.9"),
            "--dead-columns": ("--dead-columns", "0.1"),
            "--dead-rows": ("--dead-rows", "0.1"),
            "--spare-columns": ("--spare-columns", "2"),
            "--candidates": ("--candidates", "3"),
            "--seed": ("--seed", "50"),
            "--workers": ("--workers", "3"),
            "--scheduler": ("--scheduler", "tcp:/127.0.0.1"),
            "--plot": ("--plot", "yield.html"),
            "--csv": ("--csv", "found.csv"),
            "--quiet": ("--quiet",),
        },
    ),
    "compile: rounds": Command(
        ("compile", "wide.onnx", "--xbar", "8", "--cores", "2", "--xbars-per-core", "2", "--rounds"),
        {
            **{word: words for word, words in ROUNDS.items() if word != "--rounds"},
            **{k: COMPILE[k] for k in ("--mapping", "--weights", "--output", "--force", "--quiet")},
        },
    ),
    "run": Command(
        ("run", "out"),
        {
            "--input": ("--input", "x.npy"),
            "--seed": ("--seed", "4000"),
            "--output": ("-o", "found.npy"),
            "--device": ("--device", "numpy"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "generate": Command(
        ("generate", "decoder", "--prompt-ids", "7"),
        {
            "--prompt-ids": ("--prompt-ids", "3,1"),
            "--tokens": ("--tokens", "5"),
            "--temperature": ("--temperature", "0.2"),
            "--seed": ("--seed", "5"),
            "--session": ("--session", "session.npz"),
            "--save": ("--save", "saved.npz"),
            "--json": ("--json", "found.json"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "check": Command(
        ("check", "out"),
        {
            "--arch": ("--arch", "small.json"),
            "--chip": ("--chip", "die.json"),
            "--json": ("--json", "found.json"),
            "--sarif": ("--sarif", "found.sarif"),
            "--quiet": ("--quiet",),
        },
    ),
    "simulate": Command(
        ("simulate", "out"),
        {
            "--arch": ("--arch", "fast.json"),
            "--mode": ("--mode", "throughput"),
            "--samples": ("--samples", "2"),
            "--trace": ("--trace", "trace.json"),
            "--power": ("--power", "power.csv"),
            "--window": ("--window", "10us"),
            "--json": ("--json", "found.json"),
            "--engine": ("--engine", "pimsim"),
            "--pimsim": ("--pimsim", "no-such-program"),
            "--quiet": ("--quiet",),
        },
    ),
    "simulate: rounds": Command(
        ("simulate", "turns"),
        {
            "--mode": ("--mode", "throughput"),
            "--rate": ("--rate", "10"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "report": Command(
        ("report", "out"),
        {
            "--output": ("-o", "page.html"),
            "--json": ("--json", "found.json"),
            "--annotate": ("--annotate", "annotated.onnx"),
            "--arch": ("--arch", "fast.json"),
            "--validate": ("--validate",),
            "--accuracy": ("--accuracy", "measured.json"),
            "--open": ("--open",),
            "--quiet": ("--quiet",),
        },
    ),
    "compare": Command(
        ("compare", "out", "out"),
        {
            "--output": ("-o", "page.html"),
            "--json": ("--json", "found.json"),
            "--csv": ("--csv", "found.csv"),
            "--markdown": ("--markdown", "found.md"),
            "--arch": ("--arch", "fast.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "explain": Command(
        ("explain", "out"),
        {
            "--what-if": ("--what-if",),
            "--certificate": ("--certificate", "bound.json"),
            "--json": ("--json", "found.json"),
            "--quiet": ("--quiet",),
        },
    ),
    "arch list": Command(("arch", "list"), {}),
    "arch show": Command(("arch", "show", "isaac"), {"--json": ("--json",), "--bits": ("--bits", "4")}),
    "arch check": Command(("arch", "check", "small.json"), {"--quiet": ("--quiet",)}),
    "arch new": Command(
        ("arch", "new"),
        {
            "--output": ("-o", "mine.json"),
            "--from": ("--from", "isaac"),
            "--components": ("--components", "example"),
            "--set": ("--set", "adc.bits=6"),
            "--witness": ("--witness",),
            **examples(CoreKeywords),
            "--field": ("--field", "rob_size=3"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "arch defects": Command(
        ("arch", "defects", "--output", "drawn.json"),
        {
            **examples(CoreKeywords),
            "--field": ("--field", "chip_config.core_config.matrix_config.adc_count=2"),
            "--csv": ("--csv", "tester.csv"),
            "--stuck": ("--stuck", "0.0001"),
            "--on-share": ("--on-share", "0.9"),
            "--dead-rows": ("--dead-rows", "0.001"),
            "--dead-columns": ("--dead-columns", "0.001"),
            "--dead-converters": ("--dead-converters", "0.01"),
            "--dead-crossbars": ("--dead-crossbars", "0.01"),
            "--dead-cores": ("--dead-cores", "2"),
            "--dead-links": ("--dead-links", "2"),
            "--spare-crossbars": ("--spare-crossbars", "1"),
            "--spare-columns": ("--spare-columns", "1"),
            "--single": ("--single",),
            "--seed": ("--seed", "5"),
            "--force": ("--force",),
            "--quiet": ("--quiet",),
        },
    ),
    "explore new": Command(
        ("explore", "new", "model.onnx"),
        {"--output": ("-o", "other.toml"), "--force": ("--force",), "--quiet": ("--quiet",)},
    ),
    "explore run": Command(
        ("explore", "run", "small.toml"),
        {
            "--workers": ("--workers", "3"),
            "--trials": ("--trials", "3"),
            "--verify": ("--verify", "1"),
            "--pimsim": ("--pimsim", "missing"),
            "--quiet": ("--quiet",),
        },
    ),
    "explore show": Command(
        ("explore", "show", "small.toml"),
        {
            "--html": ("--html", "found.html"),
            "--csv": ("--csv", "found.csv"),
            "--json": ("--json", "found.json"),
            "--parquet": ("--parquet", "found.parquet"),
            "--quiet": ("--quiet",),
        },
    ),
    "help": Command(("help",), {"COMMAND": ("compile",)}),
}
"""Values that act alone, where anything can."""

SHARES = {
    "compile": 60,
    **dict.fromkeys(
        (
            "compile: rounds",
            "quantize",
            "quantize: mixed",
            "validate",
            "validate: integers",
            "accuracy: noisy",
            "explore run",
            "yield",
            "arch defects",
        ),
        24,
    ),
    **dict.fromkeys(("report", "run", "explain", "compare", "arch new", "inspect"), 6),
}
"""Commands that take long: one pair of options in so many is tried by the default suite."""

ALWAYS_REFUSED = {
    "--engine": "needs the simulator itself",
    "--pimsim": "needs the simulator itself",
    "--scheduler": "needs a scheduler of Dask that answers",
    "--requant": "refuses the model, which has no integers",
    "--trimmable": "refuses the model, which has no integers",
    "--isa": "refuses the model, which has an instruction outside the base set: that is what it does",
}

ELSEWHERE = ("mcp", "train")
"""Commands that serve until they are stopped, or need PyTorch: tests/tools/mcp and train try their options."""

OPTIONS_ELSEWHERE = {"prune": {"--epochs", "--products"}, "generate": {"--input", "--prompt"}}
"""Options that need PyTorch, several layers, a vocabulary of bytes, or an encoder: tests of their own try them."""

WHERE_NEEDED = {"--host": "--isa"}
"""Options that act only where another one makes them necessary: the chip computes all of the model without it."""


def kind(title: str) -> str:
    """Returns the command of an entry of `COMMANDS`."""
    return title.split(":")[0]


def names_of(command: Any, prefix: str = "") -> dict[str, set[str]]:
    """The parameters of each command, as the command line has them."""
    found: dict[str, set[str]] = {}
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            found |= names_of(inner, f"{prefix}{name} ")
        else:
            found[prefix + name] = {max(p.opts, key=len) for p in inner.params if p.param_type_name == "option"}
    return found


def test_every_option_of_every_command_has_a_value_here():
    for name, options in names_of(app.build_commands()).items():
        if name in ELSEWHERE:
            continue
        tried = [command for title, command in COMMANDS.items() if kind(title) == name]
        known = [word for command in tried for word in (*command.words, *command.options)]
        given = {option for option in known if option.startswith("-")}
        given |= OPTIONS_ELSEWHERE.get(name, set())
        assert given == {o for o in options if o not in ("--help", "--debug", "--version")}, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, what it compiles to, the same with a wrong hash, chips, inputs."""
    folder = tmp_path_factory.mktemp("options")
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("Mul", "c scale", "m"),
        node("Sigmoid", "m", "s"),
        node("Exp", "s", "y"),
    ]
    model = make_model(nodes, {"x": ("N", 4, 6, 6), "scale": (1, 1, 6, 6)}, ["y"], {"w": random(40, 4, 3, 3)})
    onnx.save(model, str(folder / "model.onnx"))
    deep = [*nodes[:2], *(node("Sigmoid", a, b) for a, b in pairwise(["m", *"abdefghijk"]))]
    deep.append(node("Conv", "k v", name="last"))
    inputs, weights = {"x": ("N", 4, 6, 6), "scale": (1, 1, 6, 6)}, {"w": random(40, 4, 3, 3), "v": random(3, 40, 1, 1)}
    onnx.save(make_model(deep, inputs, ["y"], weights), str(folder / "deep.onnx"))
    for name, cycles in (("fast.json", 2), ("small.json", 3)):
        write_chip(folder / name, adc_latency_cycle=cycles, adc_count=3 if name == "small.json" else 16)
    write_chip(folder / "two.json", xbar_size=(2, 2))
    write_chip(folder / "chip.json", adc_latency_cycle=5, xbar_array_count=40)
    raptor.compile(model, driver=Driver(dump=folder / "ir", dump_format="mlir"))
    next((folder / "ir").glob("*-lower.mlir")).rename(folder / "changed.mlir")
    shutil.rmtree(folder / "ir")
    raptor.compile(model, arch=folder / "chip.json", constants={"scale": list(SCALES)}).save(folder / "out")
    shutil.copytree(folder / "out", folder / "spoilt")
    report = folder / "spoilt" / "report.json"
    report.write_text(report.read_text().rstrip("\n") + " ")
    small = {"xbar": 8, "cores": 2, "xbars_per_core": 2, "rounds": True, "device": "pcm-occ"}
    raptor.compile(dense(8, 40), **small).save(folder / "turns")
    raptor.compile(plain_decoder(layers=1), states="auto", capacity=24, cores=8).save(folder / "decoder")
    session = raptor.Session(folder / "decoder")
    session.step(2)
    session.save(folder / "session.npz")
    np.save(folder / "x.npy", np.ones((1, 4, 6, 6), np.float32))
    onnx.save(dense(8, 40), str(folder / "wide.onnx"))
    onnx.save(line_of_pixels(), str(folder / "prune.onnx"))
    onnx.save(elman_step(), str(folder / "step.onnx"))
    raptor.quantize(dense(6, 3), samples=1).save(folder / "int8.onnx")
    raptor.compile(folder / "int8.onnx", xbar=16, cores=2).save(folder / "int8")
    raptor.compile(folder / "int8.onnx", xbar=16, cores=2, trimmable=True).save(folder / "die")
    raptor.compile(folder / "int8.onnx", xbar=16, cores=2, cell_bits=4).save(folder / "cells")
    (folder / "int8.onnx").unlink()
    bench, cells = (architectures.load("bench", **more) for more in ({}, {"xbar": 16, "cores": 2, "cell_bits": 4}))
    for name, chip, rates in (("die", bench, DefectRates(dead_cores=140)), ("stuck", cells, DefectRates(stuck=0.1))):
        (folder / f"{name}.json").write_bytes(chip_to_json(draw_chip(make_size(chip, 2), rates, 0)))
    (folder / "tester.csv").write_text("core,defect\n1,dead\n")
    np.savez(folder / "seen.npz", x=random(4, 6, seed=9))
    np.save(folder / "image.npy", random(1, 6))
    np.savez(folder / "labelled.npz", x=random(5, 6), y=np.array([0, 1, 2, 0, 1]))
    np.savez(folder / "data.npz", x=random(6, 4, 6, 6), scale=random(6, 1, 6, 6, seed=1))
    (folder / "policy.json").write_text('{"weights": {"my_conv": 4}}')
    (folder / "measured.json").write_bytes(to_json(measured("tiny")))
    write_study(folder)
    return folder


def line_of_pixels() -> onnx.ModelProto:
    """Returns a model of six numbers, as two pixels of three channels for a layer with two kernel positions."""
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Conv", "r w", "c", name="conv", kernel_shape=[2], pads=[1, 0]),
        node("Flatten", "c", "y"),
    ]
    return make_model(nodes, {"x": (1, 6)}, ["y"], {"shape": np.array([1, 3, 2]), "w": random(4, 3, 2)})


def write_study(folder: Path) -> None:
    """Writes a study of three points. All have results, made up, and two are trials of it."""
    text = """
    objectives = { latency_ns = "min" }
    study = { name = "NAME", models = ["model.onnx"], sampler = "grid", storage = "sqlite:///s.db", trials = TRIALS }
    options = { arch = "small.json" }
    space = { cores = [12, 13, 14] }
    """
    path = folder / "small.toml"

    def made_up(
        _: object, jobs: Sequence[EvaluationJob], __: object, done: Callable[[int, EvaluationRecord], None]
    ) -> None:
        for k in range(len(jobs)):
            done(k, EvaluationRecord("ok", {"latency_ns": 3.0 - k}))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_pool, "evaluate_all", made_up)
        for name, trials in (("other", "3"), ("small", "2")):
            path.write_text(text.replace("NAME", name).replace("TRIALS", trials))
            study_driver.run_study(read_study(path))


def write_chip(path: Path, **converters: int | tuple[int, int]) -> None:
    raw = json.loads(architectures.arch_json(architectures.load("bench", cores=12, xbars_per_core=64, xbar=16)))
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    raw["chip_config"]["core_config"]["matrix_config"] |= converters
    path.write_text(json.dumps(raw))


Observed = tuple[object, ...]
"""Status, standard output, standard error, files, what was told to the engine."""


class Runner:
    """Runs a command with some of its options, each combination once."""

    def __init__(self, name: str, folder: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.command, self.folder = kind(name), COMMANDS[name], folder
        self.copy, self.monkeypatch = scratch / "copy", monkeypatch
        self.known: dict[frozenset[str], tuple[Observed, ...]] = {}

    def run(self, *options: str) -> tuple[Observed, ...]:
        """Runs in each state of the folder that an option may depend on."""
        key = frozenset(options)
        if key not in self.known:
            words = [*self.command.words, *(w for option in options for w in self.command.options[option])]
            self.known[key] = tuple(self.states(words))
        return self.known[key]

    def states(self, words: list[str]) -> Iterator[Observed]:
        """A fresh folder; the same once more, when what it writes is there; for `validate` a program with a fault."""
        shutil.copytree(self.folder, self.copy)
        self.monkeypatch.chdir(self.copy)
        try:
            if self.name == "compile":
                shutil.rmtree("out")
            yield self.once(words)
            again = (
                "compile",
                "models",
                "quantize",
                "run",
                "generate",
                "trim",
                "repair",
                "prune",
                "harden",
                "arch new",
                "arch defects",
            )
            if self.name in (*again, "explore new"):
                yield self.once(words)
            if "out" in words and self.name == "validate":
                yield self.once(["spoilt" if word == "out" else word for word in words])
        finally:
            self.monkeypatch.chdir(self.folder)
            shutil.rmtree(self.copy)

    def once(self, words: list[str]) -> Observed:
        told: list[object] = []
        real, calibrated, scores = bit_true.run_program, measure.calibrate_converters, measure.run_scores

        def spied(program: Any, inputs: Any, **options: Any) -> Any:
            told.append((sorted(options.items()), program.crossbars and program.crossbars.setup))
            return real(program, inputs, **options)

        def spied_calibration(program: Any, inputs: Any) -> Any:
            told.append(len(given := list(inputs)))
            return calibrated(program, given)

        def spied_scores(program: Any, data: Any, threads: int, tick: Any) -> Any:
            told.append(threads)
            return scores(program, data, threads, tick)

        def counted(count: int) -> AbstractContextManager[worker_pool.SubmitFunction]:
            told.append(count)
            return real_workers(count)

        def counted_threads(max_workers: int) -> CheckedThreadPool:
            told.append(max_workers)
            return CheckedThreadPool(max_workers=max_workers)

        real_workers = worker_pool.open_local_pool
        out, err = TextIOWrapper(BytesIO()), TextIOWrapper(BytesIO())
        with self.monkeypatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            for module in (sample_runs, bit_true):
                patched.setattr(module, "run_program", spied)
            patched.setattr(measure, "calibrate_converters", spied_calibration)
            patched.setattr(measure, "run_scores", spied_scores)
            patched.setattr(measure_yield, "run_scores", spied_scores)
            patched.setattr(measure_yield, "CheckedThreadPool", counted_threads)
            patched.setattr(worker_pool, "open_local_pool", counted)
            patched.setattr("webbrowser.open", told.append)
            with pytest.raises(SystemExit) as ended:
                app.main(words)
        return ended.value.code or 0, written(out), written(err), digest(self.copy), json.dumps(told, default=str)


def written(stream: TextIOWrapper) -> str:
    """Returns the printed text, without wall times."""
    stream.flush()
    text = re.sub(r" in \d+\.\d+ s\b", "", stream.buffer.getvalue().decode())
    return "\n".join(line for line in text.splitlines() if not line.startswith("seconds"))


def digest(folder: Path) -> str:
    """Names and contents of all files, without wall times, which are also in the database of a study."""
    found = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("s.db")):
        content = path.read_bytes()
        if path.name == "found.json":
            content = json.dumps(json.loads(content) | {"seconds": 0}).encode()
        found.update(f"{path.relative_to(folder)} {len(content)} ".encode())
        found.update(content)
    return found.hexdigest()


def refused(result: tuple[Observed, ...]) -> bool:
    """Tells whether it ended with an error message in every state."""
    return all(status == 2 and "error: " in str(err) for status, _, err, *_ in result)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_acts_or_is_refused_beside_others(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One test per command, not per option, so that two options are run together only once."""
    runner = Runner(name, folder, tmp_path, monkeypatch)
    share = SHARES.get(name, 1)
    assert [fault for option in runner.command.options for fault in faults(runner, option, share)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_every_option_acts_or_is_refused_beside_every_other(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runner = Runner(name, folder, tmp_path, monkeypatch)
    found = [fault for option in runner.command.options for fault in faults(runner, option, 1)]
    assert not found, "\n".join(found)


def others(runner: Runner, option: str, share: int) -> Iterator[str]:
    """Yields the options beside which one is tried: all, or one in `share` of the pairs, chosen by their names."""
    for other in runner.command.options:
        if other != option and crc32(" ".join(sorted((option, other))).encode()) % share == 0:
            yield other


def faults(runner: Runner, option: str, share: int) -> Iterator[str]:
    """Yields contradictions to the promise, alone and with other options."""
    alone = runner.run(option)
    if alone == runner.run() and option not in WHERE_NEEDED:
        yield f"{option} does nothing alone"
    acted = not refused(alone)
    for other in others(runner, option, share):
        if refused(both := runner.run(option, other)):
            continue
        acted = True
        # What only changes words has nothing to change where no words are wanted, or none are said.
        silent = other == "--quiet" or (option == "--quiet" and not any(out for _, out, *_ in runner.run(other)))
        if not silent and both == runner.run(other) and WHERE_NEEDED.get(option, other) == other:
            yield f"{option} does nothing beside {other}"
    # Options that need several others act in a later entry of the command, which has those in its words.
    last = [c for title, c in COMMANDS.items() if kind(title) == runner.name and option in c.options][-1]
    if not acted and share == 1 and last is runner.command and option not in ALWAYS_REFUSED:
        yield f"{option} is always refused"


def test_the_mapping_file_of_a_misspelt_option_is_not_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """These combinations were once accepted without a message."""
    monkeypatch.chdir(folder)
    for options, fault in (
        ({"mapping": "missing.json", "optimize": "latency"}, "mapping=: not with optimize="),
        ({"effort": 9}, "effort=: only with optimize="),
    ):
        with pytest.raises(UserError, match=fault):
            raptor.compile("model.onnx", constants={"scale": list(SCALES)}, **options)
