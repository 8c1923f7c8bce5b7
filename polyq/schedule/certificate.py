"""The certificate: proof that a loop nest computes its spec, read back from the nest itself.

Checks, each with its own verdict, time and witness: the nest's buffers are the spec's tensors; every instance is one
of the spec's; each body is the op's body; every subscript lies in its buffer; every read gets the value of the same
source as in the spec and nothing unwritten; reductions whose order is free take every term exactly once; iterations
of parallel and vector loops share no cell that one of them writes. Sizes stay symbolic: one certificate holds for every
value of the parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from polyq.affine.expr import Constraint
from polyq.affine.html import Html, page, pill, table, tag
from polyq.affine.proofs import prove
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, format_scalar, loads, substitute_dims
from polyq.affine.sets import SearchLimit, limited
from polyq.affine.spec import Spec
from polyq.affine.unrounded import unrounded
from polyq.schedule.dataflow import compare, forget, nest_flow, original_flow
from polyq.schedule.legality import OPERATIONS, out_of_bounds, races
from polyq.schedule.loopnest import LoopNest
from polyq.schedule.naive import tensor_buffers
from polyq.schedule.numerics import INTEGER
from polyq.schedule.prologue import prologue_problem
from polyq.schedule.readback import Program, Statement, read_back
from polyq.schedule.reductions import check_reductions
from polyq.schedule.shares import shared_problem
from polyq.schedule.witness import Violation, mark

__all__ = ["OPERATIONS", "Certificate", "Check", "certify", "rewrites"]


@dataclass(frozen=True, slots=True)
class Check:
    """One property: ``violation`` is ``None`` where it was proven, ``seconds`` is how long that took."""

    name: str
    violation: Violation | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the property holds."""
        return self.violation is None


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdict on one nest. ``verify`` computes it afresh from the spec and the nest that it holds.

    ``spec`` is what the nest computes; ``original`` is the user's spec, where rewrites lie between the two.
    """

    spec: Spec
    nest: LoopNest
    numerics: str
    checks: tuple[Check, ...]
    original: Spec | None = None

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(c.ok for c in self.checks)

    @property
    def violation(self) -> Violation | None:
        """The first reason for a refusal."""
        return next((c.violation for c in self.checks if c.violation is not None), None)

    @property
    def seconds(self) -> float:
        """How long all checks took."""
        return sum(c.seconds for c in self.checks)

    def verify(self) -> bool:
        """Check again, from nothing but the spec, the nest and the numerics."""
        forget()
        return certify(self.spec, self.nest, self.numerics, self.original).ok

    def __str__(self) -> str:
        if self.ok:
            names = ", ".join(c.name for c in self.checks)
            return f"proven in {1000 * self.seconds:.0f} ms: {names} ({self.numerics})"
        return f"REFUSED\n{self.violation}"

    def _repr_html_(self) -> str:
        verdict = pill("proven", "good") if self.ok else pill("refused", "bad")
        about = (verdict, pill(f"numerics {self.numerics}"), pill(f"{1000 * self.seconds:.0f} ms"))
        rows = [(c.name, _verdict(c), f"{1000 * c.seconds:.1f} ms") for c in self.checks]
        found = () if self.violation is None else (tag("p", self.violation.headline), self.violation.html())
        return page("certificate", self.spec.name, table(("check", "verdict", "time"), rows), *found, pills=about)


def _verdict(check: Check) -> Html:
    return tag("span", "holds", style="good") if check.ok else tag("span", "does not hold", style="bad")


def certify(spec: Spec, nest: LoopNest, numerics: str = "reassoc", original: Spec | None = None) -> Certificate:
    """Prove that ``nest`` computes ``spec``: for every value of the parameters, under any number of threads.

    With ``original``, that the rewrites from it to ``spec`` keep its meaning is shown as well, by exact evaluation of
    cells of the results at random points of a field (:mod:`polyq.affine.proofs`).

    ``"strict"`` keeps the order of inexact reductions. Whatever is wrong with the nest, the result says so with a
    witness; nothing is raised.
    """
    checks: list[Check] = []
    start = time.perf_counter()
    try:
        program = read_back(nest)
        problem = next(_buffers(spec, program), None)
    except (ValueError, KeyError) as error:
        problem, program = Violation("buffer", str(error), nest=str(nest)), None
    checks.append(Check("buffers", problem, time.perf_counter() - start))
    if program is None or problem is not None:
        return Certificate(spec, nest, numerics, tuple(checks), original)
    if original is not None and original != spec:
        checks.append(rewrites(original, spec, numerics=numerics))
    for name, find in _searches(spec, program, numerics):
        start = time.perf_counter()
        try:
            with limited(OPERATIONS):
                found = next(find(), None)
        except SearchLimit as error:
            found = Violation("limit", f"not proven: {error}; legality.OPERATIONS sets the limit", nest=str(nest))
        checks.append(Check(name, found, time.perf_counter() - start))
        if found is not None:
            break
    return Certificate(spec, nest, numerics, tuple(checks), original)


def rewrites(original: Spec, spec: Spec, name: str = "rewrites", numerics: str = "reassoc") -> Check:
    """Compare the user's spec with the rewritten one; where no cell could be evaluated, the check's name says so.

    Roundings to integers are left out of the comparison: what they may be off by is a matter of the error bound.
    """
    proof = prove(original, unrounded(spec) if numerics in INTEGER else spec)
    found = None
    if proof.difference is not None:
        found = Violation("rewrite", f"the rewritten program computes something else: {proof.difference}")
    name = f"{name} but for roundings" if numerics in INTEGER else name
    left = f" (but for {', '.join(name for name, _ in proof.skipped)}: too large to evaluate)" if proof.skipped else ""
    return Check(f"{name}{left}", found, proof.seconds)


def _searches(spec: Spec, program: Program, numerics: str) -> Iterator[tuple[str, Callable[[], Iterator[Violation]]]]:
    """Yield the checks, cheap ones first; the flow is computed inside the check that needs it first."""
    yield "bodies", partial(_bodies, spec, program)
    yield "bounds", partial(out_of_bounds, spec, program)
    yield "concurrency", partial(races, spec, program)

    def flows() -> Iterator[Violation]:
        again, flow = nest_flow(program.nest)
        original = original_flow(spec, numerics == "strict")
        yield from compare(spec, again, flow, original)
        yield from check_reductions(spec, again, flow, original)

    yield "dataflow", flows


# ---- buffers and bodies
def _buffers(spec: Spec, program: Program) -> Iterator[Violation]:
    """Inputs and outputs are there as declared, inputs are not written, scratch has a constant size."""
    nest = program.nest
    if not {*nest.params} <= {*spec.params}:
        yield Violation("buffer", f"the spec has the parameters {spec.params}, the nest {nest.params}", nest=str(nest))
    have = {b.name: b for b in nest.buffers}
    for wanted in tensor_buffers(spec):
        if wanted.kind != "temp" and have.get(wanted.name) != wanted:
            got = have.get(wanted.name, "nothing")
            yield Violation("buffer", f"{wanted.name}: expected {wanted}, got {got}", nest=str(nest))
    for storage in program.storages:
        b = storage.buffer
        if (storage.key == b.name and b.kind == "scratch") or (storage.key != b.name and b.kind != "scratch"):
            text = f"{b.name}: {b.kind} in the wrong place; scratch belongs to a scope, and nothing else does"
            yield Violation("buffer", text, nest=str(nest))
        if b.kind == "scratch" and not all(e.is_constant for e in b.shape):
            shape = ", ".join(map(str, b.shape))
            yield Violation("buffer", f"scratch {b.name}[{shape}] has no constant size", nest=str(nest))
    problem = prologue_problem(nest) or shared_problem(program)
    if problem is not None:
        yield Violation("buffer", problem, nest=str(nest))
    for position, s in enumerate(program.statements):
        if s.target.buffer.kind == "input":
            where = mark(nest, statement=position + 1)
            yield Violation("buffer", f"the input {s.target.buffer.name} is written", nest=where)


def _bodies(spec: Spec, program: Program) -> Iterator[Violation]:
    """Every assignment computes what its op computes, from loads in the same order."""
    for position, s in enumerate(program.statements):
        problem = _body(spec, s)
        if problem is not None:
            yield Violation("body", problem, nest=mark(program.nest, statement=position + 1))


def _body(spec: Spec, s: Statement) -> str | None:
    node = s.assign
    for load, storage in zip(loads(node.value), s.storages, strict=False):
        if load.dtype != storage.buffer.dtype:
            return f"{node.op}: loads {load.dtype} from {load.tensor}, which holds {storage.buffer.dtype}"
    if not node.op:
        if not isinstance(node.value, Load) or node.reduce or node.value.dtype != s.target.buffer.dtype:
            return f"a copy must be a plain load of the same dtype, got {format_scalar(node.value)}"
        return None
    if node.op not in {o.name for o in spec.ops}:
        return f"the spec has no op {node.op!r}"
    op = spec.op(node.op)
    if len(node.instance) != len(op.dims):
        return f"{op.name}: the instance has {len(node.instance)} values for the dims {', '.join(op.dims)}"
    dtype = spec.tensor(op.target).dtype
    if s.target.buffer.dtype != dtype:
        return f"{op.name}: {s.target.buffer.name} holds {s.target.buffer.dtype}, the spec's {op.target} {dtype}"
    if node.reduce != op.reduce:
        return f"{op.name}: the spec combines by {op.reduce or '='}, the nest by {node.reduce or '='}"
    wanted = substitute_dims(op.body, dict(zip(op.dims, node.instance, strict=True)))
    if not _equal(wanted, node.value, s):
        return f"{op.name}: the spec computes {format_scalar(wanted)}, the nest {format_scalar(node.value)}"
    return None


def _equal(wanted: Scalar, got: Scalar, s: Statement) -> bool:
    """Whether two bodies are equal but for where they load from (which the dataflow compares)."""
    match wanted, got:
        case Const(), Const():
            return repr(wanted) == repr(got)  # tells -0.0 from 0.0, and 1 from True
        case Load(), Load():
            return wanted.dtype == got.dtype
        case Index(), Index():
            same = wanted.expr == got.expr or s.domain.implies(Constraint(wanted.expr - got.expr, equality=True))
            return wanted.dtype == got.dtype and same
        case Cast(), Cast():
            return wanted.dtype == got.dtype and _equal(wanted.arg, got.arg, s)
        case Apply(), Apply():
            return (
                (wanted.fn, wanted.dtype, len(wanted.args)) == (got.fn, got.dtype, len(got.args))
                and all(_equal(a, b, s) for a, b in zip(wanted.args, got.args, strict=True))
            )  # fmt: skip
        case _:
            return False
