"""The measured figures, and what ties them to the generator."""

import json
import zlib
from pathlib import Path
from typing import Any

from tests.validator.simulate.generator import Case, random_case, widths_case

FIGURES = Path(__file__).parent / "data" / "figures.json"


def load() -> dict[str, Any]:
    return json.loads(FIGURES.read_text())


def digest(figures: dict[str, Any]) -> int:
    """A checksum of every program and chip that the figures are about."""
    value = 0
    for seed in sorted(map(int, figures["latency"])):
        value = zlib.crc32(_text(random_case(seed)), value)
    for seed in sorted(map(int, figures["throughput"])):
        value = zlib.crc32(_text(random_case(seed, mode=0)), value)
    for seed in sorted(map(int, figures["widths"])):
        value = zlib.crc32(_text(widths_case(seed)), value)
    return value


def _text(case: Case) -> bytes:
    return json.dumps([case.config, case.streams, case.arch, case.network]).encode()
