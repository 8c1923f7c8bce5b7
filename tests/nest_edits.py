"""Random small specs, and random edits of their nests: some keep the meaning, most do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

from polyq.affine.expr import Affine, Constraint
from polyq.affine.scalar import Const, Load, Scalar, apply, loads, map_scalar
from polyq.affine.spec import Op, Spec, Tensor
from polyq.schedule.loopnest import Assign, Block, Buffer, Guard, Loop, LoopNest, Node, Scope, walk

D = Affine.dim


def random_spec(r: Random, symbolic: bool = False) -> Spec:
    """Return two to four ops over small boxes: maps, windows, triangles, sums, a scan now and then.

    With ``symbolic`` the parameter ``m`` is the extent of every dim that is not reduced.
    """
    n, k = Affine(r.randint(2, 4)), r.randint(2, 4)
    if symbolic:
        n = Affine.param("m")
    dtype = r.choice(["f32", "f32", "i32"])
    size = n + k
    extent = str(size) if symbolic else size.const
    x = Tensor("x", dtype, (extent, extent))
    tensors, ops, known = [x], [], ["x"]
    for number in range(r.randint(1, 3)):
        name = f"t{number}"
        tensors.append(Tensor(name, dtype, (extent, extent)))
        ops += _random_ops(r, name, known, n, k, dtype, size)
        known.append(name)
    outputs = [known[-1]] + ([known[-2]] if len(known) > 2 and r.random() < 0.2 else [])
    return Spec("random", tuple(tensors), tuple(ops), ("x",), tuple(outputs))


def _random_ops(r: Random, name: str, known: list[str], n: Affine, k: int, dtype: str, size: Affine) -> list[Op]:
    i, j, p = D("i"), D("j"), D("p")
    zero = Const(0 if dtype == "i32" else 0.0, dtype)
    fill = Op(f"{name}.init", ("a", "b"), (size, size), name, (D("a"), D("b")), zero)

    def load(index: tuple[Affine, Affine]) -> Load:
        return Load(r.choice(known), index, dtype)

    window = r.choice([0, 1])
    kind = r.choice(["map", "map", "sum", "sum2", "total", "triangle", "scan", "wave", "max"])
    where = (Constraint(i - j),) if kind == "triangle" else ()
    if kind in ("map", "triangle"):
        body: Scalar = apply("mul", load(r.choice([(i, j), (j, i), (i, j + window)])), load((i, j)))
        op = Op(name, ("i", "j"), (n, n), name, (i, j), body, None, where)
        return [fill, op]
    if kind == "scan":
        body = apply("add", Load(name, (i, j), dtype), load((i, j)))
        return [fill, Op(name, ("i", "j"), (n, n), name, (i, j + 1), body)]
    if kind == "wave":  # reads what it wrote one row up, one column right: the two dims cannot change places
        body = apply("add", Load(name, (i, j + 1), dtype), load((i, j)))
        return [fill, Op(name, ("i", "j"), (n, n), name, (i + 1, j), body)]
    if kind == "total":
        body = apply("mul", load((p, D("q"))), load((i, p)))
        return [fill, Op(name, ("i", "p", "q"), (n, Affine(k), Affine(2)), name, (i, Affine(0)), body, "+")]
    if kind == "sum2":
        body = apply("mul", load((i, p)), load((p, j)))
        op = Op(name, ("i", "j", "p"), (n, n, Affine(k)), name, (i, j), body, "+", where)
        return [fill, op]
    body = load(r.choice([(i, p), (p, i), (i, p + window)]))
    dims = r.choice([("i", "p"), ("p", "i")])
    extents = tuple(n if d == "i" else Affine(k) for d in dims)
    return [fill, Op(name, dims, extents, name, (i, Affine(0)), body, "max" if kind == "max" else "+")]


# ---- edits
Edit = Callable[[Random, LoopNest], "LoopNest | None"]


def rewrite(block: Block, change: Callable[[Node], Block | None]) -> Block:
    """Replace the nodes for which ``change`` returns something."""
    out: list[Node] = []
    for node in block:
        new = change(node)
        if new is not None:
            out += new
        else:
            out.append(node if isinstance(node, Assign) else replace(node, body=rewrite(node.body, change)))
    return tuple(out)


def substitute(block: Block, at: dict[str, Affine]) -> Block:
    """Replace loop variables everywhere."""

    def leaf(s: Scalar) -> Scalar:
        return replace(s, index=tuple(e.substitute(at) for e in s.index)) if isinstance(s, Load) else s

    def one(node: Node) -> Node:
        match node:
            case Loop():
                lower = tuple(e.substitute(at) for e in node.lower)
                upper = tuple(e.substitute(at) for e in node.upper)
                return replace(node, lower=lower, upper=upper, body=substitute(node.body, at))
            case Guard():
                cs = tuple(c.substitute(at) for c in node.constraints)
                return Guard(cs, substitute(node.body, at))
            case Scope():
                return replace(node, body=substitute(node.body, at))
            case Assign():
                return replace(
                    node,
                    instance=tuple(e.substitute(at) for e in node.instance),
                    index=tuple(e.substitute(at) for e in node.index),
                    value=map_scalar(node.value, leaf),
                )

    return tuple(one(n) for n in block)


def fresh(nest: LoopNest, stem: str) -> str:
    """Return a loop variable that does not occur yet."""
    taken = {n.var for n in walk(nest.body) if isinstance(n, Loop)}
    return next(f"{stem}{i}" for i in range(1000) if f"{stem}{i}" not in taken)


def _pick(r: Random, nest: LoopNest, test: Callable[[Node], bool]) -> Node | None:
    found = [n for n in walk(nest.body) if test(n)]
    return r.choice(found) if found else None


def _with(nest: LoopNest, old: Node, new: Block) -> LoopNest:
    return replace(nest, body=rewrite(nest.body, lambda n: new if n is old else None))


def interchange(r: Random, nest: LoopNest) -> LoopNest | None:
    """Swap a loop with the one loop inside it."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop) and len(n.body) == 1 and isinstance(n.body[0], Loop))
    if not isinstance(a, Loop) or not isinstance(b := a.body[0], Loop):
        return None
    if any(a.var in e.dims() for e in (*b.lower, *b.upper)):
        return None
    return _with(nest, a, (replace(b, body=(replace(a, body=b.body),)),))


def tile(r: Random, nest: LoopNest) -> LoopNest | None:
    """Split a loop into tiles of 2 or 3 (now and then without the tail's bound)."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop) and n.lower == (Affine(0),) and len(n.upper) == 1)
    if not isinstance(a, Loop):
        return None
    size, outer, inner = r.choice([2, 3]), fresh(nest, "o"), fresh(nest, "q")
    whole = D(outer) * size + D(inner)
    bounds = (Affine(size), a.upper[0] - D(outer) * size)[: 1 if r.random() < 0.15 else 2]
    body = substitute(a.body, {a.var: whole})
    loop = Loop(outer, (Affine(0),), ((a.upper[0] + size - 1) // size,), "serial",
                (Loop(inner, (Affine(0),), bounds, a.kind, body),))  # fmt: skip
    return _with(nest, a, (loop,))


def reverse(r: Random, nest: LoopNest) -> LoopNest | None:
    """Run a loop backwards."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop) and n.lower == (Affine(0),) and len(n.upper) == 1)
    if not isinstance(a, Loop):
        return None
    return _with(nest, a, (replace(a, body=substitute(a.body, {a.var: a.upper[0] - 1 - D(a.var)})),))


def fuse(r: Random, nest: LoopNest) -> LoopNest | None:
    """Merge two neighbours with equal bounds; now and then shift the second, or put it first."""
    places: list[tuple[Loop, Loop]] = []

    def look(block: Block) -> None:
        for a, b in pairwise(block):
            if isinstance(a, Loop) and isinstance(b, Loop):
                places.append((a, b))
        for n in block:
            if not isinstance(n, Assign):
                look(n.body)

    look(nest.body)
    if not places:
        return None
    a, b = r.choice(places)
    body = substitute(b.body, {b.var: D(a.var)})
    bounds = [Constraint(D(a.var) - e) for e in b.lower] + [Constraint(e - D(a.var) - 1) for e in b.upper]
    if (a.lower, a.upper) != (b.lower, b.upper):
        body = (Guard(tuple(bounds), body),)
        low = tuple(Affine(min(x.const, y.const)) for x, y in zip(a.lower, b.lower, strict=False))
        if not all(e.is_constant for e in (*a.lower, *a.upper, *b.lower, *b.upper)):
            return None
        high = (Affine(max(min(e.const for e in a.upper), min(e.const for e in b.upper))),)
        own = [Constraint(D(a.var) - e) for e in a.lower] + [Constraint(e - D(a.var) - 1) for e in a.upper]
        first: Block = (Guard(tuple(own), a.body),)
        merged = Loop(a.var, low, high, "serial", (*first, *body) if r.random() < 0.8 else (*body, *first))
    else:
        merged = replace(a, body=(*a.body, *body) if r.random() < 0.8 else (*body, *a.body))

    def change(block: Block) -> Block:
        out: list[Node] = []
        for n in block:
            if n is b:
                continue
            out.append(merged if n is a else n if isinstance(n, Assign) else replace(n, body=change(n.body)))
        return tuple(out)

    return replace(nest, body=change(nest.body))


def distribute(r: Random, nest: LoopNest) -> LoopNest | None:
    """Split a loop over several nodes into one loop each."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop) and len(n.body) > 1)
    if not isinstance(a, Loop):
        return None
    var = fresh(nest, "s")
    second = replace(a, var=var, body=substitute(a.body[1:], {a.var: D(var)}))
    return _with(nest, a, (replace(a, body=a.body[:1]), second))


def concurrent(r: Random, nest: LoopNest) -> LoopNest | None:
    """Mark a loop parallel or vector."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop) and n.kind == "serial")
    return None if not isinstance(a, Loop) else _with(nest, a, (replace(a, kind=r.choice(["parallel", "vector"])),))


def swap(r: Random, nest: LoopNest) -> LoopNest | None:
    """Exchange two neighbours."""
    a = _pick(r, nest, lambda n: not isinstance(n, Assign) and len(n.body) > 1)
    block = nest.body if a is None or r.random() < 0.5 else a.body  # type: ignore[union-attr]
    if len(block) < 2:
        return None
    at = r.randrange(len(block) - 1)
    new = (*block[:at], block[at + 1], block[at], *block[at + 2 :])
    return replace(nest, body=new) if block is nest.body else _with(nest, a, (replace(a, body=new),))  # type: ignore[arg-type]


def contract(r: Random, nest: LoopNest) -> LoopNest | None:
    """Put an intermediate tensor into scratch inside a loop that holds all its accesses, its subscripts modulo a size."""
    names = [b.name for b in nest.buffers if b.kind == "temp"]
    if not names or any(e.params() for b in nest.buffers for e in b.shape):
        return None
    name = r.choice(names)

    def uses(node: Node) -> bool:
        return isinstance(node, Assign) and (node.target == name or any(x.tensor == name for x in loads(node.value)))

    count = sum(uses(n) for n in walk(nest.body))
    holders = [n for n in walk(nest.body) if isinstance(n, Loop) and sum(uses(m) for m in walk(n.body)) == count]
    body = nest.body if not holders else r.choice(holders).body
    sizes = tuple(r.choice([s, s, s, s, max(1, s - 2), 2, 1]) for s in (b.const for b in nest.buffer(name).shape))

    def index(old: tuple[Affine, ...]) -> tuple[Affine, ...]:
        return tuple(e % s for e, s in zip(old, sizes, strict=True))

    def leaf(s: Scalar) -> Scalar:
        return replace(s, tensor="scr", index=index(s.index)) if isinstance(s, Load) and s.tensor == name else s

    def change(node: Node) -> Block | None:
        if not uses(node) or not isinstance(node, Assign):
            return None
        new = replace(node, value=map_scalar(node.value, leaf))
        return (replace(new, target="scr", index=index(node.index)) if node.target == name else new,)

    buffer = Buffer("scr", nest.buffer(name).dtype, tuple(map(Affine, sizes)), "scratch")
    if any(b.name == "scr" for b in nest.all_buffers()):
        return None
    new = (Scope((buffer,), rewrite(body, change)),)
    kept = replace(nest, buffers=tuple(b for b in nest.buffers if b.name != name))
    if body is nest.body:
        return replace(kept, body=new)
    holder = next(n for n in holders if n.body is body)
    return _with(kept, holder, (replace(holder, body=new),))


def drop_guard(r: Random, nest: LoopNest) -> LoopNest | None:
    """Forget a guard."""
    a = _pick(r, nest, lambda n: isinstance(n, Guard))
    return None if not isinstance(a, Guard) else _with(nest, a, a.body)


def duplicate(r: Random, nest: LoopNest) -> LoopNest | None:
    """Run a statement twice."""
    a = _pick(r, nest, lambda n: isinstance(n, Assign))
    return None if not isinstance(a, Assign) else _with(nest, a, (a, replace(a)))


def recompute(r: Random, nest: LoopNest) -> LoopNest | None:
    """Run a whole root nest twice, under other loop variables."""
    position = r.randrange(len(nest.body))
    node = nest.body[position]
    again: Block = (node,)
    for n in list(walk((node,))):
        if isinstance(n, Loop):
            var = fresh(replace(nest, body=(*nest.body, *again)), "u")
            again = rewrite(again, lambda m, n=n, var=var: (  # type: ignore[misc]
                replace(m, var=var, body=substitute(m.body, {n.var: D(var)})),
            ) if isinstance(m, Loop) and m.var == n.var else None)  # fmt: skip
    at = r.randint(position, len(nest.body))
    return replace(nest, body=(*nest.body[:at], *again, *nest.body[at:]))


def repeat(r: Random, nest: LoopNest) -> LoopNest | None:
    """Run a node in a loop of its own, which changes nothing for assignments and everything for sums."""
    a = _pick(r, nest, lambda n: isinstance(n, (Loop, Assign)))
    if a is None:
        return None
    return _with(nest, a, (Loop(fresh(nest, "z"), (Affine(0),), (Affine(2),), r.choice(["serial", "serial", "vector"]), (a,)),))


def shorten(r: Random, nest: LoopNest) -> LoopNest | None:
    """Skip the last iteration of a loop."""
    a = _pick(r, nest, lambda n: isinstance(n, Loop))
    return None if not isinstance(a, Loop) else _with(nest, a, (replace(a, upper=tuple(e - 1 for e in a.upper)),))


def shift_operand(r: Random, nest: LoopNest) -> LoopNest | None:
    """Read a neighbour's cell."""
    a = _pick(r, nest, lambda n: isinstance(n, Assign) and bool(loads(n.value)))
    if not isinstance(a, Assign):
        return None
    chosen = r.randrange(len(loads(a.value)))
    seen = iter(range(100))

    def leaf(s: Scalar) -> Scalar:
        if not isinstance(s, Load) or next(seen) != chosen:
            return s
        return replace(s, index=(s.index[1], s.index[0]) if r.random() < 0.5 else (s.index[0] + 1, s.index[1]))

    return _with(nest, a, (replace(a, value=map_scalar(a.value, leaf)),))


GOOD: tuple[Edit, ...] = (interchange, tile, fuse, reverse, distribute, concurrent, contract, recompute, repeat)
BAD: tuple[Edit, ...] = (drop_guard, duplicate, shorten, shift_operand, swap)
