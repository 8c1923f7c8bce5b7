"""Cleaning a loop nest after lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import substitute_dims
from polyq.schedule.loopnest import Assign, Block, Guard, Loop, Scope, walk

__all__ = ["tidy"]


def tidy(block: Block, known: Mapping[str, Affine]) -> Block:
    """Replace loops of exactly one iteration by their body, and drop those of none."""
    out: list[Loop | Guard | Scope | Assign] = []
    for node in block:
        match node:
            case Loop(var, lower, upper, kind, body):
                low = tuple(e.substitute(known) for e in lower)
                high = tuple(e.substitute(known) for e in upper)
                if any((gap := (h - lo)).is_constant and gap.const <= 0 for h in high for lo in low):
                    continue
                once = len(low) == len(high) == 1 and high[0] - low[0] == Affine(1)
                if once or _is_one_lane(node, low, high):
                    out += tidy(body, {**known, var: low[0]})
                elif inner := tidy(body, known):
                    loop = Loop(var, low, high, kind, inner)
                    out += _written_out(loop) if _is_ragged_copy(loop) else (loop,)
            case Guard(constraints, body):
                if inner := tidy(body, known):
                    out.append(Guard(tuple(c.substitute(known) for c in constraints), inner))
            case Scope(buffers, body):
                if inner := tidy(body, known):
                    out.append(Scope(buffers, inner))
            case Assign():
                out.append(_rebound(node, known))
    return tuple(out)


def _is_one_lane(loop: Loop, low: tuple[Affine, ...], high: tuple[Affine, ...]) -> bool:
    """Whether a vector has one live lane, and its cells have no place for the others."""
    if loop.kind != "vector" or len(low) != 1 or not all((h - low[0]).is_constant for h in high):
        return False
    cells = [e for node in walk(loop.body) if isinstance(node, Assign) for e in node.index]
    return min((h - low[0]).const for h in high) == 1 and not any(loop.var in e.dims() for e in cells)


#: an unrolled loop of up to so many iterations, some of which may fall away, is written out
MOST_GUARDED = 8


def _is_ragged_copy(loop: Loop) -> bool:
    """Whether an unrolled loop has a constant number of iterations at most, and fewer at times."""
    most = [e.const for e in loop.upper if e.is_constant]
    least = [e for e in loop.lower if e.is_constant]
    flat = not any(isinstance(node, Scope) for node in walk(loop.body))
    return (
        loop.kind == "unroll"
        and least == [Affine(0)]
        and 0 < min(most, default=0) <= MOST_GUARDED
        and len(loop.upper) + len(loop.lower) > len(most) + len(least)
        and flat
    )


def _written_out(loop: Loop) -> Block:
    """Write out the iterations, each under its condition: subscripts stay known, and tiles in registers."""
    most = min(e.const for e in loop.upper if e.is_constant)
    above = [e for e in loop.upper if not e.is_constant]
    below = [e for e in loop.lower if not e.is_constant]
    return tuple(
        Guard(
            (*(Constraint(e - 1 - i) for e in above), *(Constraint(Affine(i) - e) for e in below)),
            _renamed(tidy(loop.body, {loop.var: Affine(i)}), i),
        )
        for i in range(most)
    )


def _renamed(block: Block, copy: int) -> Block:
    """Give the loops of one copy variables of their own."""
    out: list[Loop | Guard | Scope | Assign] = []
    for node in block:
        if isinstance(node, Loop):
            name = f"{node.var}~{copy}"
            inner = _renamed(tidy(node.body, {node.var: Affine.dim(name)}), copy)
            out.append(replace(node, var=name, body=inner))
        elif isinstance(node, Assign):
            out.append(node)
        else:
            out.append(replace(node, body=_renamed(node.body, copy)))
    return tuple(out)


def _rebound(node: Assign, known: Mapping[str, Affine]) -> Assign:
    if not known:
        return node
    instance = tuple(e.substitute(known) for e in node.instance)
    index = tuple(e.substitute(known) for e in node.index)
    return replace(node, instance=instance, index=index, value=substitute_dims(node.value, dict(known)))
