"""Trains the language model of `models.trained` and writes `kjv.onnx`, in ten minutes of one processor:

    apt-get install bible-kjv bible-kjv-text
    python -m models.trained.train_language [FILE] [--seconds 540] [--weights FILE.npz]

It needs PyTorch. The text is the King James Bible, without its references. The last twentieth is for tests. Training
ends after a time, so another machine gets other weights. With `--weights` it trains nothing, and writes the model of
weights that it stored before, as `weights.npz` beside the model.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.trained import LANGUAGE_MODEL
from models.trained import language_model as form

Array = npt.NDArray[Any]
BATCH, TESTED = 8, 0.05
"""Sequences of a step; share of the text for tests."""
RATE, MATRIX_RATE, MOMENTUM, WARM_UP, STEADY = 3e-3, 0.02, 0.95, 50, 0.4
"""Rates of AdamW and, for the matrices of layers, of Muon; steps of rising rates; share of time at the full rate."""


def read_text() -> bytes:
    """Returns the verses, one a line, as the Debian package `bible-kjv` prints them."""
    found = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], capture_output=True, check=True)
    return re.sub(rb"(?m)^\S+ ", b"", found.stdout)


def train(text: bytes, seconds: float, seed: int = 0) -> dict[str, Array]:
    """Trains for some seconds of processor time. Returns the weights by name, [outputs, inputs]."""
    torch: Any = import_module("torch")
    functional = torch.nn.functional
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokens = torch.tensor(np.frombuffer(text, np.uint8).astype(np.int64))
    tokens = tokens[: int(len(tokens) * (1 - TESTED))]
    weights = {name: torch.nn.Parameter(value) for name, value in _initial(torch).items()}
    matrices = [w for name, w in weights.items() if w.dim() == 2 and name.startswith("b.")]
    others = [w for w in weights.values() if all(w is not m for m in matrices)]
    adam = torch.optim.AdamW(others, lr=RATE, betas=(0.9, MOMENTUM), weight_decay=0.0)
    moments = [torch.zeros_like(m) for m in matrices]
    begin, step = time.process_time(), 0
    while (spent := (time.process_time() - begin) / seconds) < 1:
        rate = min(1.0, (step + 1) / WARM_UP) * (1 if spent < STEADY else max(0.02, (1 - spent) / (1 - STEADY)))
        starts = torch.randint(0, len(tokens) - form.CONTEXT - 1, (BATCH,)).tolist()
        rows = torch.stack([tokens[s : s + form.CONTEXT + 1] for s in starts])
        logits = _forward(torch, weights, rows[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, form.TOKENS), rows[:, 1:].reshape(-1))
        for weight in weights.values():
            weight.grad = None
        loss.backward()
        adam.param_groups[0]["lr"] = RATE * rate
        adam.step()
        with torch.no_grad():
            for matrix, moment in zip(matrices, moments, strict=True):
                moment.mul_(MOMENTUM).add_(matrix.grad)
                long = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.add_(_orthogonal(matrix.grad + MOMENTUM * moment) * long, alpha=-MATRIX_RATE * rate)
        step += 1
        if step % 100 == 0:
            print(f"step {step}: {loss.item():.3f} nats a byte", flush=True)
    return {name: weight.detach().numpy() for name, weight in weights.items()}


def _initial(torch: Any) -> dict[str, Any]:
    """Returns random matrices, and gains of 1."""
    sizes = {"q": (form.WIDTH, form.WIDTH), "o": (form.WIDTH, form.WIDTH)}
    sizes |= dict.fromkeys("kv", (form.GROUPS * form.HEAD_SIZE, form.WIDTH))
    sizes |= {"g": (form.WIDE, form.WIDTH), "u": (form.WIDE, form.WIDTH), "w": (form.WIDTH, form.WIDE)}
    found = {"e.weight": torch.randn(form.TOKENS, form.WIDTH) * 0.02}
    for n in range(form.LAYERS):
        found |= {f"b.{n}.{norm}.weight": torch.ones(form.WIDTH) for norm in ("n1", "n2")}
        found |= {f"b.{n}.{k}.weight": torch.randn(*size) * size[1] ** -0.5 * 0.7 for k, size in sizes.items()}
    last = torch.randn(form.TOKENS, form.WIDTH) * form.WIDTH**-0.5 * 0.7
    return {**found, "n.weight": torch.ones(form.WIDTH), "h.weight": last}


def _forward(torch: Any, weights: Mapping[str, Any], ids: Any) -> Any:
    """Returns logits [batch, tokens, vocabulary] of ids [batch, tokens]."""
    functional = torch.nn.functional
    waves = form.BASE ** (-torch.arange(0, form.HEAD_SIZE, 2) / form.HEAD_SIZE)
    angles = torch.arange(ids.shape[1])[:, None] * waves
    cos, sin = angles.cos(), angles.sin()

    def norm(x: Any, name: str) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + form.EPSILON) * weights[f"{name}.weight"]

    def heads(x: Any, name: str, *, rotated: bool) -> Any:
        y = (x @ weights[f"{name}.weight"].T).unflatten(2, (-1, form.HEAD_SIZE)).transpose(1, 2)
        a, b = y.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1) if rotated else y

    x = weights["e.weight"][ids]
    for n in range(form.LAYERS):
        y = norm(x, f"b.{n}.n1")
        q, k, v = (heads(y, f"b.{n}.{kind}", rotated=kind != "v") for kind in "qkv")
        k, v = (t.repeat_interleave(form.HEADS // form.GROUPS, 1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + mixed @ weights[f"b.{n}.o.weight"].T
        y = norm(x, f"b.{n}.n2")
        gate, up = (y @ weights[f"b.{n}.{kind}.weight"].T for kind in "gu")
        x = x + (functional.silu(gate) * up) @ weights[f"b.{n}.w.weight"].T
    return norm(x, "n") @ weights["h.weight"].T


def _orthogonal(gradient: Any) -> Any:
    """Returns a matrix near the nearest orthogonal one, by five steps of Newton and Schulz (Muon, Jordan 2024)."""
    x = gradient / (gradient.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


def main() -> None:
    """Trains and writes the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=LANGUAGE_MODEL)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--weights", type=Path)
    given = parser.parse_args()
    if given.weights is None:
        weights = train(read_text(), given.seconds)
        np.savez(given.file.with_name("weights.npz"), allow_pickle=False, **weights)
    else:
        with np.load(given.weights) as archive:
            weights = {name: archive[name] for name in archive.files}
    given.file.write_bytes(form.build_language_model(weights).SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
