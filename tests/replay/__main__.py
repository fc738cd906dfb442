"""`make replay BASE=COMMIT`: the same models compiled at two commits give the same bytes, or it says what differs.

Checkouts and what they gave are kept in `.replay`, by commit. The working tree is the second unless `--to` says a
commit. Exit status 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.replay.cases import Case, cases
from tests.replay.compare import differences

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".replay"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("base", help="a commit")
    parser.add_argument("--to", help="another commit; the working tree if none is said")
    parser.add_argument("--full", action="store_true", help="also every model at its full size: most of an hour")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = [c for c in cases(full=args.full) if args.only in c.name]
    before = recorded(args.base, chosen, args.jobs)
    after = recorded(args.to, chosen, args.jobs)
    differing = 0
    for i, case in enumerate(chosen):
        found = list(differences(before / str(i), after / str(i)))
        differing += bool(found)
        print("".join(f"{case.name}: {line}\n" for line in found), end="")
    print(f"{len(chosen)} compiled twice, {differing} differ")
    return 1 if differing else 0


def recorded(commit: str | None, chosen: list[Case], jobs: int) -> Path:
    """The folder of what the commit, or the working tree, gives; made if it is not there."""
    listed = json.dumps([case.plain() for case in chosen])
    if commit is None:
        sources, name = ROOT, "now"
    else:
        name = git("rev-parse", "--verify", f"{commit}^{{commit}}")
        sources = checkout(name)
    folder = HOME / f"{name}-{hashlib.blake2b(listed.encode(), digest_size=6).hexdigest()}"
    if commit is None or not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "cases.json").write_text(listed)
        print(f"{name}: {len(chosen)} models", flush=True)
        script = Path(__file__).with_name("record.py")
        subprocess.run(
            [sys.executable, script, folder / "cases.json", folder, str(jobs)],
            env=os.environ | {"PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"},
            check=True,
        )
        (folder / "done").touch()
    return folder


def checkout(commit: str) -> Path:
    """The commit's files, without git's own."""
    sources = HOME / "sources" / commit
    if not sources.exists():
        sources.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", sources], input=archive, check=True)
    return sources


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


sys.exit(main())
