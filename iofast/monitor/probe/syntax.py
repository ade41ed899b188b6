"""Questions about parsed source: what belongs to one turn of a loop, what a statement assigns, uses and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
For = ast.For | ast.AsyncFor
Scope = For | ast.While | Function  # whose statements run once a turn, or once a call

_COUNTS = frozenset({"range", "count", "trange"})
_WRAPPERS = frozenset({"enumerate", "tqdm", "track", "islice", "zip", "reversed"})
_GROWS = frozenset({"append", "appendleft", "extend", "add"})


def turn(scope: Scope, *, nested: bool) -> Iterator[ast.AST]:
    """Nodes of one turn of a loop or one call of a function, in order, without the functions defined in it.

    Of the loops in it, only those over parts of its targets are included. With `nested` also those that count or never
    end and, where the scope itself counts, those over parts of what it has assigned.
    """
    parts = set(assigned(scope)) if isinstance(scope, For) else set[str]()
    counts = not isinstance(scope, For) or is_counter(scope.iter)
    queue: list[ast.AST] = [*([scope.test] if isinstance(scope, ast.While) else []), *scope.body]
    queue.reverse()
    while queue:
        node = queue.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, For | ast.While):
            part = isinstance(node, For) and not parts.isdisjoint(names(node.iter))
            if not part and not (nested and (isinstance(node, ast.While) or is_counter(node.iter))):
                continue
        yield node
        if nested and counts and isinstance(node, ast.stmt):
            parts |= assigned(node)
        queue.extend(reversed(list(ast.iter_child_nodes(node))))


def within(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of a statement, without those of the statements in its body."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        yield node
        queue.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def lines(statement: ast.stmt) -> set[int]:
    """Lines of the expressions of a statement, without those of its body."""
    parts = [node for node in within(statement) if isinstance(node, ast.expr)]
    return {line for node in parts for line in range(node.lineno, last_line(node) + 1)}


def is_counter(iterated: ast.expr) -> bool:
    """Whether a loop over this counts, or goes through a literal."""
    if not isinstance(iterated, ast.Call):
        return isinstance(iterated, ast.Tuple | ast.List | ast.Constant)
    if called(iterated) in _WRAPPERS and iterated.args:
        return all(map(is_counter, iterated.args if called(iterated) == "zip" else iterated.args[:1]))
    return called(iterated) in _COUNTS


def assigned(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement assigns to, or the list that it appends to; without its body."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in _GROWS:
            return frozenset(variable(function.value))
    return _in_context(statement, ast.Store)


def used(statement: ast.stmt) -> frozenset[str]:
    """Names that a statement reads; without its body."""
    return _in_context(statement, ast.Load)


def _in_context(statement: ast.stmt, context: type[ast.expr_context]) -> frozenset[str]:
    nodes = (node for node in within(statement) if isinstance(getattr(node, "ctx", None), context))
    return frozenset(name for node in nodes for name in variable(node))


def names(*nodes: ast.AST) -> Iterator[str]:
    """Names of all variables in these nodes."""
    return (name for node in nodes for part in ast.walk(node) for name in variable(part))


def variable(node: ast.AST) -> tuple[str, ...]:
    """The name of a variable, or of an attribute of `self`; () for other nodes."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return (f"self.{node.attr}",)
    return (node.id,) if isinstance(node, ast.Name) and node.id != "self" else ()


def mentioned(node: ast.AST) -> set[str]:
    """Names of all variables and attributes in a node, also of objects other than `self`."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    return {part.id if isinstance(part, ast.Name) else part.attr for part in parts}


def parameters(function: Function) -> frozenset[str]:
    """Names of a function's parameters, without `self`."""
    return frozenset(node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg) and node.arg != "self")


def calls(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """The calls among these nodes."""
    return [node for node in nodes if isinstance(node, ast.Call)]


def called(call: ast.Call) -> str:
    """The name of the function, without the object in front of it; "" where it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def last_line(node: ast.stmt | ast.expr) -> int:
    """The number of a node's last line."""
    return node.end_lineno or node.lineno
