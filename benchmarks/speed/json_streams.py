"""Read and write the JSON of instruction streams in several ways and print one table: `make bench-json`.

Times are of all streams of a program, CPU seconds, the least of some runs. `ratio`: to the way that RAPTOR takes. The
programs are compiled first; the ways must agree on every record.
"""

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

import models
import raptor
from raptor.codegen.pimsim.stream_files import pimsim_files
from raptor.output.writer import ProgramArtifacts
from raptor.target import encoding
from raptor.target.isa import BY_NAME, BY_OPCODE, RECORD, Records

_MB = 1e6
JsonMethod = tuple[str, Callable[[Any], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet18", "vgg16"])
    parser.add_argument("--repeat", type=int, default=3, help="runs; the least time counts")
    args = parser.parse_args()
    table = Table(box=box.MARKDOWN, title="JSON of all streams, CPU seconds")
    for name in ("model", "MB", "instructions", "way", "s", "ratio", "peak MB of the largest stream"):
        table.add_column(name, justify="left" if name in ("model", "way") else "right")
    for name in args.models:
        for row in _rows(name, args.repeat):
            table.add_row(*row)
    Console(width=140).print(table)


def _rows(name: str, repeat: int) -> list[tuple[str, ...]]:
    records = _streams(name)
    texts = [encoding.encode_json(r) for r in records]
    facts = f"{sum(map(len, texts)) / _MB:.0f}", f"{sum(map(len, records)):,}"
    reading: list[JsonMethod] = [
        ("read: types and msgspec", encoding.decode_json),
        ("read: orjson, then a loop", read_by_loop),
    ]
    writing: list[JsonMethod] = [
        ("write: templates and numba", encoding.encode_json),
        ("write: a loop, then orjson", lambda r: orjson.dumps(records_to_objects(r))),
        ("write: a loop, then msgspec", lambda r: msgspec.json.encode(records_to_objects(r))),
    ]
    for text, wanted in zip(texts, records, strict=True):
        assert all((read(text) == wanted).all() for _, read in reading)
        assert all((encoding.decode_json(write(wanted)) == wanted).all() for _, write in writing)
    return [
        (name, *facts, way, f"{seconds:.2f}", f"{ratio:.1f}", f"{peak / _MB:.0f}")
        for ways, inputs in ((reading, texts), (writing, records))
        for way, seconds, ratio, peak in _compared(ways, inputs, repeat)
    ]


def _streams(name: str) -> list[Records]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(models.build(name).SerializeToString())
        program = raptor.compile(path, xbar=128, cores=200)
        assert isinstance(program.artifacts, ProgramArtifacts)
        return list(pimsim_files(program.artifacts).records.values())


def _compared(ways: Sequence[JsonMethod], inputs: Sequence[Any], repeat: int) -> list[tuple[str, float, float, int]]:
    seconds = [min(_seconds(work, inputs) for _ in range(repeat)) for _, work in ways]
    largest = max(inputs, key=len)
    return [(way, s, s / seconds[0], _peak(work, largest)) for (way, work), s in zip(ways, seconds, strict=True)]


def _seconds(work: Callable[[Any], Any], inputs: Sequence[Any]) -> float:
    start = time.process_time()
    for one in inputs:
        work(one)
    return time.process_time() - start


def _peak(work: Callable[[Any], Any], one: Any) -> int:
    """Returns the peak of bytes that Python and numpy allocate during the work, without the input."""
    tracemalloc.start()
    work(one)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def read_by_loop(text: bytes) -> Records:
    """Converts JSON to records in a Python loop, without checks, which would take even longer."""
    return np.array([_record(instruction) for instruction in orjson.loads(text)], RECORD)


def _record(instruction: dict[str, Any]) -> tuple[int, ...]:
    values = instruction | instruction.get("offset", {})
    spec = BY_NAME[instruction["op"]]
    slots = {operand.slot: values[operand.json[0].rpartition(".")[2]] for operand in spec.operands}
    return (spec.opcode, slots.get("rd", 0), slots.get("rs1", 0), 0, *(slots.get(slot, 0) for slot in "abcd"))


def records_to_objects(records: Records) -> list[dict[str, Any]]:
    """Converts records to dicts and lists that a JSON library can write."""
    names = RECORD.names or ()
    return [_object(dict(zip(names, row, strict=True))) for row in records.tolist()]


def _object(slots: dict[str, int]) -> dict[str, Any]:
    spec = BY_OPCODE[slots["opcode"]]
    made: dict[str, Any] = {"op": spec.name}
    for operand in spec.operands:
        for key in operand.json:
            outer, _, last = key.rpartition(".")
            (made.setdefault(outer, {}) if outer else made)[last] = slots[operand.slot]
    return made


if __name__ == "__main__":
    main()
