"""Reads architecture files like pimsim-nn, and notes fields that it ignores and values that make no sense."""

from pathlib import Path
from typing import Any

from raptor.common.errors import UserError
from raptor.target import arch as architectures
from raptor.target.arch import drop_wrong_fields, parse_arch, read_arch
from validator.checks.rule_subject import ArchitectureFile

_MOST_PASSES = 200


def read_chip(source: str | Path) -> ArchitectureFile:
    """Reads an architecture file or preset. Raises `UserError` if it cannot be read or is not a JSON object."""
    if str(source) in architectures.arch_presets():
        return ArchitectureFile(str(source), architectures.load(str(source)))
    return parse_chip(read_arch(Path(source)), str(source))


def parse_chip(raw: dict[str, Any], path: str) -> ArchitectureFile:
    """Makes a chip of the fields that follow the schema, and notes the others as unknown or impossible.

    Removes the others from `raw`. Raises `UserError` if it is not an architecture file at all.
    """
    unknown: list[tuple[str, str]] = []
    impossible: list[tuple[str, str]] = []
    for _ in range(_MOST_PASSES):
        description, problems = parse_arch(raw)
        if description is not None:
            chip_id, core_id = description.memory_ids
            return ArchitectureFile(
                path,
                description.target(),
                tuple(unknown),
                tuple(impossible),
                description.network_file,
                None if chip_id == core_id else core_id,
            )
        for problem in problems:
            if problem.kind == "unknown":
                unknown.append((problem.name, problem.meant))
            else:
                name = ".".join(part for part in problem.place if isinstance(part, str))
                impossible.append((name, f"{problem.message.lower()}, found {problem.found!r:.40}"))
        drop_wrong_fields(raw, problems)
    raise UserError(f"architecture {path}: not an architecture file")
