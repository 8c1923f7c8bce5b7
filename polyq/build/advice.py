"""What a plan is asked for, and what tuning advises: choices for the scheduler, given or from the database."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyq.affine.naming import Renaming
from polyq.affine.spec import Spec
from polyq.build import cache, tuned
from polyq.build.keys import canonical, memo_key
from polyq.build.sharing import Link
from polyq.build.tuned import Entry

if TYPE_CHECKING:  # a kernel from the cache does without
    from polyq.affine.numbering import Form
    from polyq.schedule import Schedule

__all__ = ["Advice", "Asked", "advice_on", "told"]


@dataclass(frozen=True, slots=True)
class Advice:
    """Choices to follow, and the entry of the database that they come from, if it is one."""

    choices: Mapping[str, str]
    entry: Entry | None = None

    def key(self, plan: str) -> str:
        """Return the key of the plan that is made with the choices; ``plan`` is that of the one without."""
        return cache.digest("choices", plan, sorted(self.choices.items())) if self.choices and plan else plan

    def warn(self, reason: str) -> None:
        """Say that the entry was not followed."""
        assert self.entry is not None
        warnings.warn(
            f"{self.entry.title}: the choices that were tuned for it do not apply, so those of the cost model were "
            f"made: {reason}; polyq.tune finds new ones",
            RuntimeWarning,
            stacklevel=4,
        )


def advice_on(problem: str, choices: Mapping[str, str] | None) -> Advice:
    """Return the given choices, else what the database holds for a problem on this CPU."""
    if choices is not None:
        return Advice(choices)
    entry = tuned.find(problem) if problem else None
    return Advice({} if entry is None else dict(entry.choices), entry)


def told(
    choices: tuple[tuple[str, str], ...], refused: str, entry: Entry | None, renaming: Renaming | None
) -> list[str]:
    """Say what tuning decided otherwise than the counts would have, or why its choices do not apply."""
    from polyq.schedule.explanation import noted

    names = renaming or Renaming({})
    if refused:
        return [names.text(f"tuned choices do not apply: {refused}")]
    return [] if entry is None else [noted(f"tuned: {entry}", [names.text(f"{d}: {o}") for d, o in choices])]


@dataclass(frozen=True, slots=True)
class Asked:
    """A spec and its numbered form (``None`` where names cannot be numbered), and the options of a schedule for it."""

    spec: Spec
    form: Form | None
    numerics: str
    target: str
    constants: tuple[str, ...]
    sizes: Mapping[str, int]

    @property
    def renaming(self) -> Renaming:
        """The way from the form's names to the caller's."""
        return Renaming({}) if self.form is None else self.form.renaming

    @property
    def bound(self) -> tuple[str, ...]:
        """The constants in the form's names, sorted."""
        return tuple(sorted(self.renaming.numbered(name, "T") for name in self.constants))

    @property
    def known(self) -> dict[str, int]:
        """The sizes in the form's names."""
        return {self.renaming.numbered(name, "P"): size for name, size in self.sizes.items()}

    def link(self, key: str | None) -> Link:
        """Return the keys of the plan and of its tuned choices; ``key`` is that of the text."""
        from polyq.schedule.forms import regrouped

        if self.form is None:  # the text stands for itself
            return Link(cache.digest("text", key or ""), self.renaming, (), self.problem())
        inner = memo_key(self.form.spec, self.numerics, self.target, self.bound, self.known)
        return Link(inner or "", self.renaming, regrouped(self.form), self.problem())

    def problem(self) -> str:
        """Return the key of its tuned choices, empty for a program without a canonical text."""
        try:
            text = canonical(self.spec if self.form is None else self.form.spec)
        except TypeError:
            return ""
        return tuned.problem_key(text, self.numerics, self.target, self.bound, self.known)

    def chosen(self, choices: Mapping[str, str]) -> Schedule:
        """Return the schedule, unproven, in the names of the form."""
        from polyq.schedule.auto import choose, choose_numbered

        constants = frozenset(self.constants)
        if self.form is None:
            return choose(self.spec, self.numerics, self.target, constants, self.sizes, choices)
        return choose_numbered(self.form, self.numerics, self.target, constants, self.sizes, choices)
