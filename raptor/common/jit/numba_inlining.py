"""Compilation of numba helpers to LLVM code only, which is linked into each kernel that calls them.

By default numba makes optimised machine code of each function, with two entry points for Python. Entry points that
unpack tuples of arrays are longer than most helpers, and code is optimised again in every function that it is linked
into. This took most of the compile time of kernels with many helpers. Here a kernel is optimised and translated as a
whole, once.

NOTE: This uses private parts of numba. Where they are missing, the import of this module fails.
"""

# numba and llvmlite have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

import ctypes
from typing import Any, Literal

from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue] compiled C, of which pyright sees nothing
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering

_NOT_CALLABLE = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value
"""Address of a C function that raises: the entry point of helpers for Python, which must not call them."""


class _LinkedLibrary(JITCodeLibrary):
    """Code that is neither optimised nor translated until it is linked into a kernel."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    """Lowers a helper so that other functions can call it."""

    _name = "linked_lowering"

    def run_pass(self, state: Any) -> Literal[True]:
        """Lowers as numba does, without machine code."""
        library = state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        lowered = state["cr"]
        library.finalize()
        described = lowered.fndesc
        name = described.qualname.rpartition(".")[2]
        entry = _dynfunc.make_function(described.lookup_module(), name, "", _NOT_CALLABLE, lowered.env, (library,))
        state.targetctx.insert_user_function(entry, described, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class LinkedCompiler(CompilerBase):
    """numba's compiler pipeline with `_LinkedLowering` as its last step (`numba.njit(pipeline_class=...)`)."""

    def define_pipelines(self) -> list[PassManager]:
        theirs = DefaultPassBuilder.define_nopython_pipeline(self.state)
        ours = PassManager("linked")
        for step, why in theirs.passes:
            ours.add_pass(_LinkedLowering if step is NativeLowering else step, why)
        ours.finalize()
        return [ours]
