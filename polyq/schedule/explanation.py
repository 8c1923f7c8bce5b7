"""What was decided and why: text that a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyq.affine.html import Html, code, join, page, table, tag

__all__ = ["Decision", "Explanation", "noted"]

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: what it is about, what was decided, and what else was weighed, with its counts."""

    subject: str
    text: str
    weighed: tuple[str, ...] = ()


def noted(text: str, weighed: Sequence[str] = ()) -> str:
    """Return a decision as text, with one further line for each alternative.

    >>> print(noted("d: computed where it is read", ["stored: 12 cells are written and read"]))
    d: computed where it is read
        stored: 12 cells are written and read
    """
    return "\n".join([text, *(_INDENT + w for w in weighed)])


class Explanation(str):
    """The decisions of a schedule, one a line, alternatives indented below; a string, and in a notebook a table.

    >>> made = Explanation(noted("d: computed where it is read, twice a cell", ["stored: 12 cells"]))
    >>> made.decisions
    (Decision(subject='d', text='computed where it is read, twice a cell', weighed=('stored: 12 cells',)),)
    """

    __slots__ = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions as data."""
        return tuple(self._read())

    def _read(self) -> Iterator[Decision]:
        blocks: list[list[str]] = []
        for line in self.splitlines():
            if line.startswith(_INDENT) and blocks:
                blocks[-1].append(line[len(_INDENT) :])
            else:
                blocks.append([line])
        for first, *weighed in blocks:
            subject, colon, text = first.partition(": ")
            plain = not colon or " " in subject  # a sentence, or a call of a transform
            yield Decision("" if plain else subject, first if plain else text, tuple(weighed))

    def html(self) -> Html:
        """Return the table alone."""
        rows = [(code(d.subject, "name") if d.subject else "", _said(d)) for d in self.decisions]
        return table(("what", "decided"), rows)

    def _repr_html_(self) -> str:
        return page("decisions", "", self.html())


def _said(d: Decision) -> Html:
    weighed = ("\n", tag("ul", join((tag("li", w) for w in d.weighed), "\n"))) if d.weighed else ()
    return tag("div", d.text, *weighed)
