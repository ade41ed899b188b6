"""Training loops in a program's source, and where a stack gets its batch by them. Parsed as text, never run.

A stack does not show that a function is a generator, nor whose value is a batch; the source of its caller does:

    for batch in batches():        a loop over batches gets them in its header
    while True:                    a loop that counts, or never ends, gets a batch at a line that calls get, next,
        batch = queue.get()        result or the like, or awaits a value

A loop trains if it calls `backward()`, an optimizer's `step()`, or a function of the same file that does. Calls in a
nested loop over something else do not count: a loop over epochs is no training loop. A loop that sends something to
others gets answers from them, which look like batches, so it has no such lines.
"""

import ast
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from iofast.monitor.probe.calls import Call
from iofast.monitor.snapshot import WaitSite, WaitSource

_TRAINS = re.compile(r"((\w*_)?(backward|apply_gradients|apply_updates|value_and_grad|GradientTape)|grad)$")
_TRAINS_BATCH = re.compile(  # where it gets a batch as an argument; train(job) may be a whole training
    r"((\w*_)?(train|training|fit|learn|learning|optimi[sz]e|update)_(on_|one_)?(step|batch|iter|iteration)(_fn)?"
    r"|partial_fit)$"
)
_OPTIMIZER = re.compile(r"opt|scaler", re.IGNORECASE)  # whose step() it is
_GETS = re.compile(r"(get|get_nowait|a?next|result|recv\w*|receive\w*)$")
_SENDS = re.compile(r"(put|put_nowait|send\w*|publish|remote|rpc_\w+)$")
_COUNTS = frozenset({"range", "count", "trange"})
_WRAPPERS = frozenset({"enumerate", "tqdm", "track", "islice", "zip", "reversed"})
_LARGEST = 1 << 20  # bytes of a file; 100,000 take 10 ms
_FILES = 64  # that are kept
_ITERATES = re.compile(r"\s*(async\s+)?for\b|.*\b(next|anext)\(")
_NEXT = frozenset({"__next__", "__anext__"})
_DEEPEST = 8  # functions that call each other, from the loop to the call that trains

Function = ast.FunctionDef | ast.AsyncFunctionDef
For = ast.For | ast.AsyncFor
_Variable = ast.Name | ast.Attribute
Scope = For | ast.While | Function  # whose statements run once a turn, or once a call


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that trains, or a function that makes one step.

    head    lines of what it iterates over; none where it counts
    gets    lines that get a batch
    awaits  lines that wait in an asyncio loop, in order; `fed`: all of them wait for batches
    """

    function: str
    first: int
    last: int
    head: range
    gets: frozenset[int]
    awaits: tuple[int, ...] = ()
    fed: bool = False


class Loops:
    """The training loops of one file, the inner ones first."""

    def __init__(self, text: str) -> None:
        self.loops: list[Loop] = []
        self._functions: dict[str, list[Function]] = {}
        self._training: dict[str, bool] = {}  # whether a function of the file trains, by name
        self._tree = tree_of(text)
        for node in ast.walk(self._tree):
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
        self._search(self._tree, "<module>")
        self.loops.sort(key=lambda loop: loop.last - loop.first)

    def of(self, function: str) -> list[Loop]:
        """Loops of the function that the stack names: in a file that was edited since, lines have moved."""
        return [loop for loop in self.loops if loop.function == function]

    def run_at(self, line: int) -> list[Loop]:
        """The asynchronous training loops in what this line runs: `asyncio.run(train())`."""
        every = (node for node in ast.walk(self._tree) if isinstance(node, ast.stmt))
        statements = [node for node in every if node.lineno <= line <= _last_line(node)]
        if not statements or not any(loop.awaits for loop in self.loops):
            return []
        names = _mentioned(min(statements, key=lambda node: _last_line(node) - node.lineno))
        functions = set[str]()
        while missing := (names & self._functions.keys()) - functions:
            functions |= missing
            names = names.union(*(_mentioned(body) for name in missing for body in self._functions[name]))
        return [loop for loop in self.loops if loop.awaits and loop.function in functions]

    def _search(self, node: ast.AST, function: str) -> None:
        """Add the scopes below a node that train."""
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, Function) else function
            if isinstance(child, Scope):
                self._add(child, inside)
            self._search(child, inside)

    def _add(self, scope: Scope, function: str) -> None:
        head = range(0)
        if isinstance(scope, For) and not _is_counter(scope.iter):
            head = range(scope.lineno, _last_line(scope.iter) + 1)
        nodes = list(_turn(scope, nested=True))
        if not any(self._trains(call) for call in _calls(nodes if head else _turn(scope, nested=False))):
            return
        gets = frozenset[int]() if head else self._gets(scope, [node for node in nodes if isinstance(node, ast.stmt)])
        awaits = [scope.lineno] if isinstance(scope, ast.AsyncFor) else []
        awaits += [node.lineno for node in nodes if isinstance(node, ast.Await)]
        fed = all(line in head or line in gets for line in awaits)
        self.loops.append(Loop(function, scope.lineno, _last_line(scope), head, gets, tuple(awaits), fed))

    def _gets(self, scope: Scope, statements: Sequence[ast.stmt]) -> frozenset[int]:
        """The lines of a scope that get a batch."""
        counters, lines = _assigned(scope), set[int]()
        if any(_SENDS.match(called(one)) and _mentioned(*one.args) - counters for one in _calls(ast.walk(scope))):
            return frozenset()
        for statement in (scope, *statements) if isinstance(scope, ast.While) else statements:
            within = list(_within(statement))
            got: list[ast.expr] = [call for call in _calls(within) if _GETS.match(called(call))]
            if _assigned(statement) and not any(map(self._trains, _calls(within))):
                got += [node for node in within if isinstance(node, ast.Await)]
            lines.update(line for node in got for line in range(node.lineno, _last_line(node) + 1))
        return frozenset(lines)

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
            inner = (one for body in self._functions.get(name, ()) for one in _calls(_turn(body, nested=False)))
            self._training[name] = any(self._trains(one, depth + 1) for one in inner)
        return self._training.get(name, False)


class Feeds:
    """The source of one process, by the paths that the process knows: which functions train, where they get batches.

    A file is read once: when it is edited later, the program still runs what it read.
    """

    def __init__(self, pid: int) -> None:
        root = f"/proc/{pid}/root"  # the program may live in a container with files of its own
        self._root = root if os.path.isdir(root) else ""
        self._lines = lru_cache(_FILES)(self.read)
        self._loops = lru_cache(_FILES)(lambda path: Loops("\n".join(self._lines(path))))

    def line(self, call: Call) -> str:
        """The line that a call is at; "" where it cannot be read."""
        lines = self._lines(call.path)
        return lines[call.line - 1] if 0 < call.line <= len(lines) else ""

    def read(self, path: str) -> list[str]:
        """The lines of a file; none where it cannot be read, is no regular file, or is too large."""
        if not path.startswith("/"):
            return []
        try:
            with open(self._root + path, "rb", opener=_without_waiting) as file:
                status = os.fstat(file.fileno())
                readable = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
                return file.read().decode("utf-8", "replace").split("\n") if readable else []
        except (OSError, ValueError):
            return []

    def trains(self, calls: Sequence[Call], wait: WaitSite) -> bool:
        """Whether one of these functions is in a training loop, or runs an asyncio loop for one."""
        return bool(self._asyncio_loops(wait)) or any(
            loop.first <= call.line <= loop.last for call in calls for loop in self._loops_of(call)
        )

    def entry(self, calls: Sequence[Call], wait: WaitSite | None) -> int | None:
        """The place of the outermost function that is at a line where it gets its batch; None where there is none."""
        return next((place for place in range(len(calls) - 1, -1, -1) if self._gets(calls, place, wait)), None)

    def _gets(self, calls: Sequence[Call], place: int, wait: WaitSite | None) -> bool:
        call, callee, loops = calls[place], calls[place - 1].name if place else "", self._loops_of(calls[place])
        if any(call.line in loop.head for loop in loops):
            return True
        waits = (wait is not None and wait.source is not WaitSource.NONE) or callee in _NEXT
        gets = any(call.line in loop.gets for loop in loops)
        return gets and (waits or _ITERATES.match(self.line(call)) is not None)

    def _loops_of(self, call: Call) -> list[Loop]:
        """The training loops of the user's function that a call is in; none where its file cannot be read."""
        return self._loops(call.path).of(call.name) if call.user else []

    def awaits(self, wait: WaitSite) -> WaitSite | None:
        """The line at which an asyncio training waits for its batch while all its tasks sleep.

        No stack shows it, as a sleeping task is on none. None where the training may wait for something else as well.
        """
        loop = next(iter(self._asyncio_loops(wait)), None)
        if loop is None or not loop.fed:
            return None
        return replace(wait, line=loop.awaits[0], function=loop.function, call="asyncio")

    def _asyncio_loops(self, wait: WaitSite) -> list[Loop]:
        return self._loops(wait.file).run_at(wait.line) if wait.source is WaitSource.EVENTS else []


def _without_waiting(path: str, flags: int) -> int:
    """Open a path, which may name a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def tree_of(text: str) -> ast.Module:
    """A program's source, parsed; an empty one if it cannot be."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def called(call: ast.Call) -> str:
    """The name of the function, without the object in front of it; "" where it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _turn(scope: Scope, *, nested: bool) -> Iterator[ast.AST]:
    """Nodes of one turn of a loop or one call of a function, in order, without the functions and loops in it.

    With `nested` loops that count or never end are included.
    """
    queue: list[ast.AST] = [*([scope.test] if isinstance(scope, ast.While) else []), *scope.body]
    queue.reverse()
    while queue:
        node = queue.pop()
        counts = isinstance(node, ast.While) or (isinstance(node, For) and _is_counter(node.iter))
        if isinstance(node, Function | ast.ClassDef | ast.Lambda) or (
            isinstance(node, For | ast.While) and not (nested and counts)
        ):
            continue
        yield node
        queue.extend(reversed(list(ast.iter_child_nodes(node))))


def _within(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of a statement, without those of the statements in its body."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        yield node
        queue.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def _is_counter(iterated: ast.expr) -> bool:
    """Whether a loop over this counts, or goes through a literal."""
    if not isinstance(iterated, ast.Call):
        return isinstance(iterated, ast.Tuple | ast.List | ast.Constant)
    if called(iterated) in _WRAPPERS and iterated.args:
        return all(map(_is_counter, iterated.args if called(iterated) == "zip" else iterated.args[:1]))
    return called(iterated) in _COUNTS


def _assigned(statement: ast.stmt) -> set[str]:
    """Names of variables and attributes that a statement assigns to; without its body."""
    stored = (node for node in _within(statement) if isinstance(getattr(node, "ctx", None), ast.Store))
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in stored if isinstance(node, _Variable)}


def _mentioned(*nodes: ast.AST) -> set[str]:
    """Names of all variables and attributes in these nodes."""
    parts = [part for node in nodes for part in ast.walk(node) if isinstance(part, _Variable)]
    return {part.attr if isinstance(part, ast.Attribute) else part.id for part in parts}


def _calls(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    return [node for node in nodes if isinstance(node, ast.Call)]


def _last_line(node: ast.stmt | ast.expr) -> int:
    return node.end_lineno or node.lineno
