"""The card of a kernel: what it is, in a few lines that read well in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyq.affine import html
from polyq.affine.arrays import packed_extent
from polyq.affine.dtypes import info
from polyq.affine.spec import Spec, Tensor
from polyq.build.plan import Plan
from polyq.schedule.explanation import Explanation

__all__ = ["Card", "memory_text"]


@dataclass(frozen=True, slots=True)
class Card:
    """What is said of a kernel: a headline, and facts by name. ``str`` is its text, ``page`` its HTML.

    ``seconds`` is how long the build took, ``phases`` its parts.
    """

    spec: Spec
    plan: Plan
    numerics: str
    target: str
    runs: bool
    threads: int
    constants: Sequence[str]
    sizes: Mapping[str, int]
    seconds: float
    phases: Sequence[tuple[str, float]]
    bound: str = ""
    tuned: str = ""

    def facts(self) -> dict[str, str]:
        """Return the facts in order; an empty text says nothing."""
        features = f" ({' '.join(self.plan.module.features)})" if self.plan.module.features else ""
        sizes = self.sizes.items()
        return {
            "numerics": self.numerics,
            "target": f"{self.target}{features}{'' if self.runs else ', not on this CPU: source only'}",
            "threads": self._threads_text(),
            "constants": ", ".join(self.constants),
            "range": "".join(f"made for {p} = {n}; kernel.at({p}=...) is that of another range" for p, n in sizes),
            "memory": memory_text(self.spec),
            "certificate": self.plan.proof,
            "tuned": self.tuned,
            "build": _build_text(self.seconds, self.phases),
            "bound": self.bound,
        }

    def _threads_text(self) -> str:
        if self.threads == 1 or self.plan.module.shares_loops:
            return f"up to {self.threads}" if self.threads > 1 else "1"
        return f"1, since no loop is divided (up to {self.threads} are allowed)"

    def __str__(self) -> str:
        spec = self.spec
        head = f"kernel {spec.name}({', '.join(map(str, spec.inputs))}) -> {', '.join(map(str, spec.outputs))}"
        return "\n".join([head, *(f"  {name:<12} {text}" for name, text in self.facts().items() if text)])

    def page(self, explanation: Explanation) -> str:
        """Return the card as HTML, with the program and the decisions folded."""
        from polyq.affine import pages

        spec, facts = self.spec, self.facts()
        about = html.pill(f"numerics {facts.pop('numerics')}"), html.pill(f"target {self.target}")
        roles = dict.fromkeys(self.constants, "constant")
        decisions = html.folded("decisions", explanation.html())
        program = html.folded("program", pages.program(spec), *pages.notes(spec))
        return html.page(
            "kernel", spec.name, pages.tensors(replace(spec, all_tensors=(*spec.inputs, *spec.outputs)), roles),
            html.facts(facts), decisions, program, pills=about,
        )  # fmt: skip


def memory_text(spec: Spec) -> str:
    """Return the bytes of all inputs and outputs, each once: what a call has to move at least.

    >>> from polyq.affine.notation import parse
    >>> memory_text(parse("y[i] += f32(a[i, j]) * x[j]", a=("u8", ("m", 1024)), x=("f32", (1024,))))
    'at least 4 KiB + 1028 B * m: each input read once, each output written once'
    """
    from polyq.schedule.display import byte_size

    sums: dict[str, int] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        factor, symbols = _bytes(tensor)
        sums[symbols] = sums.get(symbols, 0) + factor
    terms = [
        f"{byte_size(count) if count % 1024 == 0 or not symbols else f'{count} B'}{symbols and f' * {symbols}'}"
        for symbols, count in sorted(sums.items())
        if count
    ]
    return f"at least {' + '.join(terms) or '0 B'}: each input read once, each output written once"


def _bytes(tensor: Tensor) -> tuple[int, str]:
    """Return the constant factor of a tensor's bytes, and the text of the rest of the product."""
    bits = info(tensor.dtype).bits
    factor, symbols = max(1, bits // 8), list[str]()
    for at, entry in enumerate(tensor.extents):
        packed = info(tensor.dtype).packed and at == len(tensor.extents) - 1
        text = f"({entry})" if len(entry.terms) + bool(entry.const) > 1 else str(entry)
        if entry.is_constant:
            factor *= packed_extent(tensor.dtype, entry.const) if packed else entry.const
        else:
            symbols.append(f"ceil({text} * {bits}/8)" if packed else text)
    return factor, " * ".join(symbols)


def _build_text(total: float, phases: Iterable[tuple[str, float]]) -> str:
    spent: dict[str, float] = {}
    for name, part in phases:  # each range has its own
        spent[name] = spent.get(name, 0.0) + part
    spent["other"] = total - sum(spent.values())
    parts = [f"{name} {seconds:.2f}" for name, seconds in spent.items() if seconds >= 0.005]
    return f"{total:.2f} s ({', '.join(parts) if 'emit' in spent else 'source from the cache'})"
