"""The schedule: a spec, the numerics it is made for, a target, and the list of directives that made it.

A :class:`Schedule` is a value. Every transform returns a new one or raises :class:`ScheduleError` and leaves the old
one as it was. What is derived (the plan, the loop nest, the certificate) is computed from the directives when asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.html import folded, page, pill, verbatim
from polyq.affine.layout import Layout
from polyq.affine.record import Record
from polyq.affine.spec import Spec
from polyq.affine.unsigned import bits_as_read
from polyq.schedule.certificate import Certificate, certify
from polyq.schedule.display import loop_tree, tree_of, tree_page
from polyq.schedule.explanation import Explanation
from polyq.schedule.legality import check_order
from polyq.schedule.loopnest import LoopNest
from polyq.schedule.lower import lower
from polyq.schedule.numerics import INTEGER, NUMERICS
from polyq.schedule.stages import Plan
from polyq.schedule.storage import pack, pack_record
from polyq.schedule.target import Target
from polyq.schedule.transforms import TRANSFORMS, changes_rounding

__all__ = ["NUMERICS", "Directive", "Schedule"]

_MARKS = {"vector": "vectorize", "unroll": "unroll", "parallel": "parallel", "serial": "serial"}


@dataclass(frozen=True, slots=True)
class Directive:
    """One transform with its arguments; prints as the call that makes it, affine expressions as text.

    >>> print(Directive("mark", (("op", "y"), ("axis", "i"), ("kind", "vector"))))
    .vectorize(op='y', axis='i')
    """

    transform: str
    arguments: tuple[tuple[str, Any], ...]

    def apply(self, plan: Plan) -> Plan:
        """Return the plan after this directive."""
        return TRANSFORMS[self.transform](plan, **dict(self.arguments))

    def __str__(self) -> str:
        name, arguments = self.transform, dict(self.arguments)
        if name == "mark" and arguments.get("kind") in _MARKS:
            name = _MARKS[arguments.pop("kind")]
        return f".{name}({', '.join(f'{k}={_written(v)}' for k, v in arguments.items())})"


def _names(value: Any) -> Any:
    """Return a list as a tuple, which a directive can keep; what is none is refused by the transform."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        entries = [_written(v) for v in cast("tuple[Any, ...]", value)]
        return f"({', '.join(entries)}{',' * (len(entries) == 1)})"
    return repr(str(value) if isinstance(value, Affine | Constraint) else value)


@dataclass(frozen=True)
class Schedule:
    """How a spec is computed.

    Make one by :meth:`naive` or :meth:`auto` and change it by its methods; each checks that the result still computes
    the same, and refuses otherwise, with a witness.
    """

    spec: Spec
    numerics: str = "reassoc"
    target: str = "native"
    directives: tuple[Directive, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.spec, Spec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"expected a Spec to schedule (polyq.parse(...)), got {type(self.spec).__qualname__}")
        if self.numerics not in NUMERICS:
            known = ", ".join(map(repr, NUMERICS))
            raise ScheduleError(f"numerics={self.numerics!r} is not there; choose one of {known}")
        Target.named(self.target)

    @staticmethod
    def naive(spec: Spec, numerics: str = "reassoc", target: str = "native") -> Schedule:
        """Return the schedule that runs one op after another, each in the order of its dims.

        Under integer numerics it begins with the rewrites that these are.
        """
        made = Schedule(spec, numerics, target)
        if numerics not in INTEGER:
            return made
        from polyq.schedule.quantized import in_order  # it builds schedules

        return in_order(made)

    @staticmethod
    def auto(
        spec: Spec,
        numerics: str = "reassoc",
        target: str = "native",
        constants: Sequence[str] = (),
        sizes: Mapping[str, int] | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> Schedule:
        """Return the schedule that the cost model chooses; :meth:`explain` says why.

        ``constants`` are inputs that will be bound: they may be prepared in another layout. ``sizes`` are typical
        values of parameters, for which the schedule is made fast; it is right for all values. ``choices`` are decisions
        that ``polyq.tune`` found to be better made otherwise: :class:`ScheduleError` for one that does not come up.
        """
        from polyq.schedule.auto import automatic  # it builds schedules

        plain = Schedule(spec, numerics, target)  # refuses what is none
        return automatic(plain.spec, numerics, target, frozenset(constants), sizes or {}, choices or {})

    # ---- derived
    @cached_property
    def plan(self) -> Plan:
        """The rewritten spec and the stage of each op."""
        plan = Plan.of(self.spec)
        for directive in self.directives:
            plan = directive.apply(plan)
        return plan

    @cached_property
    def nest(self) -> LoopNest:
        """The loop nest."""
        return lower(self.plan)

    @cached_property
    def machine(self) -> Target:
        """The target that ``target`` names."""
        return Target.named(self.target)

    def certificate(self) -> Certificate:
        """Prove the loop nest against the rewritten spec (once; ``verify()`` on the result proves it again)."""
        return self._certificate

    @cached_property
    def _certificate(self) -> Certificate:
        return certify(self.plan.spec, self.nest, self.numerics, bits_as_read(self.spec))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("spec", "numerics", "target", "directives", "notes")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def with_notes(self, notes: Sequence[str]) -> Schedule:
        """Return the same schedule with other notes, and with what has been derived from it so far."""
        made = replace(self, notes=tuple(notes))
        made.__dict__.update({name: self.__dict__[name] for name in ("plan", "nest") if name in self.__dict__})
        return made

    # ---- transforms
    def then(self, *directives: Directive) -> Schedule:
        """Return the schedule with directives added, unchecked: the certificate of the whole comes later."""
        for d in directives:
            self._allowed(d)
        return replace(self, directives=(*self.directives, *directives))

    def _allowed(self, directive: Directive) -> None:
        if self.numerics != "strict":
            return
        if changes_rounding(self.plan.spec, directive.transform, dict(directive.arguments)):
            raise ScheduleError(
                f"{directive}: it changes the rounding of a float sum, which numerics='strict' does not allow; "
                "make the schedule with numerics='reassoc'"
            )

    def _with(self, transform: str, **arguments: Any) -> Schedule:
        given = tuple((k, v) for k, v in arguments.items() if v is not None)
        directive = Directive(transform, given)
        made = self.then(directive)
        violation = check_order(made.plan.spec, made.nest, self.numerics)
        if violation is not None:
            raise ScheduleError(f"{directive} is not legal: {violation}", violation)
        return made

    def split(self, op: str, axis: str, factor: int, outer: str | None = None, inner: str | None = None) -> Schedule:
        """Replace an axis by an outer and an inner one.

        rewrite: ``for k`` -> ``for ko: for ki`` with ``k = factor*ko + ki``
        """
        return self._with("split", op=op, axis=axis, factor=factor, outer=outer, inner=inner)

    def tile(self, op: str, sizes: Mapping[str, int] | None = None, **named: int) -> Schedule:
        """Split several axes and bring the tile's axes inside.

        rewrite: ``for i: for j`` -> ``for io: for jo: for ii: for ji`` with sizes ``{"i": .., "j": ..}``
        """
        if sizes is not None and not isinstance(sizes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"tile: sizes={sizes!r}: expected sizes by axis, such as {{'i': 8}}")
        sizes = {**(sizes or {}), **named}
        made = self
        outer = {axis: f"{axis}o" for axis in sizes}
        inner = {axis: f"{axis}i" for axis in sizes}
        order = self.plan.stage(op).order
        for axis, size in sizes.items():
            made = made.split(op, axis, size, outer[axis], inner[axis])
        first = [outer.get(a, a) for a in order]
        return made.reorder(op, [*(a for a in first), *(inner[a] for a in order if a in sizes)])

    def reorder(self, op: str, axes: Sequence[str]) -> Schedule:
        """Bring the named axes into this order, outermost first, at the places that they hold together."""
        return self._with("reorder", op=op, axes=_names(axes))

    def fuse(self, producer: str, into: str, at: str) -> Schedule:
        """Compute ``producer`` inside the axis ``at`` of ``into``: the tile that this iteration reads, in scratch."""
        return self._with("fuse", producer=producer, into=into, at=at)

    def unfuse(self, producer: str) -> Schedule:
        """Put a producer back in front of its readers."""
        return self._with("unfuse", producer=producer)

    def vectorize(self, op: str, axis: str, lanes: int | None = None) -> Schedule:
        """Run an axis as vector lanes; with ``lanes`` it is split first, and its tail is masked."""
        made = self
        if lanes is not None:
            inner = f"{axis}v"
            made, axis = self.split(op, axis, lanes, f"{axis}b", inner), inner
        return made._with("mark", op=op, axis=axis, kind="vector")

    def unroll(self, op: str, axis: str) -> Schedule:
        """Write out the iterations of an axis."""
        return self._with("mark", op=op, axis=axis, kind="unroll")

    def parallel(self, op: str, axis: str) -> Schedule:
        """Divide an axis among threads."""
        return self._with("mark", op=op, axis=axis, kind="parallel")

    def serial(self, op: str, axis: str) -> Schedule:
        """Make an axis a plain loop again."""
        return self._with("mark", op=op, axis=axis, kind="serial")

    def canonical(self) -> Schedule:
        """Bring the program into canonical form first: without reshapes and dims of extent 1."""
        return self._with("canonical")

    def inline(self, tensor: str) -> Schedule:
        """Compute a temporary where it is read."""
        return self._with("inline", tensor=tensor)

    def shift(self, op: str) -> Schedule:
        """Let dims of the op itself that ``where`` lets begin above 0 begin at 0, so that lanes and tiles fit."""
        return self._with("shift", op=op)

    def trim_fill(self, op: str) -> Schedule:
        """Let a fill leave out the box that a later op assigns before anybody reads it."""
        return self._with("trim_fill", op=op)

    def drop_empty(self, op: str) -> Schedule:
        """Leave out an op of which an extent is known to be 0; something else writes its tensor."""
        return self._with("drop_empty", op=op)

    def split_dim(self, op: str, dim: str, factor: int, outer: str | None = None, inner: str | None = None) -> Schedule:
        """Replace a dim of the op itself by two, for rewrites that need the parts apart."""
        return self._with("split_dim", op=op, dim=dim, factor=factor, outer=outer, inner=inner)

    def partial_sums(self, op: str, keep: Sequence[str]) -> Schedule:
        """Reduce in two steps; the partial results keep the dims ``keep``."""
        return self._with("partial_sums", op=op, keep=_names(keep))

    def factor(self, op: str, inner: Sequence[str]) -> Schedule:
        """Move factors that do not depend on ``inner`` out of the sum over ``inner``."""
        return self._with("factor", op=op, inner=_names(inner))

    def quantize(
        self, op: str, operand: str, inner: Sequence[str], numerics: str, dtype: str | None = None
    ) -> Schedule:
        """Round a float operand of a sum to integers, one step for each group of the dims ``inner``.

        ``dtype`` is the type of an element where it is not that of the mode ``numerics``.
        """
        inner = _names(inner)
        return self._with("quantize", op=op, operand=operand, inner=inner, numerics=numerics, dtype=dtype)

    def integers(self, op: str) -> Schedule:
        """Let a sum of products of integers, which are floats as yet, run in i32, which is proven to hold it."""
        return self._with("integers", op=op)

    def distribute(self, op: str) -> Schedule:
        """Give each term of a sum its own statement."""
        return self._with("distribute", op=op)

    def accumulate(self, tensor: str) -> Schedule:
        """Give a tensor's writers a private copy, which a tile can keep in registers."""
        return self._with("accumulate", tensor=tensor)

    def prefetch(self, tensor: str, ahead: int) -> Schedule:
        """Ask for cache lines of ``tensor`` ``ahead`` bytes early."""
        return self._with("prefetch", tensor=tensor, ahead=ahead)

    def stream(self, tensor: str) -> Schedule:
        """Store ``tensor`` past the cache."""
        return self._with("stream", tensor=tensor)

    def prepare(self, tensor: str) -> Schedule:
        """Compute a temporary once, when ``bind`` is given the inputs that it comes from."""
        return self._with("prepare", tensor=tensor)

    def share(self, tensors: Sequence[str]) -> Schedule:
        """Let prepared tensors of the same bytes in all lie in one buffer, of which each owns some."""
        return self._with("share", tensors=_names(tensors))

    def pack(
        self,
        tensor: str | Record,
        layout: Layout | None = None,
        *,
        bind: bool | None = None,
        through: Sequence[str] = (),
    ) -> Schedule:
        """Store a tensor in another layout, or the inputs that a record names in one buffer, which ``bind`` makes.

        The readers of an input read a packed copy. ``bind`` makes it once where it can (the kernel then needs that
        input bound), else every call does; ``bind=False`` asks for the latter, ``bind=True`` refuses it. A temporary is
        stored that way by its writers, whose loops follow the storage, at no pass of its own. An output is computed in
        the layout and copied out once. ``through`` names further tensors, to be laid out as ``tensor`` is where ops
        join them: see :func:`polyq.affine.relayout.carried`.

        rewrite: ``y[n] += w[n, k]`` -> ``w.packed[s0, s1, s2] = w[32*s0 + s1, s2]; y[n] += w.packed[n//32, n%32, k]``
        """
        if isinstance(tensor, Record):
            if layout is not None or through:
                raise ScheduleError("pack(record): a record has the layouts of its tensors; pass no other")
            return pack_record(self, tensor, bind)
        return pack(self, tensor, layout, bind, _names(through))

    def store_as(self, tensor: str, layout: Layout) -> Schedule:
        """Store a temporary in another layout, or let all readers of an input read a copy that has it."""
        return self._with("store_as", tensor=tensor, layout=layout)

    @property
    def constants(self) -> tuple[str, ...]:
        """The inputs that prepared tensors come from: a kernel of this schedule takes them by ``bind``."""
        spec, kept = self.plan.spec, self.plan.prepared
        read = {r.tensor for op in spec.ops if op.target in kept for r in op.reads}
        return tuple(name for name in spec.input_names if name in read)

    # ---- to look at
    def __str__(self) -> str:
        head = f"schedule of {self.spec.name}: numerics {self.numerics}, target {self.machine.name}"
        return f"{head}\n{loop_tree(self.nest, self.plan.spec)}"

    def __repr__(self) -> str:
        count = len(self.directives)
        made = f"{count} directive{'s' * (count != 1)}" if count else "in the order of the program"
        return f"<Schedule of {self.spec.name}: {made}, numerics {self.numerics}, target {self.target}>"

    def _repr_html_(self) -> str:
        tree = tree_page(tree_of(self.nest, self.plan.spec))
        pills = (pill(f"numerics {self.numerics}"), pill(f"target {self.machine.name}"))
        lines = "\n".join(map(str, self.directives))
        count = f"{len(self.directives)} directive{'s' * (len(self.directives) != 1)}"
        made = [folded(count, verbatim(lines))] if lines else []
        why = [folded("decisions", self.explain().html())] if self.notes else []
        return page("schedule", self.spec.name, tree, *why, *made, pills=pills)

    def explain(self) -> Explanation:
        """Return each decision with its counts, one a line: a string, which a notebook shows as a table."""
        made = "made by hand" if self.directives else "nothing was decided: each op runs in the order of the program"
        return Explanation("\n".join(self.notes or (made + ":" * bool(self.directives), *map(str, self.directives))))
