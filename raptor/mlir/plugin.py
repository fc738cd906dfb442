"""The dialects of RAPTOR as a plug-in of mlir-opt: writes its source, made from their table.

`python -m raptor.mlir.plugin DIR` writes `Pim.td`, `Pim.cpp` and a `Makefile`, which builds it with the packages of one
version of LLVM (Debian: `apt install libmlir-19-dev llvm-19-dev mlir-19-tools g++`).
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from raptor.mlir.dialect import AttributeSpec, Kind, OpSpec, pim_dialect

_CONSTRAINTS: Mapping[Kind, str] = {
    "i64": "I64Attr",
    "string": "StrAttr",
    "symbol": "FlatSymbolRefAttr",
    "i64s": "DenseI64ArrayAttr",
    "dictionary": "DictionaryAttr",
    "types": "TypeArrayAttr",
    "type": "TypeAttr",
    "resource": "ElementsAttr",
}
_PARENTS = {"builtin.module": "::mlir::ModuleOp"}

_TABLEGEN = """\
// Made by raptor.mlir.plugin from the table raptor/mlir/dialect.py.
include "mlir/IR/OpBase.td"
include "mlir/IR/BuiltinAttributes.td"
include "mlir/IR/SymbolInterfaces.td"

def Pim_Dialect : Dialect {
  let name = "pim";
  let cppNamespace = "::raptor::pim";
}
class Pim_Op<string mnemonic, list<Trait> traits = []> : Op<Pim_Dialect, mnemonic, traits>;

"""

_SOURCE = """\
// Made by raptor.mlir.plugin.
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Tools/Plugins/DialectPlugin.h"
#include "Dialect.h.inc"
#define GET_OP_CLASSES
#include "Ops.h.inc"
#include "Dialect.cpp.inc"
#define GET_OP_CLASSES
#include "Ops.cpp.inc"

void raptor::pim::PimDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "Ops.cpp.inc"
      >();
}

extern "C" LLVM_ATTRIBUTE_WEAK ::mlir::DialectPluginLibraryInfo mlirGetDialectPluginInfo() {
  return {MLIR_PLUGIN_API_VERSION, "RaptorPim", "1",
          [](::mlir::DialectRegistry *registry) { registry->insert<raptor::pim::PimDialect>(); }};
}
"""

_MAKEFILE = """\
# Made by raptor.mlir.plugin. make LLVM=/usr/lib/llvm-19
LLVM ?= /usr/lib/llvm-19
TBLGEN = $(LLVM)/bin/mlir-tblgen -I $(LLVM)/include Pim.td

RaptorPim.so: Pim.cpp Pim.td
\t$(TBLGEN) -gen-dialect-decls -dialect=pim -o Dialect.h.inc
\t$(TBLGEN) -gen-dialect-defs -dialect=pim -o Dialect.cpp.inc
\t$(TBLGEN) -gen-op-decls -o Ops.h.inc
\t$(TBLGEN) -gen-op-defs -o Ops.cpp.inc
\t$(CXX) -std=c++17 -O1 -fPIC -shared -fno-rtti -fno-exceptions -I $(LLVM)/include -I . Pim.cpp -o $@
"""


def write_plugin(folder: Path) -> None:
    """Writes the source of the plug-in to a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = pim_dialect()
    # An operation that is named as a parent is declared first.
    ordered = sorted(specs.values(), key=lambda spec: not spec.region)
    (folder / "Pim.td").write_text(_TABLEGEN + "\n".join(map(_definition, ordered)), encoding="utf-8")
    (folder / "Pim.cpp").write_text(_SOURCE, encoding="utf-8")
    (folder / "Makefile").write_text(_MAKEFILE, encoding="utf-8")


def _definition(spec: OpSpec) -> str:
    """Returns the definition of an operation in TableGen."""
    parent = _PARENTS.get(spec.parent) or pim_dialect()[spec.parent].class_name
    traits = [f'HasParent<"{parent}">']
    traits += ["SingleBlock", "IsolatedFromAbove"] if spec.region else []
    traits += ["Symbol"] if spec.symbol else []
    traits += ["Terminator"] if spec.terminator else []
    operands = {"none": [], "one": ["AnyMemRef:$buffer"], "any": ["Variadic<AnyMemRef>:$buffers"]}[spec.buffers]
    arguments = [*operands, *(f"{_constraint(name, each)}:${name}" for name, each in spec.attributes.items())]
    lines = [
        f'  let summary = "{spec.meaning}";',
        *([f"  let arguments = (ins {', '.join(arguments)});"] if arguments else []),
        *(["  let results = (outs AnyMemRef:$result);"] if spec.result else []),
        *(["  let regions = (region SizedRegion<1>:$body);"] if spec.region else []),
    ]
    mnemonic = spec.name.partition(".")[2]
    return "\n".join((f'def {spec.class_name} : Pim_Op<"{mnemonic}", [{", ".join(traits)}]> {{', *lines, "}\n"))


def _constraint(name: str, spec: AttributeSpec) -> str:
    kind = "SymbolNameAttr" if name == "sym_name" else _CONSTRAINTS[spec.kind]
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
