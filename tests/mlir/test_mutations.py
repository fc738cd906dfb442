"""Mutated MLIR is refused with its line, or is a program that verifies and becomes streams; never anything else."""

import random
from collections import Counter

import pytest

from raptor import mlir
from raptor.common.errors import UserError, VerifyError
from tests.mlir.mutations import finish, mutate, programs, text_of, verify

CASES = [("thesis", seed) for seed in range(6)] + [("integers", 0), ("lines", 0), ("lookup", 0)]


def outcome(name: str, text: str) -> str:
    """Reads, verifies and lowers a module. Returns `refused`, `wrong` or `right`."""
    try:
        program = mlir.load(text).program
    except UserError as e:
        return "refused" if str(e).startswith("module: line ") else "refused without a line"
    try:
        verify(program, programs()[name])
    except VerifyError:
        return "wrong"
    finish(program, programs()[name])
    return "right"


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_mutated_text(name: str, seed: int):
    rng, text = random.Random(f"{name} {seed}"), text_of(name)
    found = Counter(outcome(name, mutate(text, rng)) for _ in range(25))
    assert found["refused"]
    assert found.keys() <= {"refused", "wrong", "right"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thesis", "integers", "lines", "lookup"])
def test_many_mutations(name: str):
    rng, text = random.Random(name), text_of(name)
    found = Counter(outcome(name, mutate(text, rng)) for _ in range(1500))
    assert found.keys() == {"refused", "wrong", "right"}
    assert min(found[each] for each in ("refused", "wrong", "right")) >= 5
