"""Two tiers of tests: `make test` runs the quick one, `make test-all` both.

`tests/tiers.toml` says how many cases of a slow test are quick. The other cases get the mark `thorough`.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import pytest

TABLE: Mapping[str, Mapping[str, int | Sequence[str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Number of quick cases, or their ids, of each test in each file."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Marks the thorough cases of the collected ones."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for file, tests in TABLE.items():
        for test, quick in tests.items():
            for item in _thorough(cases[f"{file}::{test}"], quick):
                item.add_marker("thorough")


def _thorough(items: Sequence[pytest.Item], quick: int | Sequence[str]) -> Iterator[pytest.Item]:
    if isinstance(quick, int):  # by a hash of test and case: all kinds are among the quick ones, wherever the file lies
        yield from sorted(items, key=lambda item: crc32(item.nodeid.partition("::")[2].encode()))[quick:]
        return
    yield from (item for item in items if item.nodeid.partition("[")[2].removesuffix("]") not in quick)
