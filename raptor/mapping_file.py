"""A mapping as a file: `--emit-mapping` writes it, `--mapping FILE` replays it on the same model and chip."""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from raptor import files
from raptor.arch import Arch
from raptor.errors import UserError
from raptor.frontend.graph import Filter, Graph
from raptor.mapping import Mapping, filter_key
from raptor.strict import Pair, Schema, faults

LIMIT_BYTES = 2**30


class MappingFile(Schema):
    """The decision and what it was made for."""

    version: Literal[1] = 1
    xbar: Pair[int, int]
    cores: int
    xbars_per_core: int
    element_bits: int
    mapping: Mapping


def write_mapping(path: Path, mapping: Mapping, arch: Arch) -> None:
    content = MappingFile(
        xbar=(arch.xbar_rows, arch.xbar_cols),
        cores=arch.core_count,
        xbars_per_core=arch.xbars_per_core,
        element_bits=arch.element_bits,
        mapping=mapping,
    )
    files.write_for("--emit-mapping", path, content.model_dump_json(indent=1).encode() + b"\n")


def read_mapping(path: Path, graph: Graph, arch: Arch) -> Mapping:
    """Raises `UserError` when the file is not a mapping, or one for another model or chip."""
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise UserError(f"--mapping {path}: larger than {LIMIT_BYTES} bytes")
        stored = MappingFile.model_validate_json(path.read_bytes())
    except OSError as e:
        raise UserError(f"--mapping {path}: {e.strerror or e}") from e
    except ValidationError as e:
        mistakes = "; ".join(faults(e, 3))
        raise UserError(f"--mapping {path}: not a mapping that this version can read: {mistakes}") from e
    _check_chip(path, stored, arch)
    _check_layers(path, stored.mapping, graph)
    return stored.mapping


def _check_chip(path: Path, stored: MappingFile, arch: Arch) -> None:
    wanted = {
        "--xbar": (stored.xbar, (arch.xbar_rows, arch.xbar_cols)),
        "--cores": (stored.cores, arch.core_count),
        "--xbars-per-core": (stored.xbars_per_core, arch.xbars_per_core),
        "--bits": (stored.element_bits, arch.element_bits),
    }
    for option, (made_for, given) in wanted.items():
        if made_for != given:
            raise UserError(f"--mapping {path}: made for {option} {made_for}, compiled with {given}")
    mapping = stored.mapping
    used = [c for f in mapping.filters.values() for c in f.cores] + [c for f in mapping.lines.values() for c in f.cores]
    used += [core for loaders in mapping.loaders.values() for _, core in loaders]
    outside = [core for core in used if not 0 <= core < arch.core_count]
    if outside:
        raise UserError(f"--mapping {path}: core {outside[0]} of {arch.core_count}")


def _check_layers(path: Path, mapping: Mapping, graph: Graph) -> None:
    wanted = {filter_key(n) for n in graph.nodes if isinstance(n.operator, Filter)}
    given = {*mapping.filters, *mapping.lines}
    odd = sorted(wanted ^ given)
    if odd:
        fault = "is not of this model" if odd[0] in given else "is not mapped"
        raise UserError(f"--mapping {path}: layer {odd[0]} {fault}; {len(odd)} layers differ")
