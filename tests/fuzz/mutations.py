"""Mutations that spoil an output directory. Each takes the directory and a random generator; returns what it did."""

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from raptor.target import encoding, isa
from raptor.target.isa import BY_OPCODE, Records

Mutation = Callable[[Path, Random], str]
ODD_VALUES = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63, 2**64, 10**30, 1.5, 1e308)
ODD_TYPES = (None, True, "", "x", "../x", [], {}, [[]], [0], {"0": 0})


class MisfitError(Exception):
    """Raised if the directory has nothing that the mutation could spoil; it is unchanged."""


def seal(out: Path) -> None:
    """Writes sizes and hashes of the present files into the manifest, so that it does not reveal a change."""
    path = out / "manifest.json"
    if not path.is_file():  # but a link to /dev/zero, say
        return
    try:
        manifest = json.loads(path.read_bytes())
        contents = {name: (out / name).read_bytes() for name in manifest["files"] if (out / name).is_file()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    manifest["files"] = {
        name: {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    path.write_text(json.dumps(manifest))


# Any file


def _files(out: Path) -> list[Path]:
    return sorted(p for p in out.rglob("*") if p.is_file())


def _pick(out: Path, rng: Random) -> tuple[Path, str, bytearray]:
    """Picks a file: each kind with the same probability. Returns path, name and content."""
    kinds: dict[str, list[Path]] = {}
    for path in _files(out):
        kinds.setdefault(path.name.rstrip("0123456789").split("_")[0] + path.suffix, []).append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    return path, str(path.relative_to(out)), bytearray(path.read_bytes())


def flip_bits(out: Path, rng: Random) -> str:
    """Flips bits of a file."""
    path, name, content = _pick(out, rng)
    count = rng.choice((1, 1, 1, 3, 20))
    for _ in range(count):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{count} bits of {name}"


def truncate(out: Path, rng: Random) -> str:
    """Cuts off the end of a file."""
    path, name, content = _pick(out, rng)
    size = rng.choice((0, 1, len(content) // 2, len(content) - 1, rng.randrange(len(content))))
    path.write_bytes(content[:size])
    return f"{name} cut to {size} bytes"


def extend(out: Path, rng: Random) -> str:
    """Appends bytes to a file."""
    path, name, content = _pick(out, rng)
    more = rng.choice((b"\0", b" \n", b"]", content[-20:], bytes(content), rng.randbytes(50)))
    path.write_bytes(content + more)
    return f"{name} with {len(more)} bytes more"


def splice(out: Path, rng: Random) -> str:
    """Copies a piece of a file to another place in it."""
    path, name, content = _pick(out, rng)
    at, to, size = (rng.randrange(len(content)) for _ in range(3))
    piece = content[at : at + min(size, 200)]
    path.write_bytes(content[:to] + piece + content[to + (len(piece) if rng.random() < 0.5 else 0) :])
    return f"{len(piece)} bytes of {name} from {at} to {to}"


def swap_files(out: Path, rng: Random) -> str:
    """Swaps two files of one kind, or copies one over the other."""
    path, name, content = _pick(out, rng)
    same = [p for p in _files(out) if p != path and p.suffix == path.suffix and p.parent == path.parent]
    if not same:
        raise MisfitError
    other = rng.choice(same)
    path.write_bytes(other.read_bytes())
    if rng.random() < 0.8:
        other.write_bytes(content)
    return f"{name} and {other.relative_to(out)} swapped"


def remove_file(out: Path, rng: Random) -> str:
    """Removes a file."""
    path, name, _ = _pick(out, rng)
    path.unlink()
    return f"{name} removed"


# Values of JSON files


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every container of a JSON value with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _odd(old: Any, rng: Random) -> Any:
    if isinstance(old, int) and rng.random() < 0.6:
        return rng.choice((old + 1, old - 1, -old, old * 2, old + 2**32, float(old), str(old)))
    return rng.choice(ODD_VALUES if rng.random() < 0.7 else ODD_TYPES)


def change_json(out: Path, rng: Random) -> str:
    """Changes one value of a JSON file that is not a stream."""
    names = sorted(p.name for p in out.glob("*.json") if not p.name.startswith("core_"))
    path = out / rng.choice([*names, "memory.json", "layers.json", "config.json"])
    return f"{path.name}: {change_value(path, rng)}"


def change_value(path: Path, rng: Random) -> str:
    """Changes one value of a JSON file: odd, removed, repeated, or moved to another place."""
    root = json.loads(path.read_bytes())
    container, key = rng.choice(list(_places(root)))
    form = rng.choice(("odd", "odd", "odd", "gone", "twice", "swapped", "unknown"))
    before = container[key]
    if form == "gone":
        del container[key]
    elif form == "swapped":
        other, at = rng.choice(list(_places(root)))
        container[key], other[at] = other[at], before
    elif form == "unknown" and isinstance(container, dict):
        container["unknown"] = 1
    elif form == "twice" and isinstance(container, list):
        container.insert(key, before)
    else:
        container[key] = _odd(before, rng)
    try:
        path.write_text(json.dumps(root))
    except (ValueError, RecursionError):  # a value swapped into itself
        raise MisfitError from None
    return f"{key} ({str(before)[:40]}) {form}"


def change_memory(out: Path, rng: Random) -> str:
    """Changes a tensor or tile of the memory map: removed, repeated, at another address or under another name."""
    path = out / "memory.json"
    memory = json.loads(path.read_bytes())
    tensors: list[dict[str, Any]] = memory[rng.choice(("inputs", "outputs"))]
    tensor = rng.choice(tensors)
    tiles, tile = tensor["tiles"], rng.choice(tensor["tiles"])
    other = rng.choice(rng.choice(memory["inputs"] + memory["outputs"])["tiles"])
    form = rng.choice(("tensor gone", "tensor twice", "tile gone", "addresses swapped", "address", "moved", "names"))
    if form == "tensor gone":
        tensors.remove(tensor)
    elif form == "tensor twice":
        tensors.append(tensor | {"name": f"{tensor['name']}2"})
    elif form == "tile gone":
        tiles.remove(tile)
    elif form == "addresses swapped":
        tile["address"], other["address"] = other["address"], tile["address"]
    elif form == "address":
        tile["address"] = other["address"]
    elif form == "moved":
        tile["address"] += rng.choice((-1, 1)) * memory["element_bytes"]
    else:
        last = memory["outputs"][-1]
        tensor["name"], last["name"] = last["name"], tensor["name"]
    path.write_text(json.dumps(memory))
    return f"{tensor['name']}: {form}"


# Streams


def _cores(out: Path) -> list[int]:
    return sorted({int(p.stem.removeprefix("core_")) for p in out.glob("core_*")})


def _read(out: Path, core: int) -> Records:
    binary = out / f"core_{core}.pim"
    if binary.exists():
        return encoding.decode_pim(binary.read_bytes())
    return encoding.decode_json((out / f"core_{core}.json").read_bytes()).copy()


def _write(out: Path, core: int, records: Records) -> None:
    """Writes the stream of a core, as JSON and as .pim if both are there."""
    for suffix, form in (("json", encoding.encode_json), ("pim", encoding.encode_pim)):
        path = out / f"core_{core}.{suffix}"
        if path.exists():
            path.write_bytes(form(records))


def _busy(out: Path, rng: Random) -> tuple[int, Records]:
    busy = [core for core in _cores(out) if len(_read(out, core)) > 3]
    if not busy:
        raise MisfitError
    core = rng.choice(busy)
    return core, _read(out, core)


def change_field(out: Path, rng: Random) -> str:
    """Changes one operand of an instruction."""
    core, records = _busy(out, rng)
    kinds = sorted(set(records["opcode"].tolist()))
    pc = int(rng.choice(np.flatnonzero(records["opcode"] == rng.choice(kinds)).tolist()))
    slot = rng.choice([o.slot for o in BY_OPCODE[int(records["opcode"][pc])].operands])
    old = int(records[slot][pc])
    value = rng.choice((old + 1, old - 1, old ^ (1 << rng.randrange(8)), 2 * old, rng.choice(ODD_VALUES[:10])))
    value %= 256 if slot in ("rd", "rs1") else 2**32
    records[slot][pc] = value if value < 2**31 else value - 2**32
    _write(out, core, records)
    return f"core {core}, {pc}: {slot} from {old} to {value}: {isa.format_record(records[pc])}"


def change_opcode(out: Path, rng: Random) -> str:
    """Changes the opcode of an instruction."""
    core, records = _busy(out, rng)
    pc = rng.randrange(len(records))
    old = isa.format_record(records[pc])
    records["opcode"][pc] = rng.choice(sorted(BY_OPCODE))
    if "sadd" <= BY_OPCODE[int(records["opcode"][pc])].name <= "ssub":
        records["a"][pc] = 0
    _write(out, core, records)
    return f"core {core}, {pc}: {old} became {isa.format_record(records[pc])}"


def drop_instruction(out: Path, rng: Random) -> str:
    """Removes an instruction."""
    core, records = _busy(out, rng)
    pc = rng.randrange(len(records))
    _write(out, core, np.delete(records, pc))
    return f"core {core}, {pc} dropped: {isa.format_record(records[pc])}"


def repeat_instruction(out: Path, rng: Random) -> str:
    """Repeats an instruction, there or at another place."""
    core, records = _busy(out, rng)
    pc, to = rng.randrange(len(records)), rng.randrange(len(records))
    to = pc if rng.random() < 0.5 else to
    _write(out, core, np.insert(records, to, records[pc]))
    return f"core {core}, {pc} again before {to}: {isa.format_record(records[pc])}"


def swap_instructions(out: Path, rng: Random) -> str:
    """Swaps two instructions of a core."""
    core, records = _busy(out, rng)
    pc = rng.randrange(len(records) - 1)
    other = pc + 1 if rng.random() < 0.5 else rng.randrange(len(records))
    records[[pc, other]] = records[[other, pc]]
    _write(out, core, records)
    return (
        f"core {core}, {pc} and {other} swapped: {isa.format_record(records[other])}, {isa.format_record(records[pc])}"
    )


def _messages(out: Path) -> list[tuple[int, int, int, int]]:
    """Returns (sender, its pc, receiver, its pc) of every message, in order for each pair of cores."""
    found: list[tuple[int, int, int, int]] = []
    all_records = {core: _read(out, core) for core in _cores(out)}
    sends, receives = isa.OPCODE["send"], isa.OPCODE["recv"]
    for core, records in all_records.items():
        for partner in sorted(set(records["a"][records["opcode"] == sends].tolist()) & set(all_records)):
            there = all_records[partner]
            sent = np.flatnonzero((records["opcode"] == sends) & (records["a"] == partner))
            received = np.flatnonzero((there["opcode"] == receives) & (there["a"] == core))
            found += [(core, int(s), partner, int(r)) for s, r in zip(sent, received, strict=False)]
    return found


def change_message(out: Path, rng: Random) -> str:
    """Removes or repeats both ends of one message, so that no deadlock reveals it."""
    messages = _messages(out)
    if not messages:
        raise MisfitError
    sender, sent, receiver, received = rng.choice(messages)
    gone = rng.random() < 0.5
    for core, pc in ((sender, sent), (receiver, received)):
        records = _read(out, core)
        _write(out, core, np.delete(records, pc) if gone else np.insert(records, pc, records[pc]))
    return f"message of core {sender}, {sent} to core {receiver}, {received} {'gone' if gone else 'twice'}"


def swap_streams(out: Path, rng: Random) -> str:
    """Swaps the streams of two cores."""
    first, second = rng.sample(_cores(out), 2)
    one, two = _read(out, first), _read(out, second)
    _write(out, first, two)
    _write(out, second, one)
    return f"streams of cores {first} and {second} swapped"


# Weights


def _matrices(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    if path.suffix == ".json":
        return {k: np.array(m, np.float32) for k, m in json.loads(path.read_bytes()).items()}
    with np.load(path) as archive:
        return {k: archive[k] for k in archive.files}


def _spoil(matrix: np.ndarray[Any, np.dtype[np.float32]], rng: Random) -> np.ndarray[Any, np.dtype[np.float32]]:
    form = rng.choice(("bit", "bit", "rows", "columns", "transposed", "scaled", "zero"))
    spoilt = matrix.copy()
    if form == "bit":
        at = rng.randrange(matrix.size)
        spoilt.ravel().view(np.uint32)[at] ^= np.uint32(1 << rng.randrange(32))
    elif form in ("rows", "columns"):
        return np.ascontiguousarray(np.roll(spoilt, 1, axis=0 if form == "rows" else 1))
    elif form == "transposed":
        return np.ascontiguousarray(matrix.T)
    else:
        spoilt[rng.randrange(len(spoilt))] *= 0 if form == "zero" else 1.01
    return spoilt


def change_weights(out: Path, rng: Random) -> str:
    """Swaps two matrices of a core, or spoils one."""
    paths = sorted((out / "weights").glob("core_*"))
    if not paths:
        raise MisfitError
    path = rng.choice(paths)
    matrices = _matrices(path)
    group = rng.choice(sorted(matrices))
    other = rng.choice(sorted(matrices))
    if group != other and rng.random() < 0.5:
        matrices[group], matrices[other] = matrices[other], matrices[group]
        what = f"groups {group} and {other} swapped"
    else:
        matrices[group] = _spoil(matrices[group], rng)
        what = f"group {group} spoilt"
    if path.suffix == ".json":
        path.write_text(json.dumps({k: m.tolist() for k, m in matrices.items()}))
    else:
        buffer = io.BytesIO()
        np.savez(buffer, **matrices)
        path.write_bytes(buffer.getvalue())
    return f"{path.name}: {what}"


def change_archive(out: Path, rng: Random) -> str:
    """Changes a member of an .npz: packed, renamed, repeated or with another header."""
    paths = sorted((out / "weights").glob("*.npz"))
    if not paths:
        raise MisfitError
    path = rng.choice(paths)
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    k = rng.randrange(len(members))
    name, content = members[k]
    form = rng.choice(("renamed", "again", "header", "packed", "outside"))
    if form == "header":
        content = content.replace(b"<f4", rng.choice((b"<f8", b"|O8", b">f4", b"<i4")))
    renamed = {"renamed": "99.npy", "outside": "../../0.npy"}.get(form, name)
    members[k : k + 1] = [(renamed, content)] * (2 if form == "again" else 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if form == "packed" else zipfile.ZIP_STORED) as archive:
        for member, data in members:
            with warnings.catch_warnings(action="ignore"), archive.open(zipfile.ZipInfo(member), "w") as stream:
                stream.write(data)  # also a second member of a name
    return f"{path.name}: {name} {form}"


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, truncate, extend, splice, swap_files, remove_file, change_json, change_json, change_json,
    change_memory, change_memory, change_field, change_field, change_field, change_field, change_opcode,
    drop_instruction, repeat_instruction, swap_instructions, change_message, swap_streams, change_weights,
    change_weights, change_archive,
)  # fmt: skip
"""All mutations; one that occurs more often is drawn more often."""
