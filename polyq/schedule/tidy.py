"""Cleaning a loop nest after lowering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyq.affine.expr import Affine
from polyq.affine.scalar import substitute_dims
from polyq.schedule.loopnest import Assign, Block, Guard, Loop, Scope

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
                if len(low) == len(high) == 1 and high[0] - low[0] == Affine(1):
                    out += tidy(body, {**known, var: low[0]})
                elif inner := tidy(body, known):
                    out.append(Loop(var, low, high, kind, inner))
            case Guard(constraints, body):
                if inner := tidy(body, known):
                    out.append(Guard(tuple(c.substitute(known) for c in constraints), inner))
            case Scope(buffers, body):
                if inner := tidy(body, known):
                    out.append(Scope(buffers, inner))
            case Assign():
                out.append(_rebound(node, known))
    return tuple(out)


def _rebound(node: Assign, known: Mapping[str, Affine]) -> Assign:
    if not known:
        return node
    instance = tuple(e.substitute(known) for e in node.instance)
    index = tuple(e.substitute(known) for e in node.index)
    return replace(node, instance=instance, index=index, value=substitute_dims(node.value, dict(known)))
