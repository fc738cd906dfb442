"""Compiles helpers of kernels no further than a kernel needs them: to LLVM code that is linked into it.

numba makes of each function, also of one that only others call, optimised machine code with two entries for Python.
Entries that take apart tuples of arrays are longer than most helpers, and code is optimised again in every function
that it is linked into, so that took most of the time to compile a kernel of many helpers. Here a kernel is optimised
and translated as a whole, once.

NOTE: This uses parts of numba that are its own. Where they are missing, the import of this module fails.
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
"""Address of the C function that Python gets to if it calls a helper: it calls an object that cannot be called."""


class _LinkedLibrary(JITCodeLibrary):
    """Code that is neither optimised nor translated before it is part of a kernel."""

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
        """Does what numba's own lowering does, without machine code."""
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
    """Pipeline of a helper: numba's, with another last step (`numba.njit(pipeline_class=...)`)."""

    def define_pipelines(self) -> list[PassManager]:
        """Returns the one pipeline."""
        theirs = DefaultPassBuilder.define_nopython_pipeline(self.state)
        ours = PassManager("linked")
        for step, why in theirs.passes:
            ours.add_pass(_LinkedLowering if step is NativeLowering else step, why)
        ours.finalize()
        return [ours]
