"""A mapping as a file: `--emit-mapping` writes it, `--mapping FILE` replays it on the same model and chip.

A chip of the same sizes that differs in something else, such as the speed of its converters, may replay it too, with a
note: that is how one number is varied while the mapping stays.
"""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from raptor.common import storage
from raptor.common.errors import UserError
from raptor.common.spelling import name, option
from raptor.common.strict import Pair, Schema, faults
from raptor.graph.ir import Filter, Graph
from raptor.mapping.decision import Mapping, filter_key
from raptor.target.arch import Arch

LIMIT_BYTES = 2**30


class MappingFile(Schema):
    """The decision and what it was made for. Digests are SHA-256."""

    version: Literal[2] = 2
    model: str = Field(description="digest of operators and shapes; not of weights: a model trained again replays")
    target: str = Field(description="digest of architecture, network table and element width")
    xbar: Pair[int, int]
    cores: int
    xbars_per_core: int
    cell_bits: int
    element_bits: int
    mapping: Mapping


def model_digest(graph: Graph) -> str:
    """Names the operators, shapes and names of a graph, as the mapping sees it."""
    return hashlib.sha256(str(graph).encode()).hexdigest()


def target_digest(arch: Arch) -> str:
    """Names all that a mapping may depend on: the chip, its network, the width of elements; not how it is simulated."""
    digest = hashlib.sha256(arch.file.chip_config.model_dump_json().encode())
    digest.update(f" {arch.element_bits} ".encode())
    digest.update(arch.table.content if arch.table else b"mesh")
    return digest.hexdigest()


def write_mapping(path: Path, mapping: Mapping, graph: Graph, arch: Arch) -> None:
    """Writes the file. Raises `UserError` where it cannot be written."""
    content = MappingFile(
        model=model_digest(graph),
        target=target_digest(arch),
        xbar=(arch.xbar_rows, arch.xbar_cols),
        cores=arch.core_count,
        xbars_per_core=arch.xbars_per_core,
        cell_bits=arch.cell_bits,
        element_bits=arch.element_bits,
        mapping=mapping,
    )
    storage.write_for(option("emit_mapping"), path, content.model_dump_json(indent=1).encode() + b"\n")


def read_mapping(path: Path, graph: Graph, arch: Arch) -> tuple[Mapping, tuple[str, ...]]:
    """The mapping, and a note where it was made for another chip of the same sizes.

    Raises `UserError` when the file is not a mapping, or one for another model or for other sizes.
    """
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise UserError(f"{option('mapping', path)}: larger than {LIMIT_BYTES} bytes")
        stored = MappingFile.model_validate_json(path.read_bytes())
    except OSError as e:
        raise UserError(f"{option('mapping', path)}: {e.strerror or e}") from e
    except ValidationError as e:
        mistakes = "; ".join(faults(e, 3))
        raise UserError(f"{option('mapping', path)}: not a mapping that this version can read: {mistakes}") from e
    _check_chip(path, stored, arch)
    _check_layers(path, stored.mapping, graph)
    if stored.model != model_digest(graph):
        raise UserError(
            f"{option('mapping', path)}: made for another model (or other input shapes), of layers of the same names"
        )
    if stored.target != target_digest(arch):
        note = f"mapping {path}: made for a chip of the same sizes that differs in something else; replayed as it is"
        return stored.mapping, (note,)
    return stored.mapping, ()


def _check_chip(path: Path, stored: MappingFile, arch: Arch) -> None:
    wanted = {
        "xbar": (stored.xbar, (arch.xbar_rows, arch.xbar_cols)),
        "cores": (stored.cores, arch.core_count),
        "xbars_per_core": (stored.xbars_per_core, arch.xbars_per_core),
        "cell_bits": (stored.cell_bits, arch.cell_bits),
        "bits": (stored.element_bits, arch.element_bits),
    }
    for size, (made_for, given) in wanted.items():
        if made_for != given:
            file = option("mapping", path)
            raise UserError(f"{file}: made for {name(size)} {made_for}, compiled with {given}")
    mapping = stored.mapping
    used = [c for f in mapping.filters.values() for c in f.cores] + [c for f in mapping.lines.values() for c in f.cores]
    used += [core for loaders in mapping.loaders.values() for _, core in loaders]
    outside = [core for core in used if not 0 <= core < arch.core_count]
    if outside:
        raise UserError(f"{option('mapping', path)}: core {outside[0]} of {arch.core_count}")


def _check_layers(path: Path, mapping: Mapping, graph: Graph) -> None:
    wanted = {filter_key(n) for n in graph.nodes if isinstance(n.operator, Filter)}
    given = {*mapping.filters, *mapping.lines}
    odd = sorted(wanted ^ given)
    if odd:
        fault = "is not of this model" if odd[0] in given else "is not mapped"
        raise UserError(f"{option('mapping', path)}: layer {odd[0]} {fault}; {len(odd)} layers differ")
