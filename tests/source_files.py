"""What the package's source files say, each parsed once, for the tests of its shape, its calls and its errors.

Only what these ask for is kept. The trees themselves are hundreds of thousands of objects, which the collector would
walk over for as long as the tests run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import miniclaw_sessions

PACKAGE = "miniclaw_sessions"
ROOT = Path(miniclaw_sessions.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


class Import(NamedTuple):
    """An import: the module, the names that are taken from it (none of `import module`), and where it stands."""

    module: str
    names: tuple[str, ...]
    line: int
    at_top: bool
    at_run_time: bool
    is_relative: bool = False


class SourceFile:
    """What one file says.

    Attributes:
        imports: every import, those for type checkers too.
        names: every name that is read or set.
        called: every name that is called, with its line.
        attributes: every `name.attribute`, with its lines.
        functions: the length of each function, in lines.
        is_async: whether it defines a coroutine, or awaits.
        errors: the first two arguments of every `RequestError(...)`, where they are constants.
    """

    def __init__(self, text: str, name: str = "<text>") -> None:
        tree = ast.parse(text, name)
        self.docstring = ast.get_docstring(tree)
        self.lines = len(text.splitlines())
        self.imports: list[Import] = []
        self.names: set[str] = set()
        self.called: list[tuple[str, int]] = []
        self.attributes: list[tuple[str, int]] = []
        self.functions: dict[str, int] = {}
        self.is_async = False
        self.errors: set[tuple[object, object]] = set()
        top = set(map(id, tree.body))
        waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
        for node, at_run_time in waiting:  # which grows: a tree in the order of `ast.walk`, at half its price
            kind = type(node)
            if (look := _LOOKS.get(kind)) is not None:
                look(self, node)
            elif kind is ast.Import or kind is ast.ImportFrom:
                self._see_import(node, at_top=id(node) in top, at_run_time=at_run_time)
            inside = at_run_time and not (kind is ast.If and is_type_checking(node))
            for field in _CHILDREN[kind]:
                value = getattr(node, field)
                if type(value) is list:
                    waiting += [(one, inside) for one in value if isinstance(one, ast.AST)]
                elif isinstance(value, ast.AST):
                    waiting.append((value, inside))

    def _see_import(self, node: ast.AST, *, at_top: bool, at_run_time: bool) -> None:
        if isinstance(node, ast.Import):
            self.imports += [Import(one.name, (), node.lineno, at_top, at_run_time) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(one.name for one in node.names)
            self.imports.append(Import(node.module or "", names, node.lineno, at_top, at_run_time, bool(node.level)))

    def _see_name(self, node: ast.Name) -> None:
        self.names.add(node.id)

    def _see_attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self.attributes.append((f"{node.value.id}.{node.attr}", node.lineno))

    def _see_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name):
            self.called.append((node.func.id, node.lineno))
            if node.func.id == "RequestError" and len(node.args) >= 2:
                status, kind = (getattr(one, "value", None) for one in node.args[:2])
                self.errors.add((status, kind))

    def _see_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        self.functions[node.name] = max(self.functions.get(node.name, 0), length)
        self.is_async = self.is_async or isinstance(node, ast.AsyncFunctionDef)

    def _see_await(self, _: ast.Await) -> None:
        self.is_async = True

    def imported(self, *, at_top: bool = False) -> Iterator[Import]:
        """What is imported when it runs: at its top or later."""
        return (one for one in self.imports if one.at_run_time and (one.at_top or not at_top))


_LOOKS: dict[type[ast.AST], Callable[[SourceFile, Any], None]] = {
    ast.Name: SourceFile._see_name,
    ast.Attribute: SourceFile._see_attribute,
    ast.Call: SourceFile._see_call,
    ast.FunctionDef: SourceFile._see_function,
    ast.AsyncFunctionDef: SourceFile._see_function,
    ast.Await: SourceFile._see_await,
}

_LEAVES = ("ctx", "id", "attr", "op", "ops", "name", "arg", "type_comment", "level", "module", "kind")
"""Fields that hold no node that is looked at; they are most of all fields."""


_CHILDREN: dict[type, tuple[str, ...]] = {
    kind: () if kind is ast.Constant else tuple(field for field in kind._fields if field not in _LEAVES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""The fields of each kind of node in which others may be."""


def is_type_checking(node: ast.AST) -> bool:
    """Whether this is the block that only a type checker sees."""
    test = node.test if isinstance(node, ast.If) else None
    return (test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")) == "TYPE_CHECKING"


@cache
def source_of(file: Path) -> SourceFile:
    """What a file of the package says."""
    return SourceFile(file.read_text(encoding="utf-8"), str(file))
