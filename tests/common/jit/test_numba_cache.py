"""Machine code in the cache is as old as the oldest file that went into it."""

import ast
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import pytest

import models
import raptor
from raptor.common.jit import decorators
from raptor.common.jit.numba_cache import KernelCache
from tests.paths import ROOT
from validator.engines import engine_kernels as engine
from validator.simulate.builtin import simulate
from validator.simulate.cycle import cycle_kernels as model


def names_of(module: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in decorators.find_sources(module)}


def test_sources_are_the_files_whose_constants_and_helpers_are_compiled() -> None:
    found = names_of(model.__name__)
    direct = {
        "validator/simulate/cycle/state_tables.py",
        "validator/simulate/cycle/unit_kernels.py",
        "raptor/target/isa.py",
    }
    by_helpers = {
        "validator/simulate/cycle/cost_kernels.py",
        "raptor/target/opcode_tables.py",
        "validator/engines/scalar_kernels.py",
    }
    assert direct | by_helpers | {"raptor/common/jit/decorators.py"} <= found
    assert "validator/simulate/cycle/cycle_kernels.py" not in found  # numba looks at that itself
    assert "validator/engines/machine.py" in names_of(engine.__name__)
    assert "raptor/common/errors.py" not in names_of(engine.__name__)  # what machine.py imports is not compiled


def test_all_kernels_import_at_the_top() -> None:
    """`sources` looks no further than the first definition."""
    for path in (*ROOT.glob("raptor/**/*kernel*.py"), *ROOT.glob("validator/**/*kernels.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        imports = [k for k, node in enumerate(body) if isinstance(node, ast.Import | ast.ImportFrom)]
        definitions = [k for k, node in enumerate(body) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert not definitions or max(imports) < min(definitions), path


def test_kernels_load_without_the_linear_algebra_of_scipy() -> None:
    """Nobody asks for it; but who does in the same process, gets it."""
    pytest.importorskip("scipy")
    code = (
        "import sys, numba, numpy as np\n"
        "from raptor.mapping.scheduling import schedule_kernel\n"
        "assert 'scipy.linalg' not in sys.modules\n"
        "assert (numba.njit(lambda a: np.dot(a, a))(np.eye(2)) == np.eye(2)).all()\n"
        "assert 'scipy.linalg' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def write(folder: Path, value: int) -> None:
    (folder / "jit_constant.py").write_text(f"VALUE = {value}{' ' * value}\n")


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Values that a new process gets of a kernel with a constant from another file."""
    for name in ("jit_constant", "jit_kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(decorators, "_OURS", ("jit_constant",))
    monkeypatch.syspath_prepend(str(folder))
    return __import__("jit_kernel")


def test_a_constant_of_another_file_makes_the_code_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jit_kernel.py").write_text(
        "from jit_constant import VALUE\nfrom raptor.common.jit.decorators import kernel\n\n\n"
        "@kernel\ndef answer():\n    return VALUE\n"
    )
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for value in (41, 42):
        write(tmp_path, value)
        assert answer(tmp_path, monkeypatch).answer() == value
        assert list(tmp_path.glob("**/*.nbi"))


def test_a_cache_that_names_types_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of an older version of the project is emptied."""
    write(tmp_path, 7)
    (tmp_path / "jit_kernel.py").write_text(
        "from jit_constant import VALUE\nfrom raptor.common.jit.decorators import kernel\n\n\n"
        "@kernel\ndef answer():\n    return VALUE\n"
    )
    load = numba.core.caching.IndexDataCacheFile._load_index
    failed: list[bool] = []

    def once(self: Any) -> Any:
        if not failed:
            failed.append(True)
            raise AttributeError("Can't get attribute 'Gone'")
        return load(self)

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_load_index", once)
    assert answer(tmp_path, monkeypatch).answer() == 7
    assert failed


def test_processes_that_compile_at_once_find_each_their_own_code(tmp_path: Path) -> None:
    """With numba's own index, two of them name two specialisations alike: a crash, or wrong numbers."""

    def save_and_load(writer: int) -> list[Any]:
        stored = KernelCache(str(tmp_path), "kernel-1.py3", "stamp")
        found: list[Any] = []
        for key in range(12):
            stored.save((writer, key), f"code {writer} {key}")
            found += [(stored.load((writer, earlier)), f"code {writer} {earlier}") for earlier in range(key + 1)]
        return found

    with ThreadPoolExecutor(6) as threads:
        for found in threads.map(save_and_load, range(6)):
            assert all(code == wanted for code, wanted in found)
    assert len(list(tmp_path.iterdir())) == 1 + 6 * 12


def test_a_newer_kernel_never_finds_the_code_of_an_older_one(tmp_path: Path) -> None:
    old, new = (KernelCache(str(tmp_path), "kernel-1.py3", stamp) for stamp in ("old", "new"))
    for key in "ab":
        old.save(key, f"old {key}")
    old.add_interpreted_us(5)
    new.save("b", "new b")
    assert [new.load(key) for key in "ab"] == [None, "new b"]
    assert (new.read_interpreted_us(), len(list(tmp_path.iterdir()))) == (0, 2)


KERNEL = """
from raptor.common.jit.decorators import helper, interpret_first, kernel

@helper
def twice(a):
    return 2 * a

@kernel
@interpret_first(us=lambda args: len(args[0][0]), until_us=10, by_element=True)
def answer(some, more):
    for i in range(len(some[0])):
        some[0][i] = twice(some[0][i]) + more
    return some[0][0]
"""


@pytest.mark.parametrize("process_from", [0, 1, 2, 3])
def test_python_runs_a_kernel_until_compiling_it_is_quicker(
    process_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays in tuples are changed alike. The third call is beyond the 10 us, so it is compiled, also by others."""
    (tmp_path / "jit_interpreted.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    compiled: list[bool] = []
    for call in range(4):
        if call in {0, process_from}:
            monkeypatch.delitem(sys.modules, "jit_interpreted", raising=False)
        found: Any = __import__("jit_interpreted")
        values = np.arange(4)
        assert found.answer((values,), call) == call
        assert values.tolist() == [call, 2 + call, 4 + call, 6 + call]
        compiled.append(decorators.has_machine_code(found.answer))
    assert compiled == [False, False, True, True]


def test_a_first_run_of_a_small_model_compiles_nothing(tmp_path: Path) -> None:
    """Python then computes the same as the compiled kernels, and writes the same."""
    path = tmp_path / "mlp.onnx"
    path.write_bytes(models.build("mlp", seed=0).SerializeToString())
    warm, cold = (tmp_path / name for name in ("warm", "cold"))
    jitted = raptor.compile(path, cores=60).save(warm)
    cache = tmp_path / "cache"
    for words in (
        ["compile", path, "--cores", "60", "-o", cold],
        ["validate", cold, "--samples", "2"],
        ["check", cold],
        ["simulate", cold, "--json", tmp_path / "cold.json"],
    ):
        command = [sys.executable, "-m", "raptor", *map(str, words)]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)})
    assert not list(cache.glob("**/*.nbi"))
    assert [p.name for p in sorted(cold.iterdir())] == [p.name for p in sorted(warm.iterdir())]
    for file in (p for p in warm.rglob("*") if p.is_file()):
        assert file.read_bytes() == (cold / file.relative_to(warm)).read_bytes(), file.name
    found = json.loads((tmp_path / "cold.json").read_text())
    wanted = simulate(jitted)
    assert (found["latency_ns"], found["energy_pj"]) == (wanted.latency_ns, wanted.energy_pj)


@pytest.mark.parametrize("linked", [True, False])
def test_a_helper_is_compiled_as_a_part_of_kernels(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If numba lets us, for nothing else: then Python cannot call it, but does not crash either."""
    (tmp_path / "jit_linked.py").write_text(KERNEL.replace("@interpret", "# @interpret"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert decorators.LinkedCompiler is not None
    if not linked:
        monkeypatch.setattr(decorators, "LinkedCompiler", None)
    monkeypatch.delitem(sys.modules, "jit_linked", raising=False)
    found: Any = __import__("jit_linked")
    values = np.arange(4)
    assert found.answer((values,), 1) == 1
    assert values.tolist() == [1, 3, 5, 7]
    if not linked:
        assert found.twice(3) == 6
        return
    for argument in (3, 3.0):  # types with which the kernel calls it, and others
        with pytest.raises(TypeError, match="not callable"):
            found.twice(argument)
