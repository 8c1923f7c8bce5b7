"""Why a nest is refused, as data: what was found, concrete instances, and the nest with the place marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyq.affine.html import Html, code, join, page, table, tag, verbatim
from polyq.affine.spec import Spec
from polyq.schedule.loopnest import LoopNest
from polyq.schedule.readback import Statement

__all__ = ["Instance", "Violation", "instance_of", "mark"]

Values = tuple[tuple[str, int], ...]
_HERE = "    <-- here"


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a statement: the original op and the values of its dims, and the loop variables of the nest."""

    op: str
    dims: Values
    loops: Values = ()

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{d}={v}' for d, v in self.dims)})"


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason why a nest does not compute its spec.

    ``kind`` is ``domain``, ``flow``, ``uninitialised``, ``reduction``, ``race``, ``bounds``, ``body``, ``buffer`` or
    ``limit`` (the search for a proof was cut short). ``instances`` is the witness at the parameter values ``params``;
    ``loop`` names the loop that carries the conflict, if one does; ``nest`` is the printed nest with the place marked.
    """

    kind: str
    message: str
    instances: tuple[Instance, ...] = ()
    params: Values = ()
    loop: str | None = None
    nest: str = ""

    @property
    def statements(self) -> tuple[str, ...]:
        """The ops of the witness."""
        return tuple(i.op for i in self.instances)

    @property
    def headline(self) -> str:
        """What is wrong, in a line."""
        return f"{self.kind}: {self.message}"

    def html(self) -> Html:
        """Return the witness alone: the instances with the values of their dims and loops, and the nest."""
        return join((_instances(self.instances, self.params), _nest(self.nest)))

    def _repr_html_(self) -> str:
        return page("witness", "", tag("p", self.headline), self.html())

    def __str__(self) -> str:
        lines = [self.headline]
        if self.instances or self.params:
            at = f" at {', '.join(f'{p}={v}' for p, v in self.params)}" if self.params else ""
            lines.append(f"  witness{at}" + (f": {' and '.join(map(str, self.instances))}" if self.instances else ""))
        return "\n".join([*lines, *(f"  {line}" for line in self.nest.splitlines())])


def _instances(instances: tuple[Instance, ...], params: Values) -> Html:
    at = tag("p", f"at {_values(params)}", style="soft") if params else Html("")
    rows = [(code(i.op, "name"), _values(i.dims), _values(i.loops)) for i in instances]
    return join((at, table(("statement", "instance", "loop variables"), rows))) if rows else at


def _values(values: Values) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values)


def _nest(nest: str) -> Html:
    """Return the printed nest, the marked lines set apart."""
    if not nest:
        return Html("")
    lines = [tag("span", line, style="mark") if line.endswith(_HERE) else line for line in nest.splitlines()]
    return verbatim(join(lines, "\n"))


def instance_of(spec: Spec, s: Statement, loops: Mapping[str, int], params: Mapping[str, int]) -> Instance:
    """Return the original instance that statement ``s`` computes at these loop variables."""
    dims = spec.op(s.assign.op).dims if s.assign.op else tuple(loop.var for loop in s.loops)
    exprs = s.assign.instance if s.assign.op else s.domain.dims
    at = {p: params.get(p, 0) for p in spec.params}  # a parameter that the sample leaves free may have any value
    values = [loops[e] if isinstance(e, str) else e.evaluate(loops, at) for e in exprs]
    return Instance(s.assign.op or "copy", tuple(zip(dims, values, strict=True)), tuple(loops.items()))


def mark(nest: LoopNest, loop: str | None = None, statement: int | None = None) -> str:
    """Return the printed nest with one loop, or one assignment (counted from 1), marked."""
    lines: list[str] = []
    count = 0
    for line in str(nest).splitlines():
        text = line.strip()
        is_statement = not text.endswith(":") and not text.startswith("scratch ")
        count += is_statement
        here = (is_statement and count == statement) or (loop is not None and text.startswith(f"for {loop} in "))
        lines.append(line + _HERE if here else line)
    return "\n".join(lines)
