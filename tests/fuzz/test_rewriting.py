"""Rewrites of a place in a syntax tree: which place, and what it becomes."""

import ast

import pytest

from tests.fuzz.rewriting import RewriteError, apply_rewrite

CODE = '''
def area(rows: int, cols: int = 1 + 2) -> int:
    """Returns a + b."""
    if rows < cols and rows:
        rows += min(rows, cols - 1, key=str)
    first, last = rows * cols, [cols - 2 for rows in (1, 2) if rows]
    return first if not last else last[0] * rows
'''


def rewritten(rewrite: str, code: str = CODE) -> str:
    """Returns the lines that a rewrite changes."""
    module = ast.parse(code)
    apply_rewrite(rewrite, module.body[0], module)
    compile(module, "", "exec")
    before, after = (ast.unparse(tree).splitlines() for tree in (ast.parse(code), module))
    return "\n".join(line.strip() for line in after if line not in before)


@pytest.mark.parametrize(
    ("rewrite", "line"),
    [
        ("< 1/1 -> _1 <= _2", "if rows <= cols and rows:"),
        ("and 1/1 -> _2", "if rows:"),
        ("If.test 1/1 -> not _", "if not (rows < cols and rows):"),
        ("If 1/1 -> pass", "pass"),
        ("AugAssign.value min() 1/1 -> _2", "rows += rows"),
        ("min() 1/1 -> min(_3, _2)", "rows += min(cols - 1, rows)"),
        ("min 1/1 -> max", "rows += max(rows, cols - 1, key=str)"),
        ("Call.args[1] 1/1 -> _ + 1", "rows += min(rows, cols - 1 + 1, key=str)"),
        ("+= 1/1 -> _1 = _2", "rows = min(rows, cols - 1, key=str)"),
        ("* 2/2 -> _11", "return first if not last else last"),
        ("not 1/1 -> _1", "return first if last else last[0] * rows"),
        ("Assign.targets 1/1 -> _2, _1", "last, first = (rows * cols, [cols - 2 for rows in (1, 2) if rows])"),
        ("2 3/3 -> 3", "first, last = (rows * cols, [cols - 2 for rows in (1, 3) if rows])"),
        ("ListComp 1/1 -> [_1 for _2 in _3]", "first, last = (rows * cols, [cols - 2 for rows in (1, 2)])"),
        ("arguments.defaults 1/1 -> 0", "def area(rows: int, cols: int=0) -> int:"),
    ],
)
def test_a_rewrite(rewrite: str, line: str):
    assert rewritten(rewrite) == line


def test_names_lines_and_other_statements_do_not_matter():
    other = CODE.replace("rows", "lines").replace("area", "size").replace("    if", "    print(lines)\n    if")
    other = other.replace("lines < cols", "lines\\\n    < cols")
    assert rewritten("< 1/1 -> _1 <= _2", other) == "if lines <= cols and lines:"


@pytest.mark.parametrize(
    ("rewrite", "told"),
    [
        ("* 1/3 -> _1", r"2 nodes have the words '\*':\n  1: rows \* cols\n  2: last\[0\] \* rows"),
        ("/ 1/1 -> _1", "0 nodes have the words '/':$"),
        ("* 3/2 -> _1", "2 nodes"),
        ("* 0/2 -> _1", "2 nodes"),
        ("* 1/2 -> _13", r"rows \* cols has no part _13"),
        ("* 1/2 -> width", "the module has no width"),
        ("* 1/2 = _1", "not of the form"),
    ],
)
def test_a_rewrite_that_does_not_fit_is_refused(rewrite: str, told: str):
    with pytest.raises(RewriteError, match=told):
        rewritten(rewrite)
