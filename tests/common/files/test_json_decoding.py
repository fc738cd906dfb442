"""Threads that read JSON of the same types."""

import ast
import subprocess
import sys

from tests.paths import ROOT

MAKERS = {
    "raptor/common/files/json_decoding.py",
    "raptor/device/backends/socket_protocol.py",
}  # the latter makes one while it is imported

TOGETHER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from raptor.common.files import json_decoding
from raptor.target import instruction_json

TEXT = b'[{"op":"vvadd","rd":1,"rs1":2,"rs2":3,"len":4,"offset":{"offset_select":0,"offset_value":0}}]'
sys.setswitchinterval(1e-6)
gate = Barrier(4)

def read(k):
    gate.wait()
    return bool(instruction_json.decode_plain(TEXT) if k % 2 else instruction_json.is_plain(TEXT[1:-1]))

with ThreadPoolExecutor(4) as pool:
    for _ in range(100):
        for forgetful in vars(instruction_json).values():
            getattr(forgetful, "cache_clear", str)()
        json_decoding._decoder.cache_clear()
        instruction_json._any_instruction(plain=True)  # threads are to learn one class, not one each
        assert all(pool.map(read, range(4)))
"""


def test_threads_learn_a_type_one_after_the_other() -> None:
    """msgspec crashes the process where two threads do so at once."""
    subprocess.run([sys.executable, "-c", TOGETHER], cwd=ROOT, check=True)


def test_nobody_else_makes_decoders_of_classes() -> None:
    for path in (*ROOT.glob("raptor/**/*.py"), *ROOT.glob("validator/**/*.py")):
        if str(path.relative_to(ROOT)) in MAKERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("msgspec."):
                continue
            kinds = [ast.unparse(k.value) for k in node.keywords if k.arg == "type"]
            assert not ast.unparse(node.func).endswith("Decoder"), f"{path}:{node.lineno}: use json_decoder"
            assert not any(kind[0] in "_ABCDEFGHIJKLMNOPQRSTUVWXYZ" for kind in kinds), f"{path}:{node.lineno}: a class"
