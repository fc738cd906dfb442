"""Files made to harm their reader: nested, endless, lying, packed, linked. No file outside may be read or written."""

import gzip
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import programs
from tests.fuzz.bases import bases
from tests.fuzz.campaign import BrokenError, Part
from tests.fuzz.isolation import GIB, raptor
from tests.fuzz.mutations import seal

SECONDS, MEMORY_BYTES = 60, 2 * GIB
SECRET = "not for others"
Trap = Callable[[Path, Random], str]


class _Payload:
    """Object that makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def _any_file(out: Path, rng: Random, pattern: str = "*") -> Path:
    kinds: dict[str, list[Path]] = {}
    for path in sorted(p for p in out.rglob(pattern) if p.is_file()):
        kinds.setdefault(path.name.split("_")[0] + path.suffix, []).append(path)
    return rng.choice(kinds[rng.choice(sorted(kinds))])


# JSON


def nested(out: Path, rng: Random) -> str:
    """Puts deeply nested JSON into a file."""
    path = _any_file(out, rng, "*.json")
    depth, (left, right) = rng.choice((500, 10**5, 10**7)), rng.choice((("[", "]"), ('{"a":', "}"), ('{"op":', "}")))
    inner = left * depth + "0" + (right * depth if rng.random() < 0.7 else "")
    if rng.random() < 0.5:
        path.write_text(inner)
    else:
        _insert(path, inner, rng)
    return f"{path.name} nested {depth} deep"


def endless(out: Path, rng: Random) -> str:
    """Puts a very long value into a JSON file."""
    path = _any_file(out, rng, "*.json")
    form = rng.choice(("digits", "spaces", "string", "zeros", "keys", "escapes", "strings", "objects"))
    size = rng.choice((10**5, 3 * 10**7))
    text = {
        "digits": "9" * size,
        "spaces": " " * size,
        "string": '"' + "a" * size + '"',
        "zeros": "[" + "0," * (size // 2) + "0]",
        "keys": "{" + ",".join(f'"{k}":0' for k in range(size // 12)) + "}",
        "escapes": '"' + "\\u0000" * (size // 6) + '"',
        "strings": "[" + '"",' * (size // 3) + "0]",
        "objects": "[" + "{}," * (size // 3) + "0]",
    }[form]
    if rng.random() < 0.5:
        path.write_text(text)
    else:
        _insert(path, text, rng)
    return f"{path.name}: {size} bytes of {form}"


def _insert(path: Path, text: str, rng: Random) -> None:
    """Inserts a text before some value of a JSON file."""
    content = path.read_text()
    places = [k for k, c in enumerate(content) if c in ":[," and content[k + 1 : k + 2] not in "]}"]
    at = rng.choice(places) + 1 if places else 0
    path.write_text(f"{content[:at]}{text},{content[at:]}")


def odd_text(out: Path, rng: Random) -> str:
    """Puts bytes into a JSON file that are not JSON, or not UTF-8."""
    path = _any_file(out, rng, "*.json")
    odd = (b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"NaN", b"[NaN]", b"-Infinity", b'"\\ud800"', b"\x80", b"{]", b"1e999")
    form = rng.choice(odd)
    path.write_bytes(form + path.read_bytes() if rng.random() < 0.5 else form)
    return f"{path.name} with {form!r}"


# Streams


def lying_count(out: Path, rng: Random) -> str:
    """Writes a wrong number of instructions into a .pim stream."""
    for path in out.glob("core_*.json"):
        path.unlink()
    paths = sorted(out.glob("core_*.pim"))
    if not paths:
        for core in range(16):
            (out / f"core_{core}.pim").write_bytes(b"PIMB\1\0\0\0" + (2**32 - 1).to_bytes(4, "little"))
        return "no instructions, said to be 2^32 - 1"
    path = rng.choice(paths)
    content = bytearray(path.read_bytes())
    count = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, (len(content) - 12) // 20 + 1))
    content[8:12] = count.to_bytes(4, "little")
    path.write_bytes(content)
    return f"{path.name} says {count} instructions"


# Weights


def _npy(header: bytes, data: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data


def packed(out: Path, rng: Random) -> str:
    """Replaces weights by pickles, broken archives, or small files that are large when unpacked."""
    form = rng.choice(("pickle", "bomb", "huge shape", "long header", "many members", "encrypted", "evil header"))
    plain = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }\n"
    member = {
        "pickle": _npy(plain.replace(b"<f4", b"|O") % b"1,", pickle.dumps(_Payload(out.parent / "unpickled"))),
        "bomb": _npy(plain % b"3, 3", bytes(4 * 10**8)),
        "huge shape": _npy(plain % b"1099511627776, 3", b""),
        "long header": b"\x93NUMPY\2\0" + (2**32 - 1).to_bytes(4, "little") + b" " * 100,
        "evil header": _npy(b"__import__('os').mkdir('unpickled')", b""),
    }.get(form, _npy(plain % b"1, 1", bytes(4)))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for group in range(50_000 if form == "many members" else 5):
            archive.writestr(f"{group}.npy", member)
    content = bytearray(buffer.getvalue())
    if form == "encrypted":
        at = content.find(b"PK\1\2")
        content[6] |= 1
        content[at + 8] |= 1
    _put_weights(out, bytes(content))
    return f"weights: {form}"


def _put_weights(out: Path, content: bytes) -> None:
    """Writes the weights of core 0, and lists them in the manifest."""
    (out / "weights/core_0_weights.json").unlink(missing_ok=True)
    (out / "weights/core_0_weights.npz").write_bytes(content)
    _list(out, "weights/core_0_weights.npz")


def constants(out: Path, rng: Random) -> str:
    """Replaces the constants by a pickle with an odd header."""
    header = rng.choice((b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"{}", b"(" * 3000))
    payload = pickle.dumps(_Payload(out.parent / "unpickled"))
    (out / "weights/constants.npy").write_bytes(_npy(header, payload))
    return f"constants with header {header[:20]!r}"


def _list(out: Path, *names: str) -> None:
    """Adds files to the manifest."""
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"] |= {name: {"size_bytes": 0, "sha256": "0" * 64} for name in names}
    (out / "manifest.json").write_text(json.dumps(manifest))


# Names and links


def outside(out: Path, rng: Random) -> str:
    """Names a path outside of the directory, in the manifest or as network table."""
    absolute = str(out.parent / "secret")
    name = rng.choice(("../secret", absolute, "/dev/zero", "weights/../../secret", "/proc/self/mem", "."))
    form = rng.choice(("manifest", "network", "network"))
    if form == "manifest":
        _list(out, name)
    else:
        arch = json.loads((out / "arch.json").read_text())
        arch["chip_config"]["network_config"]["net_config_file_path"] = name
        (out / "arch.json").write_text(json.dumps(arch))
    return f"{form} names {name}"


def special(out: Path, rng: Random) -> str:
    """Replaces a file by a link, a pipe, a device or a directory."""
    path = _any_file(out, rng)
    form = rng.choice(("link", "loop", "pipe", "zero", "directory", "dangling"))
    path.unlink()
    if form == "pipe":
        os.mkfifo(path)
    elif form == "directory":
        path.mkdir()
    else:
        targets = {"link": out.parent / "secret", "loop": path, "zero": Path("/dev/zero"), "dangling": Path("/none")}
        path.symlink_to(targets[form])
    return f"{path.name} is a {form}"


def linked_folder(out: Path, rng: Random) -> str:
    """Replaces the folder of the weights by a link."""
    shutil.move(out / "weights", out.parent / "elsewhere")
    (out / "weights").symlink_to(out.parent / "elsewhere")
    return "weights is a link"


# Programs in one file, and inputs


def single_file(out: Path, rng: Random) -> str:
    """Replaces the directory `out` by a single-file program, which `check` and `simulate` take too."""
    program = {"config": {"core_cnt": 1, "array_group_map": {"core0": []}}, "core0": []}
    text = json.dumps(program).encode()
    forms = {
        "bomb": gzip.compress(bytes(2 * 10**9), 1),
        "bomb of gzips": gzip.compress(gzip.compress(bytes(10**9), 1)),
        "cut": gzip.compress(text)[:-5],
        "nested": text.replace(b"[]}", b"[" * 10**6),
        "cores": text.replace(b": 1,", b": 1048576,"),
        "more cores": text.replace(b": 1,", b": 1099511627776,"),
        "spaces": text + b" " * 10**7,
    }
    form = rng.choice(sorted(forms))
    arch = (out / "arch.json").read_bytes()
    shutil.rmtree(out)
    out.write_bytes(forms[form])
    (out.parent / "arch.json").write_bytes(arch)
    return f"one file: {form}"


TRAPS: tuple[Trap, ...] = (
    nested, nested, endless, endless, odd_text, lying_count, packed, packed, constants, outside, outside, special,
    special, linked_folder, single_file,
)  # fmt: skip


def case(rng: Random, folder: Path) -> str:
    """Sets one of `TRAPS` and runs every command that reads an output."""
    out = folder / "out"
    good = rng.choice(bases())
    shutil.copytree(good, out)
    (folder / "secret").write_text(SECRET)
    trap = rng.choice(TRAPS)
    done = f"{trap.__name__}: {trap(out, rng)}"
    if out.is_dir() and rng.random() < 0.7:
        seal(out)
    statuses = [_status(done, *command) for command in (("validate", out, "--quiet"), *programs.readers(out, folder))]
    if any(SECRET in path.read_text() for path in (*folder.glob("*.html"), folder / "trace.json") if path.exists()):
        raise BrokenError(f"{done}: what was written tells the secret")
    if (folder / "unpickled").exists() or (folder / "secret").read_text() != SECRET:
        raise BrokenError(f"{done}: something outside was touched")
    if statuses[0] == 0:
        return f"passes: {programs.why(good, out, done)}"
    return f"validate {statuses[0]}, check {statuses[1]}, simulate {statuses[2]}"


def _status(done: str, *command: str | Path) -> int | None:
    outcome = raptor(*command, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
    if fault := outcome.fault():
        raise BrokenError(f"{done}: {command[0]}: {fault}")
    if SECRET in outcome.out + outcome.err:
        raise BrokenError(f"{done}: {command[0]} tells the secret: {outcome.err}")
    return outcome.status


FILES = Part("files", "hostile files", short=20, long=500, case=case, prepare=programs.prepare)
