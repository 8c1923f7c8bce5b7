"""The automatic schedule.

Results are taken one after another, last first. Each becomes the root of a group; what the group leaves out becomes a
root in turn. Nothing here looks for a known computation: choices come from how subscripts depend on dims, and from
counts. The certificate judges the outcome; if it were ever refused, the plain order would run, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, FloorDiv
from polyq.affine.fills import begins, fill_is_hidden, is_empty
from polyq.affine.numbering import Form
from polyq.affine.rewrite import inlinable
from polyq.affine.scalar import Apply, depth_of, walk
from polyq.affine.spec import Op, Spec
from polyq.schedule.alternatives import producers_of, weigh
from polyq.schedule.choices import NO_CHOICES, Decisions, decide, deciding
from polyq.schedule.cores import schedule_core
from polyq.schedule.dividing import divide_sum, rows_first
from polyq.schedule.draft import Draft, bounds_its_sum, plain_dim, size_of, typical, work_of
from polyq.schedule.forms import told
from polyq.schedule.groups import Group, group_of, without
from polyq.schedule.halos import schedule_chain
from polyq.schedule.legality import is_carried
from polyq.schedule.overlap import COSTLY, keeps
from polyq.schedule.panels import keeps_panel
from polyq.schedule.placing import place_producers
from polyq.schedule.quantized import multiplies_integers, quantize_activations
from polyq.schedule.rows import schedule_dots, schedule_plain, schedule_rows, schedule_total
from polyq.schedule.scans import schedule_scan
from polyq.schedule.schedule import Schedule
from polyq.schedule.sums import hoist
from polyq.schedule.target import Target

__all__ = ["automatic", "checked", "choose", "choose_numbered", "weighed"]

#: how large a body may get by computing temporaries where they are read (it doubles where a value is used twice), and
#: how deep: every walk over a body is a recursion
MOST_NODES, MOST_DEPTH = 512, 128


def automatic(
    spec: Spec, numerics: str, target: str, constants: frozenset[str], sizes: Mapping[str, int],
    choices: Mapping[str, str] = NO_CHOICES,
) -> Schedule:  # fmt: skip
    """Return the schedule that the counts favour, with its certificate.

    ``constants`` are inputs whose layout is free; ``sizes`` are typical values of parameters; ``choices`` are made as
    they say, whatever the counts (:mod:`polyq.schedule.choices`; in the names of the numbered form).
    """
    return checked(choose(spec, numerics, target, constants, sizes, choices))


def choose(
    spec: Spec, numerics: str, target: str, constants: frozenset[str], sizes: Mapping[str, int],
    choices: Mapping[str, str] = NO_CHOICES,
) -> Schedule:  # fmt: skip
    """Return the schedule that the counts favour, unproven: for a caller that has work to do beside the proof.

    It is chosen for the numbered form, so that texts of one program get one schedule.
    """
    form = Form.of(spec)
    if form is not None:
        return told(form, spec, choose_numbered(form, numerics, target, constants, sizes, choices))
    return _as_forced(*weighed(spec, numerics, target, constants, sizes, choices))


def choose_numbered(
    form: Form, numerics: str, target: str, constants: frozenset[str], sizes: Mapping[str, int],
    choices: Mapping[str, str] = NO_CHOICES,
) -> Schedule:  # fmt: skip
    """Return the schedule of a numbered form; constants and sizes by the caller's names."""
    bound = frozenset(form.renaming.numbered(name, "T") for name in constants)
    known = {form.renaming.numbered(name, "P"): size for name, size in sizes.items()}
    return _as_forced(*weighed(form.spec, numerics, target, bound, known, choices))


def weighed(
    spec: Spec, numerics: str, target: str, constants: frozenset[str], sizes: Mapping[str, int],
    choices: Mapping[str, str] = NO_CHOICES,
) -> tuple[Schedule, Decisions]:  # fmt: skip
    """Return the schedule of a program in its own names, unproven, and what was decided on the way."""
    with deciding(choices) as made, typical(sizes):
        return _chosen(spec, numerics, target, constants), made


def _as_forced(schedule: Schedule, made: Decisions) -> Schedule:
    if made.unmet:
        raise ScheduleError("choices that cannot be made: " + "; ".join(made.unmet))
    return schedule


def _chosen(spec: Spec, numerics: str, target: str, constants: frozenset[str]) -> Schedule:
    draft = Draft(spec, numerics, Target.named(target), constants)
    if empty := drop_empties(draft):
        why = f"the program is run as it is written: {empty.target} has no element, so there is little to be saved"
        return replace(Schedule.naive(spec, numerics, target), notes=(why,))
    shift_boxes(draft)
    quantize_activations(draft)
    producers = producers_of(draft.spec)
    inline_producers(draft)
    separate_groups(draft)
    handled: set[str] = set()
    while (op := _next(draft.spec, handled)) is not None:
        point = draft.save()
        try:
            done = _schedule_result(draft, op, handled)
        except ScheduleError as error:
            draft.restore(point)
            draft.note(f"{op.target}: kept plain ({str(error).splitlines()[0]})")
            done = {o.name for o in draft.spec.writers(op.target)}
            _plain(draft, op.target)
        if not done - handled:
            raise AssertionError(f"the automatic schedule does not get past {op.name}")
        handled |= done | {s.op for s in draft.plan.stages if s.at is not None or s.kinds}
    place_producers(draft)
    plain = "every statement on its own, in the order of the program, with lanes and threads where nothing is carried"
    made = Schedule(spec, numerics, target, tuple(draft.directives), tuple(draft.notes) or (plain,))
    return weigh(made, producers)


def checked(made: Schedule, shown: Callable[[str], str] = str) -> Schedule:
    """Return a schedule whose certificate holds: the given one, else the plain order, with a warning.

    ``shown`` turns the warning into the caller's names.
    """
    certificate = made.certificate()
    if certificate.ok:
        return made
    text = (
        f"the automatic schedule of {made.spec.name} was refused by its certificate; "
        f"the plain order runs instead: {certificate}"
    )
    warnings.warn(shown(text), RuntimeWarning, stacklevel=3)
    return replace(Schedule.naive(made.spec, made.numerics, made.target), notes=(text,))


def _next(spec: Spec, handled: set[str]) -> Op | None:
    return next((op for op in reversed(spec.ops) if op.name not in handled), None)


# ---- before any loop is moved
def drop_empties(draft: Draft) -> Op | None:
    """Leave out statements that have no instance; return one that has to stay, since nothing else writes its tensor."""
    for op in filter(is_empty, draft.spec.ops):
        if len(draft.spec.writers(op.target)) == 1:
            return op
        draft.do("drop_empty", op=op.name)
        draft.note(f"{op.name}: left out, since it has no instance")
    return None


def shift_boxes(draft: Draft) -> None:
    """Let every box begin at 0, so that lanes fit, and let fills leave out what is assigned afterwards."""
    for op in draft.spec.ops:
        if begins(op):
            draft.do("shift", op=op.name)
    for op in draft.spec.ops:
        if not isinstance(fill_is_hidden(draft.spec, op.name), str):
            draft.do("trim_fill", op=op.name)
            draft.note(f"{op.target}: filled only where no later statement assigns it")


def inline_producers(draft: Draft) -> None:
    """Inline temporaries that are cheap to compute, or read once a cell."""
    for tensor in [t.name for t in draft.spec.temporaries]:
        writer = inlinable(draft.spec, tensor)
        if isinstance(writer, str) or tensor in draft.quantized or keeps(draft.spec, tensor, draft.target):
            continue
        if _outgrows(draft.spec, writer):
            draft.note(f"{tensor}: kept, since the body of a reader that computes it would get too large or too deep")
            continue
        shared = 0 if draft.quantized else keeps_panel(draft, writer)
        if shared and decide(f"place of {tensor}", ("a panel at a time", "where it is read"), (True, False)):
            draft.kept.add(tensor)
            draft.note(f"{tensor}: kept, a panel at a time, since {shared} rows share what is computed from codes")
            continue
        cells, reads = work_of(writer), 0
        for op in draft.spec.readers(tensor):
            reads += work_of(op) * sum(r.tensor == tensor for r in op.reads)
        factor = reads / max(cells, 1)
        costly = sum(isinstance(n, Apply) and n.fn in COSTLY for n in walk(writer.body))
        inlined = factor <= 1 or not costly
        options = ("where it is read", "stored") if inlined else ("stored", "where it is read")
        if decide(f"copies of {tensor}", options, (inlined, not inlined)):
            assumed = _assumed(draft.spec, writer, tensor)
            draft.do("inline", tensor=tensor)
            draft.note(
                f"{tensor}: computed where it is read, {_times(factor)} a cell{assumed}; "
                f"storing it would move {cells} cells twice"
            )
        else:
            draft.note(
                f"{tensor}: kept, since each cell is read {_times(factor)} and costs {costly} divisions or functions",
                [f"computed where it is read: {reads} times in all, not {cells}{_assumed(draft.spec, writer, tensor)}"],
            )


def _outgrows(spec: Spec, writer: Op) -> bool:
    """Whether a body that computes what ``writer`` writes where it is read gets too large, or too deep."""
    nodes, depth = sum(1 for _ in walk(writer.body)), depth_of(writer.body)
    for op in spec.readers(writer.target):
        uses = sum(r.tensor == writer.target for r in op.reads)
        whole = sum(1 for _ in walk(op.body)) + uses * (nodes - 1)
        if whole > MOST_NODES or depth_of(op.body) + depth > MOST_DEPTH:
            return True
    return False


def _times(factor: float) -> str:
    return "once" if factor == 1 else "twice" if factor == 2 else f"{factor:g} times"


def _assumed(spec: Spec, writer: Op, tensor: str) -> str:
    """Say what unknown sizes were counted as, where there are some."""
    ops = (writer, *spec.readers(tensor))
    unknown = sorted({p for op in ops for e in op.extents for p in e.params()})
    counted = ", ".join(f"{p} counted as {size_of(Affine.param(p))}" for p in unknown)
    return f" (with {counted})" if unknown else ""


def separate_groups(draft: Draft) -> None:
    """Split reduced dims at the floor divisions of their subscripts, so that a factor is constant over a group."""
    for op in draft.spec.ops:
        for dim in op.reduced if op.reduce is not None else ():
            sizes = sorted(_divisors(op, dim))
            if len(sizes) == 1 and 1 < sizes[0] < size_of(op.extent(dim)):
                draft.do("split_dim", op=op.name, dim=dim, factor=sizes[0])
                draft.note(f"{op.name}: {dim} split at {sizes[0]}, since subscripts divide it by that")


def _divisors(op: Op, dim: str) -> set[int]:
    found: set[int] = set()
    for load in op.reads:
        for e in load.index:
            found |= {a.divisor for a, _ in e.terms if isinstance(a, FloorDiv) and plain_dim(a.numerator) == dim}
    return found


# ---- one result
def _schedule_result(draft: Draft, op: Op, handled: set[str]) -> set[str]:
    """Schedule what computes ``op.target``; return the ops that are settled."""
    rows_first(draft, op.target)
    divide_sum(draft, op.target)
    writers = draft.spec.writers(op.target)
    if op.target not in draft.private and _simple(writers) and any(o.reduce is not None for o in writers):
        before = {t.name for t in draft.spec.all_tensors}
        draft.do("accumulate", tensor=op.target)
        draft.private |= {t.name for t in draft.spec.all_tensors} - before
    root = draft.spec.writers(op.target)[-1]
    settled = handled | {s.op for s in draft.plan.stages if s.kinds}
    free = frozenset(t.name for t in draft.spec.temporaries) - {o.target for o in draft.spec.ops if o.name in settled}
    if chained := schedule_chain(draft, root, free):
        others = [o for o in draft.spec.writers(op.target) if o.name != root.name]
        for other in others:
            schedule_plain(draft, other)
        return {*chained, *(o.name for o in others)}
    if (
        not _simple((root,))
        or len(draft.spec.writers(op.target)) > 1
        or any(r.tensor == root.target for r in root.reads)
    ):
        _plain(draft, op.target)
        return {o.name for o in draft.spec.writers(op.target)}
    group = _together(draft, root, group_of(draft.spec, root, free))
    _dispatch(draft, root, group)
    return {root.name, *(name for m in group.members for name in m.ops)}


def _together(draft: Draft, root: Op, group: Group) -> Group:
    """Decide what of a group is computed inside of its root; copies made to accumulate in always are."""
    for member in group.members:
        options = ("inside", "before it")
        if member.tensor not in draft.private and decide(
            f"place of {member.tensor} in {root.name}", options, (False, True)
        ):
            group = without(draft.spec, root, group, member.tensor)
    return group


def _simple(writers: tuple[Op, ...]) -> bool:
    """Whether every writer's subscripts are distinct dims, over a box, and none reads the target."""
    for op in writers:
        dims = [plain_dim(e) for e in op.index]
        part = bool(op.where) and not bounds_its_sum(op)
        if None in dims or len(set(dims)) != len(dims) or part or any(r.tensor == op.target for r in op.reads):
            return False
        if op.reduce is None and len(dims) != len(op.dims):
            return False
    return True


def _dispatch(draft: Draft, root: Op, group: Group) -> None:
    whole = frozenset(root.dims)
    updates = [draft.spec.op(o) for m in group.members if m.level == whole for o in m.ops]
    if any(o.reduce is not None for o in updates):
        schedule_core(draft, root, group)
    elif group.members:
        schedule_rows(draft, root, group)
    else:
        schedule_plain(draft, root)


def _plain(draft: Draft, tensor: str) -> None:
    """Keep the order of the program, and use lanes and threads where no dependence is carried."""
    for op in draft.spec.writers(tensor):
        if multiplies_integers(op):
            hoist(draft, op.name)
    for op in draft.spec.writers(tensor):
        free = frozenset(d for d in op.dims if size_of(op.extent(d)) > 1 and not is_carried(draft.spec, op.name, d))
        if schedule_scan(draft, op):
            continue
        point = draft.save()
        try:
            if schedule_total(draft, op) or schedule_dots(draft, op, free):
                continue
        except ScheduleError as error:
            draft.restore(point)
            draft.note(f"{op.target}: no lanes along its sum ({str(error).splitlines()[0]})")
        schedule_plain(draft, draft.spec.op(op.name), free)
