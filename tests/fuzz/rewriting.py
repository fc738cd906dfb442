"""Rewrites of one place in a syntax tree: the mutation operators of planted defects.

A rewrite has the form `WORDS k/n -> TEMPLATE`. The words choose nodes of a function by the vocabulary of `ast`: the
class of the node (`Call`, `IfExp`), the class and field of its parent (`If.test`, `Call.args[1]`), the symbol of its
operator (`+`, `<=`, `not`, `+=`), the value of a constant (`'add'`), the name that is called (`len()`) or read
(`min`), if it is no name of RAPTOR. `k/n` is the k-th of the `n` nodes that have all these words; another number of
nodes is an error. In the template `_` stands for the old node, `_2` for its second expression by the order of fields
in `ast`, and `_21` for the first expression of that one. So `* 1/2 -> _1` replaces the first of two products by its
left factor, `< 1/1 -> _1 <= _2` moves a bound, and `Call.args[1] Name 1/3 -> _ + 1` makes an argument larger by one.

A rewrite names nothing that RAPTOR defines, except where the new code needs it. So it stays as it is where names
change, modules move, lines break elsewhere, or another part of the function changes.

Tools for mutation testing (cosmic-ray, mutmut) number the places of a module, write changed files and run all tests.
Here a place belongs to a function, a child imports the changed tree, and the table names the check.
"""

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import numpy as np

_SYMBOLS: Mapping[type[ast.AST], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**"},
    **{ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.MatMult: "@"},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is-not", ast.In: "in", ast.NotIn: "not-in"},
    **{ast.And: "and", ast.Or: "or", ast.Not: "not", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"},
}
_NO_SITES = ("annotation", "returns", "decorator_list", "type_params")
_OF_OTHERS = {*dir(builtins), *dir(np), *dir(np.ndarray)}
_REWRITE = re.compile(r"(?P<words>.+) (?P<k>\d+)/(?P<n>\d+) -> (?P<template>.+)")
_PART = re.compile("_[1-9]*")


class RewriteError(Exception):
    """A rewrite that does not fit the code."""


@dataclass(frozen=True, slots=True)
class Site:
    """A statement or expression of a syntax tree: field `field` of `parent`, or an element of that field."""

    parent: ast.AST
    field: str
    index: int | None

    @property
    def node(self) -> ast.AST:
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]

    @property
    def words(self) -> set[str]:
        node, place = self.node, f"{type(self.parent).__name__}.{self.field}"
        found = {type(node).__name__, place}
        if self.index is not None and isinstance(node, ast.expr):  # a new statement does not renumber the others
            found.add(f"{place}[{self.index}]")
        operators: list[ast.AST] = [*getattr(node, "ops", ()), *filter(None, [getattr(node, "op", None)])]
        found |= {_SYMBOLS[type(op)] + "=" * isinstance(node, ast.AugAssign) for op in operators}
        if isinstance(node, ast.Constant | ast.Name | ast.Attribute):
            found.add(ast.unparse(node))
        if isinstance(node, ast.Call):
            found.add(f"{ast.unparse(node.func)}()")
        return found

    def replace(self, new: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new


def sites(tree: ast.AST) -> Iterator[Site]:
    """Yields the statements and expressions of a tree in depth-first order, without docstrings and annotations."""
    for field, held in ast.iter_fields(tree):
        several = isinstance(held, list)
        for number, child in enumerate(cast("list[object]", held if several else [held])):
            if field in _NO_SITES or not isinstance(child, ast.AST) or _is_docstring(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield Site(tree, field, number if several else None)
            yield from sites(child)


def apply_rewrite(rewrite: str, function: ast.AST, module: ast.AST) -> tuple[ast.AST, ast.AST]:
    """Rewrites one place of a function, and returns the old and the new node.

    Raises `RewriteError` if the function has another number of such places, or if the template has a name that neither
    the module nor Python or numpy has.
    """
    parts = _REWRITE.fullmatch(rewrite)
    if parts is None:
        raise RewriteError("not of the form WORDS k/n -> TEMPLATE")
    own = _names(ast.parse(parts["template"])) - _OF_OTHERS
    if own and (unknown := own - _names(module)):
        raise RewriteError(f"the module has no {', '.join(sorted(unknown))}")
    wanted, k, n = set(parts["words"].split()), int(parts["k"]), int(parts["n"])
    there = [site for site in sites(function) if wanted <= site.words]
    if len(there) != n or not 1 <= k <= n:
        listed = "".join(f"\n  {k}: {ast.unparse(site.node)}" for k, site in enumerate(there, 1))
        raise RewriteError(f"{len(there)} nodes have the words {parts['words']!r}:{listed}")
    site = there[k - 1]
    old, new = site.node, _filled(parts["template"], site.node)
    site.replace(new)
    return old, new


def _filled(template: str, old: ast.AST) -> ast.AST:
    """Returns the new code for a node, with its place in the file."""
    (statement,) = ast.parse(template).body
    new = statement.value if isinstance(old, ast.expr) and isinstance(statement, ast.Expr) else statement
    if isinstance(old, ast.Tuple | ast.Subscript) and isinstance(new, ast.Tuple | ast.Subscript):
        new.ctx = old.ctx  # of the left side of an assignment
    for node in ast.walk(new):
        ast.copy_location(node, old)
    return _Filling(old).visit(new)


class _Filling(ast.NodeTransformer):
    """Replaces `_`, `_1`, `_12` by copies of a node and of its parts."""

    def __init__(self, old: ast.AST) -> None:
        self.old = old

    def visit_Name(self, node: ast.Name) -> ast.AST:
        part = self.old
        if not _PART.fullmatch(node.id):
            return node
        for digit in node.id[1:]:
            if int(digit) > len(parts := _expressions(part)):
                raise RewriteError(f"{ast.unparse(self.old)} has no part {node.id}")
            part = parts[int(digit) - 1]
        return deepcopy(part)


def _expressions(node: ast.AST) -> list[ast.expr]:
    """Returns the expressions that a node consists of, by the order of fields in `ast`."""
    found: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            found.append(child)
        elif isinstance(child, ast.keyword | ast.comprehension | ast.arguments):
            found += _expressions(child)
    return found


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names(tree: ast.AST) -> set[str]:
    """Returns the names that a tree reads, and those of attributes and keyword arguments."""
    found = {getattr(node, field, None) for node in ast.walk(tree) for field in ("id", "attr", "arg")}
    return {name for name in found if name and not _PART.fullmatch(name)}
