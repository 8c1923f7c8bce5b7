"""Random methods of a schedule with arguments whose names are there: what they would do may be legal or not."""

from __future__ import annotations

from random import Random

from polyq.affine.spec import Op
from polyq.schedule.stages import Plan

__all__ = ["Arguments", "directive"]

Arguments = dict[str, object]
OFTEN = ("reorder", "reorder", "fuse", "fuse", "fuse", "fuse", "fuse", "parallel", "vectorize")
SELDOM = ("split", "tile", "unroll", "inline", "split_dim", "partial_sums", "factor", "distribute", "accumulate")


def directive(r: Random, plan: Plan) -> tuple[str, Arguments]:
    """Return the name of a method of Schedule and arguments with names that are there."""
    ops = plan.spec.ops
    sums = [op for op in ops if op.reduce]
    if sums and r.random() < 0.3:
        name, op = r.choice(["fuse", "fuse", "reorder"]), r.choice(sums)
        return name, _arguments(r, plan, name, op, plan.stage(op.name).order)
    name = r.choice([*OFTEN, *OFTEN, *OFTEN, *SELDOM])
    temporaries = {t.name for t in plan.spec.temporaries}
    fit = {
        "inline": [op for op in ops if op.target in temporaries],
        "partial_sums": [op for op in sums if op.reduced],
        "factor": [op for op in sums if op.reduce == "+" and op.reduced],
        "distribute": [op for op in sums if op.reduce == "+"],
    }.get(name, sums if sums and name in OFTEN and r.random() < 0.85 else ops)
    if not fit:
        return directive(r, plan)
    if name in ("parallel", "vectorize"):
        fit = [op for op in fit if op.reduced] or fit
    op = r.choice(fit)
    return name, _arguments(r, plan, name, op, plan.stage(op.name).order)


def _arguments(r: Random, plan: Plan, name: str, op: Op, axes: tuple[str, ...]) -> Arguments:
    if not axes and name not in ("inline", "accumulate", "distribute"):
        return {}
    match name:
        case "split":
            return {"op": op.name, "axis": r.choice(axes), "factor": r.choice([2, 3, 4])}
        case "tile":
            return {"op": op.name, "sizes": {a: r.choice([2, 3]) for a in r.sample(axes, min(2, len(axes)))}}
        case "reorder":
            return {"op": op.name, "axes": tuple(r.sample(axes, len(axes)))}
        case "fuse":
            readers = [o for o in plan.spec.ops if any(x.tensor == op.target for x in o.reads)]
            into = r.choice(readers) if readers and r.random() < 0.7 else r.choice(plan.spec.ops)
            at = plan.stage(into.name).order
            return {"producer": op.name, "into": into.name, "at": r.choice(at)} if at else {}
        case "vectorize" | "parallel" | "unroll":
            lanes = {"lanes": r.choice([2, 4])} if name == "vectorize" and r.random() < 0.5 else {}
            carried = [a for a in axes if a in op.reduced]
            axis = r.choice(carried) if carried and name != "unroll" and r.random() < 0.7 else r.choice(axes)
            return {"op": op.name, "axis": axis, **lanes}
        case "split_dim":
            return {"op": op.name, "dim": r.choice(op.dims), "factor": r.choice([2, 3])}
        case "partial_sums" | "factor":
            some = [d for d in op.reduced if r.random() < 0.5] or list(op.reduced[:1]) or [op.dims[0]]
            return {"op": op.name, {"partial_sums": "keep", "factor": "inner"}[name]: tuple(some)}
        case "distribute":
            return {"op": op.name}
        case _:
            return {"tensor": op.target}
