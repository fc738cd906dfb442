"""Parts of published chips by the name of their table, scaled to the node of the chip that takes them."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

from raptor.common.errors import UserError
from raptor.target.components.node_scaling import area_factor, energy_factor

TABLES = ("isaac", "puma")
_ANALOG = ("crossbar", "adc", "dac", "sample_hold", "link")
_SIZES = ("bits", "bytes", "width", "flit_bytes")
"""Values for which the others of a part hold."""
_AREAS = ("um2", "low_um2", "high_um2")
_ENERGIES = ("pj", "read_pj", "write_pj", "lane_pj", "wire_pj", "static_mw")


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """Returns a shipped table: `node_nm`, and for each part its values, as in a component file."""
    return tomllib.loads((resources.files("raptor.target.components") / "tables" / f"{name}.toml").read_text())


def list_rows(name: str) -> dict[str, dict[str, Any]]:
    """Returns the parts of a shipped table by name."""
    return {part: row for part, row in read_table(name).items() if isinstance(row, dict)}


def fill_from_tables(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of a component file in which each part with a `table` has the values of that table.

    What the file gives itself stays. Digital parts are scaled to the node of the file; analog ones keep their values,
    which are then ASSUMED, as those of a crossbar with another number of cells are. Raises `UserError` for a part that
    the table does not have, or of another size.
    """
    return {name: _fill_part(name, part, raw.get("node_nm")) for name, part in raw.items()}


def _fill_part(name: str, part: Any, node_nm: Any) -> Any:
    if not isinstance(part, dict) or "table" not in part:
        return part  # pyright: ignore[reportUnknownVariableType]
    given = cast(dict[str, Any], part)
    table = given["table"]
    if table not in TABLES:
        raise UserError(f"components: {name}.table: expected one of: {', '.join(TABLES)}")
    rows = list_rows(table)
    if name not in rows:
        raise UserError(f"components: {name}: the table {table} has no such part; it has: {', '.join(rows)}")
    row = rows[name]
    for size in _SIZES:
        if size in row and given.get(size, row[size]) != row[size]:
            raise UserError(
                f"components: {name}.{size}: the table {table} is for {row[size]}, not for {given[size]}; "
                "leave table out, and give the values of the part"
            )
    if name == "crossbar":
        row = _scale_cells(row, given)
    table_nm = read_table(table)["node_nm"]
    if isinstance(node_nm, int | float) and node_nm != table_nm:
        row = _scale_part(name, row, table_nm, node_nm)
    return row | given


def _scale_cells(row: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with area and energy in proportion to the cells of the crossbar that the file gives."""
    rows, cols = given.get("rows", row["rows"]), given.get("cols", row["cols"])
    if not (isinstance(rows, int) and isinstance(cols, int)) or (rows, cols) == (row["rows"], row["cols"]):
        return row
    factor = rows * cols / (row["rows"] * row["cols"])
    scaled = {key: value * factor if key in (*_AREAS, *_ENERGIES) else value for key, value in row.items()}
    cite = f"{row['cite']}; in proportion to the cells of {row['rows']}x{row['cols']}"
    return scaled | {"kind": "ASSUMED", "cite": cite}


def _scale_part(name: str, row: dict[str, Any], from_nm: float, to_nm: float) -> dict[str, Any]:
    if name in _ANALOG:
        return row | {"kind": "ASSUMED", "cite": f"{row['cite']}; at {from_nm:g} nm, not scaled"}
    try:
        area, energy = area_factor(from_nm, to_nm), energy_factor(from_nm, to_nm)
    except ValueError as e:
        raise UserError(f"components: {name}: {e}; leave table out, and give the values of the part") from e
    factors = dict.fromkeys(_AREAS, area) | dict.fromkeys(_ENERGIES, energy)
    scaled = {key: value * factors[key] if key in factors else value for key, value in row.items()}
    cite = f"{row['cite']}; scaled from {from_nm:g} nm (Stillmaker and Baas 2017)"
    return scaled | {"kind": "MODELLED", "cite": cite}
