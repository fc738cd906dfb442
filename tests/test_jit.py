"""Machine code in the cache is as old as the oldest file that went into it."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba  # pyright: ignore[reportMissingTypeStubs]
import pytest

from raptor.common import jit
from validator import engine_kernels as engine
from validator.simulate import cycle_kernels as model

ROOT = Path(jit.__file__).parents[2]


def names_of(module: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in jit.sources(module)}


def test_sources_are_the_files_whose_constants_and_helpers_are_compiled() -> None:
    found = names_of(model.__name__)
    direct = {"validator/simulate/state.py", "validator/simulate/unit_kernels.py", "raptor/target/isa.py"}
    by_helpers = {"validator/simulate/cost_kernels.py", "raptor/target/opcode_tables.py", "validator/scalar_kernels.py"}
    assert direct | by_helpers | {"raptor/common/jit.py"} <= found
    assert "validator/simulate/cycle_kernels.py" not in found  # numba looks at that itself
    assert "validator/machine.py" in names_of(engine.__name__)
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
        "from raptor.spatial import schedule_kernel\n"
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
    monkeypatch.setattr(jit, "_OURS", ("jit_constant",))
    monkeypatch.syspath_prepend(str(folder))
    return __import__("jit_kernel")


def test_a_constant_of_another_file_makes_the_code_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jit_kernel.py").write_text(
        "from jit_constant import VALUE\nfrom raptor.common.jit import kernel\n\n\n"
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
        "from jit_constant import VALUE\nfrom raptor.common.jit import kernel\n\n\n"
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
