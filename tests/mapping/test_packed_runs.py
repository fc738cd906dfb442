"""Elements that come from many tiles are packed first where this takes far fewer copies, and stay the same elements."""

from collections import Counter
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

import raptor
from benchmarks.programs.slow_models import build_model
from raptor.graph.run_encoding import find_runs
from raptor.mapping.packed_runs import pack_runs, runs_ns
from raptor.spatial.operations import Move
from tests.pipeline import chip, count_ops, passes

Ints = npt.NDArray[np.int64]
ARCH = chip()


def moved(runs: Ints, sources: list[Ints]) -> Ints:
    """Returns the elements that runs copy out of the elements of the sources; 0 for zeros."""
    result = np.full(runs[:, 4].sum(), -1)
    for target, source, first, stride, elements in runs.tolist():
        taken: Ints = first + stride * np.arange(elements)
        result[target : target + elements] = sources[source][taken] if source >= 0 else 0
    return result


def transposition(tokens: int, channels: int) -> Ints:
    """Returns runs of a sequence whose tokens are tiles of their own, channel by channel."""
    source, channel = np.meshgrid(np.arange(tokens), np.arange(channels), indexing="ij")
    return find_runs(source.T.reshape(-1), channel.T.reshape(-1))


def test_a_transposition_takes_a_copy_a_token_and_a_run_a_channel():
    runs = transposition(16, 32)
    packed = pack_runs(runs, ARCH)
    assert packed is not None
    assert (len(runs), len(packed.packing), len(packed.unpacking)) == (512, 16, 32)
    assert (packed.unpacking[:, 3] == 32).all()
    assert runs_ns(packed.packing, ARCH) + runs_ns(packed.unpacking, ARCH) < 0.2 * runs_ns(runs, ARCH)


@pytest.mark.parametrize(
    "runs",
    [
        transposition(1, 32),
        transposition(16, 1),
        np.array([[i, i % 4, 400 * (i // 4), 1, 1] for i in range(64)]),
        np.array([[32 * i, i, 0, 1, 32] for i in range(8)]),
    ],
    ids=["one source", "one element of each", "few elements of long tiles", "whole tiles"],
)
def test_what_gains_nothing_is_not_packed(runs: Ints):
    assert pack_runs(runs, ARCH) is None


@pytest.mark.parametrize("seed", range(40))
def test_random_elements_stay_the_same(seed: int):
    """Tokens in any order, of which some channels are read, some of them twice, with zeros between."""
    rng = Random(seed)
    tokens, channels, low = rng.randint(4, 12), rng.randint(12, 24), rng.randint(0, 6)
    order = rng.sample(range(tokens), tokens)
    where = np.array([[*order, -1] for _ in range(low, channels)] * rng.randint(1, 2)).reshape(-1)
    offset = np.repeat(np.resize(np.arange(low, channels), len(where) // (tokens + 1)), tokens + 1)
    runs = find_runs(where, offset)
    packed = pack_runs(runs, ARCH)
    assert packed is not None
    sources = [np.arange(channels) + 100 * (1 + i) for i in range(tokens)]
    assert (moved(packed.unpacking, [moved(packed.packing, sources)]) == moved(runs, sources)).all()


def test_products_with_states_of_all_steps_take_few_copies():
    """Each core that averages the states of a sequence has a line for each channel of all steps."""
    model = build_model("attending_sequences")
    done = passes(model, arch="bench", cores=64, mapping="rows")
    most = Counter({c.node: len(op.runs) for c in done.spatial.computes for op in c.body if isinstance(op, Move)})
    assert most.most_common(1)[0][1] <= 40
    assert count_ops(done.streams)["vmv"] >= 32
    assert raptor.compile(model, arch="bench", cores=64).validate(samples=3).verdict == "pass"
