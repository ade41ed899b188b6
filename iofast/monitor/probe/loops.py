"""Training loops in a program's source, and the lines at which they get their batches. Parsed as text, never run.

A stack does not show that a function is a generator, nor whose value is a batch; the source of its caller does:

    for batch in batches():        a loop over batches gets them in its header
    while True:                    a loop that counts, or never ends, gets a batch at a line
        batch = queue.get()        whose value is used, later in the same turn, by the call that trains

A loop trains if it calls `backward()`, an optimizer's `step()`, or a function that does, by its name or by its body in
the same file. Calls in a nested loop over something else do not count: a loop over epochs is no training loop, nor is
one that gets a job and trains for many steps. A loop that sends something to others gets answers from them, which look
like batches, so it is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from iofast.monitor.probe import syntax
from iofast.monitor.probe.syntax import For, Function, Scope, called, calls

_TRAINS = re.compile(r"((\w*_)?(backward|apply_gradients|apply_updates|value_and_grad|GradientTape)|grad)$")
_TRAINS_BATCH = re.compile(  # where it gets a batch as an argument; train(job) may be a whole training
    r"((\w*_)?(train|training|fit|learn|learning|optimi[sz]e|update)_(on_|one_)?(step|batch|iter|iteration)(_fn)?"
    r"|partial_fit)$"
)
_OPTIMIZER = re.compile(r"opt|scaler", re.IGNORECASE)  # whose step() it is
_NEXT = frozenset({"next", "anext", "__next__"})
_SENDS = re.compile(r"(put|put_nowait|send\w*|publish|remote|rpc_\w+)$")
_HANDLES = frozenset({"result", "get"})  # of a future, of an asynchronous result
_DEEPEST = 8  # functions that call each other, from the loop to the call that trains

Gets = dict[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that trains, or a function that makes one step.

    head    lines of what it iterates over; none where it counts
    gets    lines that get a batch, with the functions called there that take the batch
    awaits  lines that wait in an asyncio loop, in order; `fed`: all of them wait for batches
    """

    function: str
    first: int
    last: int
    head: range
    gets: Gets
    awaits: tuple[int, ...] = ()
    fed: bool = False


class Loops:
    """The training loops of one file, the inner ones first. A file that cannot be parsed has none."""

    def __init__(self, text: str) -> None:
        self.loops: list[Loop] = []
        self._functions: dict[str, list[Function]] = {}
        self._training: dict[str, bool] = {}  # whether a function of the file trains, by name
        try:
            self._tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._tree = ast.Module([], [])
        for node in ast.walk(self._tree):
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
        self._search(self._tree, "<module>", frozenset())
        self.loops.sort(key=lambda loop: loop.last - loop.first)

    def head_at(self, function: str, line: int) -> bool:
        """Whether a training loop iterates over what this line of a function makes."""
        return any(line in loop.head for loop in self._of(function))

    def gets_at(self, function: str, line: int, callee: str) -> bool:
        """Whether a training loop gets its batch by the call of `callee` at this line of a function."""
        return any(line in loop.gets and callee not in loop.gets[line] for loop in self._of(function))

    def trains_at(self, function: str, line: int) -> bool:
        """Whether this line of a function is in a training loop."""
        return any(loop.first <= line <= loop.last for loop in self._of(function))

    def _of(self, function: str) -> list[Loop]:
        """Loops of the function that the stack names: in a file that was edited since, lines have moved."""
        return [loop for loop in self.loops if loop.function == function]

    def run_at(self, line: int) -> list[Loop]:
        """The asynchronous training loops in what this line runs: `asyncio.run(train())`."""
        if not any(loop.awaits for loop in self.loops):
            return []
        nodes = [node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)]
        statements = [node for node in nodes if node.lineno <= line <= syntax.last_line(node)]
        if not statements:
            return []
        names = syntax.mentioned(min(statements, key=lambda node: syntax.last_line(node) - node.lineno))
        functions = set[str]()
        while missing := (names & self._functions.keys()) - functions:
            functions |= missing
            for name in missing:
                names = names.union(*map(syntax.mentioned, self._functions[name]))
        return [loop for loop in self.loops if loop.awaits and loop.function in functions]

    def _search(self, node: ast.AST, function: str, batch: frozenset[str]) -> None:
        """Add the loops below a node. `batch`: names of what the loops around it have got."""
        for child in ast.iter_child_nodes(node):
            inside, known = function, batch
            if isinstance(child, Function):
                inside, known = child.name, syntax.parameters(child)
            if isinstance(child, Scope):
                known = self._add(child, inside, known)
            self._search(child, inside, known)

    def _add(self, scope: Scope, function: str, batch: frozenset[str]) -> frozenset[str]:
        """Add a scope if it trains; return the names of what it has got, for the loops in it."""
        head = range(0)
        if isinstance(scope, For) and not syntax.is_counter(scope.iter):
            if batch.isdisjoint(syntax.names(scope.iter)):  # no part of a batch
                head = range(scope.lineno, syntax.last_line(scope.iter) + 1)
            batch |= syntax.assigned(scope)
        nodes = list(syntax.turn(scope, nested=True))
        training = [call for call in calls(nodes) if self._trains(call)]
        trains = any(call in training for call in calls(syntax.turn(scope, nested=False)))
        if trains or (head and _reaches(syntax.assigned(scope), _statements(nodes), training)):
            gets, batch = _gets(scope, nodes, training, batch, counting=not head)
            awaits = [scope.lineno] if isinstance(scope, ast.AsyncFor) else []
            awaits += [node.lineno for node in nodes if isinstance(node, ast.Await)]
            fed = all(line in head or line in gets for line in awaits)
            self.loops.append(Loop(function, scope.lineno, syntax.last_line(scope), head, gets, tuple(awaits), fed))
        return frozenset() if isinstance(scope, Function) else batch

    def _trains(self, call: ast.Call, depth: int = 0) -> bool:
        """Whether a call trains the network, or calls a function of this file that does."""
        name = called(call)
        if _TRAINS.match(name):
            return True
        if _TRAINS_BATCH.match(name) and not all(isinstance(argument, ast.Constant) for argument in call.args):
            return True
        if name == "step" and isinstance(call.func, ast.Attribute) and _OPTIMIZER.search(ast.unparse(call.func.value)):
            return True
        if name not in self._training and depth < _DEEPEST:
            self._training[name] = False  # functions may call each other
            bodies = self._functions.get(name, ())
            inner = (one for body in bodies for one in calls(syntax.turn(body, nested=False)))
            self._training[name] = any(self._trains(one, depth + 1) for one in inner)
        return self._training.get(name, False)


def _gets(
    scope: Scope, nodes: Sequence[ast.AST], training: Sequence[ast.Call], batch: frozenset[str], *, counting: bool
) -> tuple[Gets, frozenset[str]]:
    """The lines of a scope that get a batch, and the names of the batch and of what is made of it."""
    gets: Gets = {}
    targets = syntax.assigned(scope)
    counters = targets if counting else frozenset()
    sends = any(
        _SENDS.match(called(call)) and set(syntax.names(*call.args)) - counters for call in calls(ast.walk(scope))
    )
    statements: list[ast.stmt] = [scope] if isinstance(scope, ast.While) else []
    statements += _statements(nodes)
    for place, statement in enumerate(statements):
        within = list(syntax.within(statement))
        sources = [node for node in within if isinstance(node, ast.Call | ast.Await) and node not in training]
        waits = any(called(call) in _NEXT for call in calls(sources))
        if counting:
            waits |= not sends and not _is_made_of(batch, statement, sources)
        else:
            waits |= any(_is_handle(node, targets) for node in sources)
        takers = frozenset(  # update(state, next(batches))
            called(call)
            for call in calls(within)
            if call in training and any(part in sources for each in call.args for part in ast.walk(each))
        )
        later = statements[place + 1 :]
        if waits and (takers or (sources and _reaches(syntax.assigned(statement), later, training))):
            batch |= syntax.assigned(statement)
            for line in syntax.lines(statement):
                gets[line] = gets.get(line, frozenset()) | takers
        if batch & syntax.used(statement):
            batch |= syntax.assigned(statement)
    return gets, batch


def _is_made_of(batch: frozenset[str], statement: ast.stmt, sources: Sequence[ast.expr]) -> bool:
    """Whether a statement goes through a batch, or passes one to its calls."""
    if isinstance(statement, For) and not batch.isdisjoint(syntax.names(statement.iter)):
        return True
    return any(not batch.isdisjoint(syntax.names(*call.args)) for call in calls(sources))


def _is_handle(node: ast.expr, targets: frozenset[str]) -> bool:
    """Whether this waits for a target of the loop: `future.result()`, `await task`."""
    waited: ast.expr | None = node.value if isinstance(node, ast.Await) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        waited = node.func.value if node.func.attr in _HANDLES else None
    return waited is not None and not targets.isdisjoint(syntax.variable(waited))


def _reaches(value: frozenset[str], later: Sequence[ast.stmt], training: Sequence[ast.Call]) -> bool:
    """Whether the value of these names goes into a call that trains. A value that is the loss itself is no batch."""
    first = value
    for statement in later:
        if not value & syntax.used(statement):
            continue
        trains = [call for call in calls(syntax.within(statement)) if call in training and not _is_of_loss(call, first)]
        if any(not value.isdisjoint(syntax.names(call)) for call in trains):
            return True
        value |= syntax.assigned(statement)
    return False


def _is_of_loss(call: ast.Call, losses: frozenset[str]) -> bool:
    """Whether a call is the backward pass of one of these: `loss.backward()`, `accelerator.backward(loss)`."""
    of = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    return _TRAINS.match(called(call)) is not None and any(not losses.isdisjoint(syntax.variable(one)) for one in of)


def _statements(nodes: Sequence[ast.AST]) -> list[ast.stmt]:
    return [node for node in nodes if isinstance(node, ast.stmt)]
