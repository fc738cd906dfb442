"""Presets, and reading architecture files with the sizes that the command line overrides."""

import json
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from raptor.arch.chip import Arch
from raptor.arch.network import mesh_layout
from raptor.arch.schema import ARCH_LIMIT_BYTES, GLOBAL_MEMORY_ID, NETWORK_FILE, ArchFile, field_model
from raptor.errors import UserError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MOST_FAULTS = 50


def presets() -> tuple[str, ...]:
    """Names that `load` takes instead of a path."""
    folder = resources.files("raptor") / "presets"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def load(
    source: str | Path | None = None,
    *,
    xbar: tuple[int, int] | None = None,
    cores: int | None = None,
    xbars_per_core: int | None = None,
    cell_bits: int | None = None,
    element_bits: int = 8,
) -> Arch:
    """Reads an architecture file or preset and overrides its sizes.

    Without `source` the preset `bench`. With another core count the mesh is laid out anew, as square as possible;
    with smaller crossbars the numbers of DACs and ADCs are lowered to fit (the simulator computes nonsense otherwise).
    Raises `UserError` for a file that cannot be read or does not follow the schema, and for sizes that make no sense.
    """
    raw = _read(source or "bench")
    chip = _section(raw, "chip_config", source)
    core = _section(chip, "core_config", source)
    network = _section(chip, "network_config", source)
    if cores is not None:
        chip["core_cnt"] = cores
        network["layout"] = list(mesh_layout(cores))
    matrix = _section(core, "matrix_config", source)
    notes: list[str] = []
    if xbar is not None:
        matrix["xbar_size"] = list(xbar)
        notes += _fit_converters(matrix, xbar)
    if xbars_per_core is not None:
        matrix["xbar_array_count"] = xbars_per_core
    if cell_bits is not None:
        matrix["cell_precision"] = cell_bits
    enforced = "memory_size" in _section(core, "local_memory_config", source)
    # The table of the network is written anew, and so are its name and that of the global memory in it.
    network["net_config_file_path"] = NETWORK_FILE
    chip["global_memory_switch_id"] = core["global_memory_switch_id"] = GLOBAL_MEMORY_ID
    arch = Arch(_parse(raw, source), element_bits, enforced, tuple(notes))
    _check(arch)
    return arch


def _read(source: str | Path) -> dict[str, Any]:
    try:
        if str(source) in presets():
            content = (resources.files("raptor") / "presets" / f"{source}.json").read_text()
        else:
            content = _read_text(Path(source))
        raw = json.loads(content)
    except OSError as e:
        raise UserError(
            f"architecture {source}: {e.strerror or e}; give a file or one of: {', '.join(presets())}"
        ) from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"architecture {source}: not a JSON file: {e}") from e
    if not isinstance(raw, dict):
        raise UserError(f"architecture {source}: expected an object with chip_config")
    return raw  # pyright: ignore[reportUnknownVariableType] checked by the schema next


def _read_text(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        text = stream.read(ARCH_LIMIT_BYTES + 1)
    if len(text) > ARCH_LIMIT_BYTES:
        raise UserError(f"architecture {path}: more than the {ARCH_LIMIT_BYTES} bytes expected")
    return text


def _section(parent: dict[str, Any], name: str, source: str | Path | None) -> dict[str, Any]:
    """An object within the file; added where it is missing, so that sizes can be overridden."""
    section = parent.setdefault(name, {})
    if not isinstance(section, dict):
        raise UserError(f"architecture {source or 'bench'}: {name}: expected an object")
    return section  # pyright: ignore[reportUnknownVariableType] checked by the schema next


def _parse(raw: dict[str, Any], source: str | Path | None) -> ArchFile:
    try:
        return ArchFile.model_validate(raw)
    except ValidationError as e:
        faults = [f"  {'.'.join(map(str, f['loc']))}: {_explain(f)}" for f in e.errors()[:_MOST_FAULTS]]
        more = [f"  and {e.error_count() - _MOST_FAULTS} more"] if e.error_count() > _MOST_FAULTS else []
        raise UserError("\n".join([f"architecture {source or 'bench'}:", *faults, *more])) from e


def _explain(fault: "ErrorDetails") -> str:
    """What is wrong with a field; a name close to an unknown one is suggested."""
    if fault["type"] != "extra_forbidden":
        return f"{fault['msg']} (got {fault['input']!r:.60})"
    fields: type[BaseModel] | None = ArchFile
    for part in fault["loc"][:-1]:
        fields = field_model(fields, str(part)) if fields else None
    close = get_close_matches(str(fault["loc"][-1]), fields.model_fields if fields else (), 1)
    return f"no such field, pimsim-nn would ignore it{f'; did you mean {close[0]}?' if close else ''}"


def _fit_converters(matrix: dict[str, Any], xbar: tuple[int, int]) -> list[str]:
    notes: list[str] = []
    for key, limit in (("dac_count", xbar[0]), ("adc_count", xbar[1])):
        count = matrix.get(key)
        if isinstance(count, int) and count > limit:
            matrix[key] = limit
            notes.append(f"{key} lowered from {count} to {limit} to fit a crossbar of {xbar[0]}x{xbar[1]}")
    return notes


def _check(arch: Arch) -> None:
    if not 1 <= arch.element_bits <= 32:
        raise UserError(f"--bits {arch.element_bits}: expected 1 to 32")
    if arch.outputs_per_xbar < 1:
        cells = -(-arch.element_bits // arch.cell_bits)
        raise UserError(
            f"a weight of {arch.element_bits} bits takes {cells} cells of {arch.cell_bits} bits, but a crossbar has "
            f"only {arch.xbar_cols} columns; try --xbar {arch.xbar_rows}x{cells} or --cell-bits {arch.element_bits}"
        )
    rows, cols = arch.file.chip_config.network_config.layout
    if rows * cols < arch.core_count:
        raise UserError(f"network layout {rows}x{cols} has no room for {arch.core_count} cores")
