"""Stored decisions: their text is complete, they replay to the same bytes, and whatever is changed in a file is judged.

A changed file is refused with a sentence, or the program that comes of it is right. It never ends in a pass.
"""

import copy
import json
import random as randoms
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import models
import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.mapping.decision import Decision, StageSplit
from raptor.mapping.strategies import STRATEGIES
from raptor.output import files
from tests.models.test_models import small_options
from tests.pipeline import passes
from tests.tiny_models import make_model, node, random

CHIP = {"xbar": 16, "xbars_per_core": 24, "cores": 40}


def every_kind() -> onnx.ModelProto:
    """A layer by line, one in matrices of whole tiles, one on the vector unit, a fully connected one."""
    nodes = [
        node("GlobalAveragePool", "x", "mean"),
        node("ConvTranspose", "mean g", "whole", name="enlarged"),
        node("Relu", "whole", "clipped"),
        node("Conv", "x w", "line", name="by_line", pads=[1, 1, 1, 1]),
        node("Mul", "line clipped", "gated"),
        node("Conv", "gated d", "depthwise", name="read_channel_vector", group=20, pads=[1, 0, 0, 1]),
        node("Flatten", "depthwise", "flat"),
        node("Gemm", "flat m", "y"),
    ]
    constants = {"w": random(20, 3, 3, 3), "g": random(3, 20, 6, 6), "d": random(20, 1, 2, 2), "m": random(720, 36)}
    return make_model(nodes, {"x": (1, 3, 6, 6)}, {"y": 2}, constants)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return every_kind()


@pytest.fixture(scope="module", params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stored(model: onnx.ModelProto, strategy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stored")
    raptor.compile(model, mapping=strategy, **CHIP).save(folder / "out")
    return json.loads((folder / "out" / files.MAPPING).read_bytes())


def test_the_model_has_layers_of_every_kind(model: onnx.ModelProto):
    decided = {name: layer.kind for name, layer in passes(model, mapping="rows", **CHIP).decision.layers.items()}
    assert decided == {"whole": "kernel", "line": "line", "depthwise": "vector", "y": "fully_connected"}


# The text


def changes(value: Any) -> Iterator[Any]:
    """The value with one of its fields changed, for every field at every depth; `kind` names the class."""
    if is_dataclass(value):
        for name in (f.name for f in fields(value) if f.name != "kind"):
            yield from (replace(value, **{name: other}) for other in changes(getattr(value, name)))
    elif isinstance(value, dict):
        if value:
            yield {f"{key}'": entry for key, entry in value.items()}
        for key, entry in value.items():
            yield from (value | {key: other} for other in changes(entry))
    elif isinstance(value, tuple):
        if value and isinstance(value[-1], tuple):  # no pair of numbers, and no list that another is as long as
            yield value[:-1]
        for i, entry in enumerate(value):
            yield from ((*value[:i], other, *value[i + 1 :]) for other in changes(entry))
    else:
        others = {type(None): lambda: StageSplit(1.0, 1.0, 0), bool: lambda: not value, str: lambda: f"{value}'"}
        yield others.get(type(value), lambda: value + 1)()


def test_no_two_decisions_have_the_same_text(model: onnx.ModelProto, strategy: str):
    decision: Decision = passes(model, mapping=strategy, **CHIP).decision
    changed = list(changes(decision))
    assert len(changed) > 50
    assert len({str(other) for other in changed}) == len(changed)
    assert str(decision) not in map(str, changed)


# The file


SMALL = ("lenet5", "mlp")


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("name", [m if m in SMALL else pytest.param(m, marks=pytest.mark.slow) for m in models.MODELS])
def test_the_stored_decision_replays_to_the_same_bytes(name: str, mapping: str, tmp_path: Path):
    model, chip = models.build(name, seed=0, **small_options(name)), {"cores": 2000}
    first, again = tmp_path / "first", tmp_path / "again"
    formats: dict[str, Any] = {"stream_format": "pim", "weight_format": "npz"}
    raptor.compile(model, mapping=mapping, **chip).save(first, **formats)
    raptor.compile(model, mapping=first / files.MAPPING, **chip).save(again, **formats)
    assert contents(first) == contents(again)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file; of the manifest all but the option that says where the mapping is from."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(found[files.MANIFEST])
    manifest["options"].pop("mapping")
    return found | {files.MANIFEST: json.dumps(manifest).encode()}


def test_what_is_emitted_is_what_is_stored(model: onnx.ModelProto, tmp_path: Path):
    out = raptor.compile(model, emit_mapping=tmp_path / "m.json", **CHIP).save(tmp_path / "out")
    assert (tmp_path / "m.json").read_bytes() == (out / files.MAPPING).read_bytes()


def test_a_file_of_an_earlier_version_says_so(model: onnx.ModelProto, stored: dict[str, Any], tmp_path: Path):
    (tmp_path / "m.json").write_text(json.dumps(stored | {"version": 4}))
    with pytest.raises(UserError, match=r"format 4, not 5\): make it anew with raptor compile MODEL --emit-mapping"):
        raptor.compile(model, mapping=tmp_path / "m.json", **CHIP)


# Changed files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda places: places[1:], "39 places, expected each of 0 to 39 once; null has it decided anew"),
        (lambda places: [*places, 40], "one 40 too many, expected each of 0 to 39 once"),
        (lambda places: [*places[1:], 2**70], "one 1180591620717411303424 too many, expected each"),
        (lambda places: [*places[1:], -1], "one -1 too many, expected each"),
        (lambda places: [places[1], *places[1:]], r"one \d+ too many, expected each"),
    ],
)
def test_a_placement_that_is_none(
    change: Callable[[list[int]], list[int]], message: str, model: onnx.ModelProto, tmp_path: Path
):
    path = tmp_path / "m.json"
    raptor.compile(model, emit_mapping=path, **CHIP)
    changed = json.loads(path.read_bytes())
    placement = changed["decision"]["placement"]
    placement["places"] = change(placement["places"])
    path.write_text(json.dumps(changed))
    with pytest.raises(UserError, match=f"m.json'?: placement: {message}"):
        raptor.compile(model, mapping=path, **CHIP)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(entry, (*path, key))


def mutated(
    stored: dict[str, Any], rng: randoms.Random, inside: tuple[str, ...] = ("decision",)
) -> tuple[dict[str, Any], str]:
    """A copy in which one part `inside` a part is another, and what was done.

    Where something else than the refinement is, that is to be decided anew: it is about other computes.
    """
    found = copy.deepcopy(stored)
    whole: Any = found
    for key in inside:
        whole = whole[key]
    ways = list(places(whole, inside))
    by_depth = {len(way): [w for w in ways if len(w) == len(way)] for way in ways}
    *way, last = rng.choice(by_depth[rng.choice(sorted(by_depth))])
    parent: Any = found
    for key in way:
        parent = parent[key]
    how = rng.choice(CHANGES)
    how(parent, last, rng)
    if "refinement" in found["decision"] and "refinement" not in way:
        found["decision"]["refinement"] = None
    return found, f"{how.__name__} {[*way, last]}"


def another_value(parent: Any, key: Any, rng: randoms.Random) -> None:
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = rng.choice([value + 1, value - 1, -1, 0, 1, 2 * value, value // 2, 7, 2**31, 2**70])
    elif isinstance(value, float):
        parent[key] = rng.choice([0.0, -1.0, value / 3, 1e300])
    elif isinstance(value, str):
        parent[key] = rng.choice(["line", "kernel", "vector", "fully_connected", "tile", "pixel", "raptor", ""])
    else:
        removed(parent, key, rng)


def removed(parent: Any, key: Any, _: randoms.Random) -> None:
    del parent[key]


def repeated(parent: Any, key: Any, _: randoms.Random) -> None:
    if isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    else:
        parent[f"{key}2"] = copy.deepcopy(parent[key])


def exchanged(parent: Any, key: Any, rng: randoms.Random) -> None:
    other = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[key], parent[other] = parent[other], parent[key]


def shuffled(parent: Any, key: Any, rng: randoms.Random) -> None:
    if isinstance(parent[key], list):
        rng.shuffle(parent[key])
    else:
        another_value(parent, key, rng)


CHANGES: tuple[Callable[[Any, Any, randoms.Random], None], ...] = (
    another_value,
    removed,
    repeated,
    exchanged,
    shuffled,
)


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 400), marks=pytest.mark.slow)])
def test_a_changed_file_is_refused_or_right(
    model: onnx.ModelProto, stored: dict[str, Any], seeds: range, tmp_path: Path
):
    accepted = 0
    for seed in seeds:
        changed, how = mutated(stored, randoms.Random(seed))
        (tmp_path / "m.json").write_text(json.dumps(changed))
        try:
            program = raptor.compile(model, mapping=tmp_path / "m.json", **CHIP)
        except CapacityError:
            continue  # such as local memory: no fault of the file
        except UserError as e:
            said = str(e)
        except raptor.RaptorError as e:
            pytest.fail(f"seed {seed}, {how}: {e}")
        else:
            said = "m.json"
            assert program.validate(samples=1).verdict == "pass", f"seed {seed}, {how}"
            accepted += 1
        assert "m.json" in said, f"seed {seed}, {how}: {said}"
    assert accepted
