"""The dialects of RAPTOR as a plug-in of mlir-opt: writes its source, made from their table.

`python -m raptor.mlir.plugin DIR` writes `Pim.td`, `Spat.td`, `Raptor.cpp` and a `Makefile`, which builds it with the
packages of one version of LLVM (Debian: `apt install libmlir-19-dev llvm-19-dev mlir-19-tools g++`).
"""

import sys
from pathlib import Path

from raptor.mlir.dialect import KINDS, AttributeSpec, Count, OpSpec, all_dialects

_PARENTS = {"builtin.module": "::mlir::ModuleOp"}

_TABLEGEN = """\
// Made by raptor.mlir.plugin from the table raptor/mlir/dialect.py.
include "mlir/IR/OpBase.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/SymbolInterfaces.td"

def NAME_Dialect : Dialect {
  let name = "LOWER";
  let cppNamespace = "::raptor::LOWER";
}
class NAME_Op<string mnemonic, list<Trait> traits = []> : Op<NAME_Dialect, mnemonic, traits>;

"""

_HEADER = """\
// Made by raptor.mlir.plugin.
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Tools/Plugins/DialectPlugin.h"
"""

_DIALECT = """\
#include "NAME-dialect-decls.inc"
#define GET_OP_CLASSES
#include "NAME-op-decls.inc"
#include "NAME-dialect-defs.inc"
#define GET_OP_CLASSES
#include "NAME-op-defs.inc"

void raptor::LOWER::NAMEDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "NAME-op-defs.inc"
      >();
}
"""

_PLUGIN = """\

extern "C" LLVM_ATTRIBUTE_WEAK ::mlir::DialectPluginLibraryInfo mlirGetDialectPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "Raptor", "1", [](::mlir::DialectRegistry *registry) {
            registry->insert<raptor::pim::PimDialect, raptor::spat::SpatDialect>();
          }};
}
"""

_MAKEFILE = """\
# Made by raptor.mlir.plugin. make LLVM=/usr/lib/llvm-19
LLVM ?= /usr/lib/llvm-19
TBLGEN = $(LLVM)/bin/mlir-tblgen -I $(LLVM)/include

Raptor.so: Raptor.cpp Pim.td Spat.td
\tset -e; for name in Pim Spat; do for part in dialect-decls dialect-defs op-decls op-defs; do \\
\t  $(TBLGEN) -gen-$$part -dialect=$$(echo $$name | tr PS ps) $$name.td -o $$name-$$part.inc; done; done
\t$(CXX) -std=c++17 -O1 -fPIC -shared -fno-rtti -fno-exceptions -I $(LLVM)/include -I . Raptor.cpp -o $@
"""


def write_plugin(folder: Path) -> None:
    """Writes the source of the plug-in to a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    source = _HEADER
    for lower, specs in all_dialects().items():
        name = lower.capitalize()
        # An operation that is named as a parent is declared first.
        ordered = sorted(specs.values(), key=lambda spec: not spec.region)
        text = _TABLEGEN + "\n".join(map(_definition, ordered))
        (folder / f"{name}.td").write_text(_named(text, name), encoding="utf-8")
        source += _named(_DIALECT, name)
    (folder / "Raptor.cpp").write_text(source + _PLUGIN, encoding="utf-8")
    (folder / "Makefile").write_text(_MAKEFILE, encoding="utf-8")


def _named(text: str, name: str) -> str:
    """Returns a template with the name of a dialect."""
    return text.replace("NAME", name).replace("LOWER", name.lower())


def _definition(spec: OpSpec) -> str:
    """Returns the definition of an operation in TableGen."""
    parents = {each.name: each.class_name for specs in all_dialects().values() for each in specs.values()} | _PARENTS
    values = "AnyMemRef" if spec.values == "memref" else "AnyTensor"
    traits = [f'HasParent<"{parents[spec.parent]}">']
    traits += ["SingleBlock"] if spec.region else []
    traits += ["IsolatedFromAbove"] if spec.region and spec.operands == "none" else []
    traits += ["Symbol"] if spec.symbol else []
    traits += ["Terminator"] if spec.terminator else []
    operands = _counted(spec.operands, values, "values")
    arguments = [*operands, *(f"{_constraint(name, each)}:${name}" for name, each in spec.attributes.items())]
    lines = [
        f'  let summary = "{spec.meaning}";',
        *([f"  let arguments = (ins {', '.join(arguments)});"] if arguments else []),
        *(f"  let results = (outs {made});" for made in _counted(spec.results, values, "made")),
        *(["  let regions = (region SizedRegion<1>:$body);"] if spec.region else []),
    ]
    mnemonic = spec.name.partition(".")[2]
    return "\n".join((f'def {spec.class_name} : NAME_Op<"{mnemonic}", [{", ".join(traits)}]> {{', *lines, "}\n"))


def _counted(count: Count, values: str, name: str) -> list[str]:
    return {"none": [], "one": [f"{values}:${name}"], "any": [f"Variadic<{values}>:${name}"]}[count]


def _constraint(name: str, spec: AttributeSpec) -> str:
    kind = "SymbolNameAttr" if name == "sym_name" else KINDS[spec.kind].tablegen
    return f"OptionalAttr<{kind}>" if spec.optional else kind


def main(arguments: list[str]) -> int:
    """Writes the plug-in to the folder that the only argument names. Returns the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m raptor.mlir.plugin DIR", file=sys.stderr)
        return 2
    try:
        write_plugin(Path(arguments[0]))
    except OSError as e:
        print(f"{arguments[0]}: {e.strerror or e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
