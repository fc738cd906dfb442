"""Decisions as files: `mapping.json` of every output, which `--emit-mapping` writes too and `--mapping FILE` replays.

A chip of the same sizes that differs in something else, such as the speed of its converters, may replay the file too,
with a note. So an experiment can change one number of the chip and keep the mapping.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonPair, StrictSchema, format_errors
from raptor.common.option_spelling import spell_name
from raptor.graph.ir import Graph
from raptor.mapping.check_decision import layer_name_faults, record_faults
from raptor.mapping.decision import Decision
from raptor.target.arch import Target, hardware_json

MAPPING_VERSION = 5
LIMIT_BYTES = 2**30


class MappingFile(StrictSchema):
    """A decision, and the model and chip that it was made for. Digests are SHA-256."""

    version: Literal[5] = MAPPING_VERSION
    model: str = Field(description="digest of operators and shapes; not of weights: a model trained again replays")
    target: str = Field(description="digest of architecture, network table and element width")
    xbar: JsonPair[int, int] = Field(description="rows and columns of a crossbar")
    cores: int
    xbars_per_core: int
    cell_bits: int
    element_bits: int
    decision: Decision

    def to_json(self) -> bytes:
        """Returns the bytes of the file. Equal decisions give equal bytes."""
        return self.model_dump_json(indent=1).encode() + b"\n"


class _Versioned(BaseModel):
    """The field that every version of the file has."""

    model_config = ConfigDict(extra="ignore")

    version: Any = None


def model_digest(graph: Graph) -> str:
    """Returns a digest of the operators, shapes and tensors of a graph. The name of the graph does not count."""
    return hashlib.sha256(str(replace(graph, name="")).encode()).hexdigest()


def target_digest(arch: Target) -> str:
    """Returns a digest of chip, network and element width, on which a mapping depends; not of simulator settings."""
    digest = hashlib.sha256(hardware_json(arch).encode())
    digest.update(f" {arch.element_bits} ".encode())
    digest.update(arch.table.content if arch.table else b"mesh")
    return digest.hexdigest()


def make_mapping_file(decision: Decision, graph: Graph, arch: Target) -> MappingFile:
    """Makes the content of a mapping file. `graph`: the prepared graph for which the decision was made."""
    return MappingFile(
        model=model_digest(graph),
        target=target_digest(arch),
        xbar=(arch.xbar_rows, arch.xbar_cols),
        cores=arch.core_count,
        xbars_per_core=arch.xbars_per_core,
        cell_bits=arch.cell_bits,
        element_bits=arch.element_bits,
        decision=decision,
    )


def read_mapping(path: Path, label: str, graph: Graph, arch: Target) -> tuple[Decision, tuple[str, ...]]:
    """Reads a mapping file. Returns its decision, and a note if it was made for another chip of the same sizes.

    `label` names the file in messages. Raises `UserError` if the file is not a mapping, or was made for another model
    or for other sizes, or if this chip cannot run this model in that way.
    """
    stored = _read(path, label)
    fault = next(_faults(stored, graph, arch), None)
    if fault is not None:
        raise UserError(f"{label}: {fault}")
    if stored.target != target_digest(arch):
        note = f"mapping {path}: made for a chip of the same sizes that differs in something else; replayed as it is"
        return stored.decision, (note,)
    return stored.decision, ()


def _read(path: Path, label: str) -> MappingFile:
    """Reads a file of this version without judging the decision. Raises `UserError` for any other file."""
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise UserError(f"{label}: larger than {LIMIT_BYTES} bytes")
        content = path.read_bytes()
        version = _Versioned.model_validate_json(content).version
        if isinstance(version, int) and version < MAPPING_VERSION:
            raise UserError(
                f"{label}: of an earlier version (format {version}, not {MAPPING_VERSION}): make it anew with "
                "raptor compile MODEL --emit-mapping FILE and the options that it was made with"
            )
        return MappingFile.model_validate_json(content)
    except OSError as e:
        raise UserError(f"{label}: {e.strerror or e}") from e
    except ValidationError as e:
        mistakes = "; ".join(format_errors(e, 3))
        raise UserError(f"{label}: not a mapping that this version can read: {mistakes}") from e


def _faults(stored: MappingFile, graph: Graph, arch: Target) -> Iterator[str]:
    """Yields the reasons why a stored decision cannot be replayed; the first one is to be reported."""
    yield from _other_sizes(stored, arch)
    yield from layer_name_faults(stored.decision, graph)
    if stored.model != model_digest(graph):
        yield "made for another model (or other input shapes), of layers of the same names"
    yield from record_faults(stored.decision, graph, arch)


def _other_sizes(stored: MappingFile, arch: Target) -> Iterator[str]:
    """Yields a sentence for each size of the chip that differs from the size that the decision was made for."""
    wanted = {
        "xbar": (stored.xbar, (arch.xbar_rows, arch.xbar_cols)),
        "cores": (stored.cores, arch.core_count),
        "xbars_per_core": (stored.xbars_per_core, arch.xbars_per_core),
        "cell_bits": (stored.cell_bits, arch.cell_bits),
        "bits": (stored.element_bits, arch.element_bits),
    }
    for size, (made_for, given) in wanted.items():
        if made_for != given:
            yield f"made for {spell_name(size)} {made_for}, compiled with {given}"
