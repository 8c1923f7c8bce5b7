"""One compiled object for all texts of a program: links into the memo, and modules in the caller's names.

A plan is made for the numbered form of a program (:class:`polyq.affine.numbering.Form`) and kept under that form's key.
What is kept under the key of the text is a link: the key of the plan, and the caller's names. So a text that was built
before needs neither its form nor a schedule, and one that is new shares what another text of the program compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from polyq.affine.naming import NUMBERED, Renaming
from polyq.build import cache
from polyq.emit.module import Module

__all__ = ["Link", "read_link", "rendered", "with_interface", "write_link"]

_WORD = re.compile(r"[A-Za-z_]\w*")
#: where a line at the left margin begins: functions are indented
_PART = re.compile(r"\n(?=\S)")


@dataclass(frozen=True, slots=True)
class Link:
    """Where the plan of a program's numbered form is kept, the way back to the names, and notes on the form.

    ``problem`` is the key of its tuned choices, whatever they are when the program is built.
    """

    plan: str
    renaming: Renaming
    notes: tuple[str, ...] = ()
    problem: str = ""


def read_link(key: str) -> Link | None:
    """Return what :func:`write_link` kept, ``None`` where there is none."""
    memo: dict[str, Any] | None = cache.read_memo(key)
    if memo is None or memo.keys() != {"plan", "names", "notes", "problem"}:
        return None
    return Link(memo["plan"], Renaming(memo["names"]), tuple(memo["notes"]), memo["problem"])


def write_link(key: str, link: Link) -> None:
    """Keep a link under the key of a text."""
    names, notes = dict(link.renaming.names), list(link.notes)
    cache.write_memo(key, {"plan": link.plan, "names": names, "notes": notes, "problem": link.problem})


def with_interface(module: Module, renaming: Renaming) -> Module:
    """Return a module whose buffers and parameters have the caller's names; its C is what is compiled."""
    return replace(
        module,
        buffers=tuple(map(renaming.text, module.buffers)),
        params=tuple(map(renaming.text, module.params)),
    )


def rendered(module: Module, renaming: Renaming) -> Module:
    """Return a module in the caller's names: the same C but for identifiers, each of which stays apart from all others.

    What is compiled is the module itself; this one is for readers, and for programs in C.
    """
    from polyq.emit.address import Names  # a kernel from the cache does without

    head, mark, body = module.source.partition("*/")
    names = Names()
    words: dict[str, None] = {}
    for part in _PART.split(body):  # a helper's own names are in nobody's way
        found = dict.fromkeys(_WORD.findall(part))
        words.update(found if any(NUMBERED.search(word) for word in found) else {})
    for word in words:
        if NUMBERED.search(word) is None:
            names.reserve(word)
    # short ones first: what is derived from a name follows it
    ours = sorted((w for w in words if NUMBERED.search(w) is not None), key=len)
    given = {word: names.fresh(renaming.text(word)) for word in ours}

    def shown(text: str) -> str:
        return renaming.text(text).replace("*/", "* /")

    return replace(
        with_interface(module, renaming),
        entry=given.get(module.entry, module.entry),
        source=shown(head) + mark + _WORD.sub(lambda found: given.get(found[0], found[0]), body),
    )
