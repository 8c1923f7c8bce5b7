"""One run: assignments without a loop between them, as straight-line C.

Equal sub-expressions are computed once (an entry dies when a buffer that it loads from is written); what several
statements share gets a name and a barrier, since gcc otherwise folds a shared load into each of its users (measured:
half the speed of a register tile).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from polyq.affine.expr import Affine, Dim
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, children, loads, walk
from polyq.emit.address import Names, Registers, Storage, stem
from polyq.emit.ctypes import Value, width
from polyq.emit.expressions import computed
from polyq.emit.helpers import Helpers

__all__ = ["Lanes", "Run", "varies"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop around a statement: its variable, width and, in a tail, the C text of the live lanes' count."""

    var: str
    width: int
    count: str | None = None


@dataclass
class Run:
    """Emits one run: ``lines`` grow as statements are added.

    ``undeclared`` holds the register variables (name -> C type) of the enclosing block that no line has declared yet;
    ``loop`` is the innermost loop's variable; ``sums`` names the sums of 16 bits that are open.
    """

    helpers: Helpers
    names: Names
    storage: dict[str, Storage]
    strict: bool
    prefetch: dict[str, int]
    undeclared: dict[str, str]
    loop: str = ""
    lines: list[str] = field(default_factory=list[str])
    sums: dict[object, str] = field(default_factory=dict[object, str])
    _uses: Counter[object] = field(default_factory=Counter[object])
    _read: set[str] = field(default_factory=set[str])
    _known: dict[object, Value] = field(default_factory=dict[object, Value])
    _fetched: set[object] = field(default_factory=set[object])
    _turns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def expect(self, values: Iterable[tuple[Scalar, Lanes | None]]) -> None:
        """Note what will be computed, so that what occurs twice gets a name."""
        self._uses = Counter[object]()
        for s, lanes in values:
            self._expect(s, lanes)

    def _expect(self, s: Scalar, lanes: Lanes | None) -> None:
        key = self._key(s, lanes)
        self._uses[key] += 1
        if isinstance(s, Load):
            self._read.add(s.tensor)
        if self._uses[key] == 1:  # the second time, what is inside will not be computed again
            for child in children(s):
                self._expect(child, lanes)

    def say(self, line: str) -> None:
        """Add a line of C."""
        self.lines.append(line)

    # ---- values
    def value(self, s: Scalar, lanes: Lanes | None) -> Value:
        """Return the C value of ``s``; of width 1 where it does not vary over the lanes."""
        key = self._key(s, lanes)
        if key in self._known:
            return self._known[key]
        value = computed(self, s, key[1])
        if isinstance(s, (Apply, Cast, Load)):
            often = self._uses[key] > 1
            if (often or (isinstance(s, Load) and value.lanes > 1)) and not value.is_name:
                value = self.name(value, stem_of(s), shared=often)
            self._known[key] = value
        return value

    def wide(self, s: Scalar, lanes: Lanes | None) -> Value:
        """Return the value in all lanes."""
        value = self.value(s, lanes)
        if lanes is None or value.lanes == lanes.width:
            return value
        wide = self.helpers.splat(value, lanes.width)
        return wide if isinstance(s, Const) else self.once(("splat", s, lanes.width), wide, f"{stem_of(s)}_all")

    def once(self, key: object, value: Value, stem: str, keep: bool = True) -> Value:
        """Return ``value`` as a variable, the same for the same key until what it loads from is written.

        Without ``keep`` the compiler may load it anew for each of its users.
        """
        if key not in self._known:
            self._known[key] = self.name(value, stem, shared=keep)
        return self._known[key]

    def name(self, value: Value, stem: str, shared: bool = False) -> Value:
        """Give a value a variable; with a barrier if several statements share it and it fits a register."""
        name = self.names.fresh(stem)
        self.say(f"{self.helpers.vector(value.dtype, value.lanes)} {name} = {value.text};")
        size = width(value.dtype) * value.lanes
        if shared and value.lanes > 1 and 16 <= size <= self.helpers.vector_bytes:
            self.say(f"KEEP({name});")
        return Value(name, value.dtype, value.lanes)

    def written(self, buffer: str) -> None:
        """Forget what was loaded from ``buffer``."""
        if buffer not in self._read:
            return
        self._known = {k: v for k, v in self._known.items() if not _mentions(k, buffer)}

    def fetch(self, line: object) -> bool:
        """Whether ``line`` is asked for the first time."""
        new = line not in self._fetched
        self._fetched.add(line)
        return new

    def prefetched(self, turn: str | None, line: str) -> None:
        """Add a prefetch, under a condition that goes in front of the run; ``None`` leaves it out."""
        if turn == "":
            self.say(line)
        elif turn is not None:
            self._turns.setdefault(turn, []).append(line)

    def text(self) -> list[str]:
        """Return all lines."""
        ahead = [(f"if ({turn}) {{", *(f"  {line}" for line in lines), "}") for turn, lines in self._turns.items()]
        return [*(line for group in ahead for line in group), *self.lines]

    def _key(self, s: Scalar, lanes: Lanes | None) -> tuple[Scalar, Lanes | None]:
        return s, lanes if lanes is not None and varies(s, lanes.var) else None

    # ---- registers
    def register(
        self, storage: Registers, index: tuple[Affine, ...], lanes: Lanes | None, assigned: bool = False
    ) -> tuple[str, int | None, bool]:
        """Return the variable of a cell, its lane, and whether all lanes are meant.

        The variable is declared here, unless the whole of it is about to be assigned.
        """
        lane: int | None = None
        whole = False
        index = storage.path(index)
        path = tuple(e.const for e in index)
        if storage.lanes:
            last = index[-1]
            whole = lanes is not None and last.coefficient(Dim(lanes.var)) == 1
            if whole and lanes is not None:
                last = last.substitute({lanes.var: Affine(0)})
            block, rest = divmod(last.const, storage.lanes)
            lane = None if whole else rest
            path = (*path[:-1], block)
        name = storage.variable(path)
        if name in self.undeclared and not assigned:
            kind = self.undeclared.pop(name)
            self.say(f"{kind} {name} = {'{0}' if storage.lanes else '0'};")
        return name, lane, whole

    def declared(self, name: str) -> str:
        """Return what stands in front of an assignment to a register variable: its type, the first time."""
        kind = self.undeclared.pop(name, None)
        return "" if kind is None else f"{kind} "


def stem_of(s: Scalar) -> str:
    """Return how the variable of a value is called."""
    match s:
        case Load(tensor):
            return f"{stem(tensor)}_v"
        case Cast(arg, dtype):
            return f"{stem_of(arg).removesuffix('_v')}_{dtype}"
        case Apply(fn):
            return f"t_{fn}" if fn in ("exp", "sqrt", "log") else "t"
        case Const():
            return "constant"
        case Index():
            return "at"


def varies(s: Scalar, var: str) -> bool:
    """Whether a value depends on a loop variable through a subscript or an index value."""
    return any(
        (isinstance(n, Load) and any(var in e.dims() for e in n.index))
        or (isinstance(n, Index) and var in n.expr.dims())
        for n in walk(s)
    )


def _mentions(key: object, buffer: str) -> bool:
    parts = cast("tuple[object, ...]", key) if isinstance(key, tuple) else (key,)
    return any(load.tensor == buffer for part in parts if isinstance(part, (Apply, Cast, Load)) for load in loads(part))
