"""Loads presets and architecture files, and overrides their sizes by options.

A file and the network table that it names are used as they are, or refused with the reason. A table that equals the one
that RAPTOR writes for a mesh is replaced by that mesh, so that the number of cores can be changed.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.options import ChipKeywords, ChipOptions, read_options
from raptor.target.arch.chip_links import linked_mesh_layout, make_linked_table, parse_link
from raptor.target.arch.field_names import set_fields
from raptor.target.arch.flit_cost import write_mesh
from raptor.target.arch.flit_cost_table import TABLE_LIMIT_BYTES, parse_table
from raptor.target.arch.parse_file import FieldProblem, parse_arch
from raptor.target.arch.pimsim_file import ChipDescription, arch_presets, read_arch
from raptor.target.arch.pimsim_schema import NETWORK_FILE
from raptor.target.arch.target import Target, intern_target

_MOST_FAULTS = 50


def load(source: str | Path | None = None, *, network: bool = True, **sizes: Unpack[ChipKeywords]) -> Target:
    """Loads a chip from an architecture file or preset, with keywords of `raptor.compile`; see `load_chip`."""
    return load_chip(_chip_options(source, sizes), network=arguments.parse_flag("network", network))


def _chip_options(source: str | Path | None, sizes: ChipKeywords) -> ChipOptions:
    return read_options(ChipOptions, {"arch": source, **sizes}, ChipKeywords)


def load_chip(options: ChipOptions, *, network: bool = True) -> Target:
    """Reads an architecture file or preset, overrides its sizes, and makes the target, with elements of `bits` bits.

    With a chip file, the target has the places and the room that its defects leave. Raises `UserError` for a file that
    `describe_chip` refuses, and for sizes that contradict each other.
    """
    target = make_target(_describe_chip(options, network=network), options.bits)
    if options.chip is None:
        return target
    from raptor.target.avoid_defects import avoid_defects  # it imports this package
    from raptor.target.chip_file import load_chip_file

    return avoid_defects(target, load_chip_file(options.chip), spell_option("chip", options.chip))


def make_target(description: ChipDescription, element_bits: int = 8) -> Target:
    """Makes the target of a description. Raises `UserError` for sizes that contradict each other."""
    target = description.target(element_bits)
    _check(target, description)
    return intern_target(target)


def describe_chip(
    source: str | Path | None = None, *, network: bool = True, **sizes: Unpack[ChipKeywords]
) -> ChipDescription:
    """Returns the description of a chip, of which `load` makes a target."""
    return _describe_chip(_chip_options(source, sizes), network=arguments.parse_flag("network", network))


def _describe_chip(options: ChipOptions, *, network: bool) -> ChipDescription:
    """Reads an architecture file or preset and overrides its sizes.

    The network is the table that the file names, or else the built-in mesh. For another number of cores, the mesh is
    laid out again, as square as possible. With smaller crossbars, the numbers of DACs and ADCs are lowered to fit;
    otherwise the simulator would compute wrong times. With `chips`, `cores` is the number per chip, and `link` the cost
    of a flit from chip to chip (`raptor.target.arch.chip_links`). `fields` are other fields of the file by name
    (`raptor.target.arch.field_names`). If not `network`, no table is read, because only sizes are needed. Raises
    `UserError` for a file or network table that cannot be read or does not follow the schema, and for sizes that make
    no sense."""
    source = "bench" if options.arch is None else options.arch
    raw = read_arch(source)
    set_fields(raw, options.fields)
    chip = _section(raw, "chip_config", source)
    core = _section(chip, "core_config", source)
    links = _section(chip, "network_config", source)
    own = _own_table(raw, source) if network else None
    several = _several(raw, options.chips, options.link, source)
    if options.cores is not None or options.chips is not None:
        each = options.cores or _cores_each(raw, source)
        chip["core_cnt"] = each * (several or 1)
        if own is None:
            links["layout"] = list(linked_mesh_layout(each, several or 1))
    matrix = _section(core, "matrix_config", source)
    notes: list[str] = []
    if options.xbar is not None:
        matrix["xbar_size"] = list(options.xbar)
        notes += _fit_converters(matrix, options.xbar)
    if options.xbars_per_core is not None:
        matrix["xbar_array_count"] = options.xbars_per_core
    if options.cell_bits is not None:
        matrix["cell_precision"] = options.cell_bits
    _section(core, "local_memory_config", source)
    # An output directory holds its table under this name.
    links["net_config_file_path"] = NETWORK_FILE
    description = _parse(raw, source)
    file, memory_id, table = description.file, description.memory_ids[0], None
    if own is not None:
        table = parse_table(*own, file.chip_config.core_cnt, memory_id)
    elif file.chips is not None and network:
        table = make_linked_table(file.chip_config.core_cnt // file.chips.count, file.chips, memory_id)
    return replace(description, table=table, notes=tuple(notes))


def _several(raw: dict[str, Any], count: int | None, link: str | None, source: str | Path) -> int | None:
    """Sets the number of chips and their link in the object of a file. Returns the number of chips; None for one."""
    given = _section(raw, "chips", source) if raw.get("chips") is not None or (count or 1) > 1 else {}
    if count == 1:
        raw["chips"] = None
        given = {}
    elif count is not None:
        given["count"] = count
        if "link_ns" not in given and link is None:
            raise UserError(
                f"{spell_option('chips', count)}: say what a flit costs from chip to chip, with {spell_option('link')}"
            )
    if link is not None:
        if not given:
            raise UserError(f"{spell_option('link')}: only with {spell_option('chips')}, which are linked")
        found = parse_link(link)
        given |= {"link_ns": found.ns, "link_pj": found.pj}
    count = given.get("count")
    return count if isinstance(count, int) else None


def _cores_each(raw: dict[str, Any], source: str | Path) -> int:
    """Returns the cores per chip of the file, before the number of chips is changed."""
    return _parse(read_arch(source), source).target().cores_per_chip


def _own_table(raw: dict[str, Any], source: str | Path | None) -> tuple[Path, bytes] | None:
    """Returns path and content of the network table that a file names; None for no table or its mesh's table."""
    if source is None or str(source) in arch_presets():
        return None
    if raw["chip_config"]["network_config"].get("net_config_file_path") is None:
        return None
    description = _parse(raw, source)
    network = description.file.chip_config.network_config
    path = Path(source).parent / network.net_config_file_path
    if not path.is_file():
        raise UserError(
            f"architecture {source}: network_config.net_config_file_path: no file {path}; give the table (raptor arch "
            "new writes one), or leave the field out for the built-in mesh of network_config.layout"
        )
    mesh = write_mesh(description.file.chip_config.core_cnt, network.layout[1], description.memory_ids[0])
    try:
        if path.stat().st_size > TABLE_LIMIT_BYTES:
            raise UserError(f"network table {path}: more than {TABLE_LIMIT_BYTES} bytes")
        return None if _has_bytes(path, mesh) else (path, path.read_bytes())
    except OSError as e:
        raise UserError(f"network table {path}: {e.strerror or e}") from e


def _has_bytes(path: Path, chunks: Iterable[bytes]) -> bool:
    """True if a file has exactly this content."""
    with path.open("rb") as stream:
        return all(stream.read(len(chunk)) == chunk for chunk in chunks) and not stream.read(1)


def _section(parent: dict[str, Any], name: str, source: str | Path) -> dict[str, Any]:
    """Returns an object within the file, and adds it if it is missing, so that sizes can be overridden."""
    section = parent.setdefault(name, {})
    if not isinstance(section, dict):
        raise UserError(f"architecture {source}: {name}: expected an object")
    return section  # pyright: ignore[reportUnknownVariableType] checked by the schema next


def _parse(raw: dict[str, Any], source: str | Path) -> ChipDescription:
    """Checks a file by the schema. Raises `UserError` with up to `_MOST_FAULTS` mistakes."""
    description, problems = parse_arch(raw)
    if description is None:
        faults = [f"  {problem.name}: {_explain(problem)}" for problem in problems[:_MOST_FAULTS]]
        more = [f"  and {len(problems) - _MOST_FAULTS} more"] if len(problems) > _MOST_FAULTS else []
        raise UserError("\n".join([f"architecture {source}:", *faults, *more]))
    return description


def _explain(problem: FieldProblem) -> str:
    if problem.kind != "unknown":
        return f"{problem.message} (got {problem.found!r:.60})"
    meant = problem.meant
    return f"no such field, pimsim-nn would ignore it{f'; did you mean {meant}?' if meant else ''}"


def _fit_converters(matrix: dict[str, Any], xbar: tuple[int, int]) -> list[str]:
    """Limits the numbers of DACs and ADCs to the rows and columns of a crossbar. Returns a note for each change."""
    notes: list[str] = []
    for key, limit in (("dac_count", xbar[0]), ("adc_count", xbar[1])):
        count = matrix.get(key)
        if isinstance(count, int) and count > limit:
            matrix[key] = limit
            notes.append(f"{key} lowered from {count} to {limit} to fit a crossbar of {xbar[0]}x{xbar[1]}")
    return notes


def _check(target: Target, description: ChipDescription) -> None:
    """Raises `UserError` for sizes that contradict each other."""
    if target.outputs_per_xbar < 1:
        bits = target.widths.weights
        cells = -(-bits // target.cell_bits)
        raise UserError(
            f"a weight of {bits} bits takes {cells} cells of {target.cell_bits} bits, but a crossbar has "
            f"only {target.xbar_cols} columns; try {spell_option('xbar', (target.xbar_rows, cells))} or "
            f"{spell_option('cell_bits', bits)}"
        )
    chip_id, core_id = description.memory_ids
    if chip_id != core_id:
        raise UserError(
            f"global_memory_switch_id {chip_id} in chip_config, {core_id} in core_config; the simulator needs "
            "them equal"
        )
    if target.core_count % target.chips:
        raise UserError(f"chips.count {target.chips}: {target.core_count} cores cannot be shared evenly")
    if target.memory_id >= 0:
        raise UserError(f"global_memory_switch_id {target.memory_id}: expected a number below 0, cores have the others")
    rows, cols = target.network.rows, target.network.cols
    if rows * cols < target.core_count:
        raise UserError(f"network layout {rows}x{cols} has no room for {target.core_count} cores")
