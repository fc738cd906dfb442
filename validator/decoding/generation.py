"""Generates tokens: feeds a prompt token by token, then each token that the logits of the one before give."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonNumber

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


class TokenStepper(Protocol):
    """Something that computes the outputs of a decoder for one token after the other."""

    def step(self, inputs: int) -> Mapping[str, Array]: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """The choice of a token. `temperature`: 0 takes the largest logit, the first one of equal ones."""

    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """Tokens that a session generated after a prompt, as JSON.

    `first_position`: tokens that the caches held before; `position`: tokens that they hold at the end. The last new
    token is not among them, because no step has read it. `text`: the new tokens as text, after a prompt of text.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    first_position: int
    position: int
    temperature: JsonNumber = 0.0
    seed: int = 0
    text: str | None = None
    version: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """New tokens, and the logits that each was chosen from, [tokens, vocabulary]."""

    tokens: tuple[int, ...]
    logits: Doubles


def generate_tokens(stepper: TokenStepper, prompt: Sequence[int], count: int, sampling: Sampling) -> Generated:
    """Returns `count` new tokens after a prompt of one token at least. Equal seeds draw equal random numbers."""
    rng, found = np.random.default_rng(sampling.seed), list[int]()
    rows: list[Doubles] = []
    for number in range(len(prompt) + count - 1):
        token = prompt[number] if number < len(prompt) else found[-1]
        outputs = stepper.step(int(token))
        if number >= len(prompt) - 1:
            rows.append(read_logits(outputs))
            found.append(choose_token(rows[-1], sampling.temperature, rng))
    return Generated(tuple(found), np.stack(rows))


def read_logits(outputs: Mapping[str, Array]) -> Doubles:
    """Returns the logits of a step. Raises `UserError` unless one output holds floats, one row for the token."""
    rows: dict[str, Array] = {
        name: a for name, a in outputs.items() if a.dtype.kind == "f" and a.ndim and a.size == a.shape[-1]
    }
    found = [rows["logits"]] if "logits" in rows else list(rows.values())
    if len(found) != 1 or found[0].size < 2:
        raise UserError(f"the outputs {', '.join(outputs) or 'of the model'} are not the logits of one token")
    return found[0].reshape(-1).astype(np.float64)


def choose_token(logits: Doubles, temperature: float, rng: np.random.Generator) -> int:
    """Returns the index of the largest logit, or at a temperature a random one by softmax(logits / temperature)."""
    if not temperature:
        return int(logits.argmax())
    ends: list[float] = np.cumsum(np.exp((logits - logits.max()) / temperature)).tolist()
    return min(bisect_right(ends, rng.random() * ends[-1]), len(logits) - 1)


def best_gap(logits: Doubles) -> float:
    """Returns the difference of the two largest logits."""
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)
