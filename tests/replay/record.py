"""Runs as a script with another commit's `raptor` and `models` on its path, so it imports nothing else of ours.

    python record.py CASES.json FOLDER JOBS

Writes `FOLDER/NUMBER/` for each case: the output with large files as digests, or `error.txt`, also for a model that the
commit does not have.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SHOWN, SHOWN_BYTES = "[!c]*.json", 4 * 2**20
"""Files kept whole up to this size, so that what differs can be said: not the many streams `core_*.json`."""


def record(case: dict[str, Any], folder: Path) -> str:
    import models
    import raptor

    sources = Path(os.environ["PYTHONPATH"])
    assert Path(raptor.__file__).is_relative_to(sources), f"{raptor.__file__} is not of {sources}"
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        if case["chip"]:
            Path("chip.json").write_text(json.dumps(case["chip"]))
        if case["model"] not in models.MODELS:
            folder.mkdir()
            (folder / "error.txt").write_text(f"no model {case['model']!r}\n")
            return case["name"]
        model = models.build(case["model"], seed=0, **case["sizes"])
        if case["quantised"]:
            raptor.quantize(model, **case["quantised"]).save("model.onnx")
            model = "model.onnx"
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in case["compiled"].items()}
        folder.mkdir()
        try:
            program = raptor.compile(model, emit_mapping="mapping.json", **options)
            program.save("out", **case["saved"])
        except raptor.RaptorError as error:
            (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n")
            return case["name"]
        shutil.copy("mapping.json", folder / "mapping.json")
        keep(Path("out"), folder / "out")
    return case["name"]


def keep(source: Path, folder: Path) -> None:
    """Copies what can be read, writes digests of the rest."""
    digests: list[str] = []
    folder.mkdir()
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        name = path.relative_to(source)
        if len(name.parts) == 1 and name.match(SHOWN) and path.stat().st_size <= SHOWN_BYTES:
            shutil.copy(path, folder / name)
        else:
            digests.append(f"{name} {path.stat().st_size} {hashlib.blake2b(path.read_bytes()).hexdigest()}\n")
    (folder / "digests.txt").write_text("".join(digests))


def main(cases: Path, folder: Path, jobs: int) -> None:
    # Spawned, as onnxruntime's threads do not survive a fork; anew at times, as a model of half a gigabyte stays.
    # Not by ProcessPoolExecutor: with `max_tasks_per_child` it may wait for ever (python/cpython#115634).
    with get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
        found = [(case, folder / str(i)) for i, case in enumerate(json.loads(cases.read_text()))]
        for name in pool.imap(_record, found):
            print(f"  {name}", flush=True)


def _record(work: tuple[dict[str, Any], Path]) -> str:
    return record(*work)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).resolve(), int(sys.argv[3]))
