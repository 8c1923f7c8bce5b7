"""When packing has paid: what it cost, against what each call saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Spec
from polyq.build.timing import Timing, measure

if TYPE_CHECKING:
    from polyq.build.bound import Bound

__all__ = ["Payoff", "payoff"]


@dataclass(frozen=True, slots=True)
class Payoff:
    """The cost of packing in seconds, and the median seconds of a call with and without it.

    >>> Payoff(0.016, plain=0.0011, packed=0.0007).calls
    40
    """

    packing: float
    plain: float
    packed: float

    @property
    def calls(self) -> int | None:
        """The number of calls after which packing has paid; ``None`` where a packed call is not faster."""
        if self.packing == 0:
            return 0
        saved = self.plain - self.packed
        # a picosecond more or less is no call
        return ceil(round(self.packing / saved, 9)) if saved > 0 else None

    def __str__(self) -> str:
        count = "never" if self.calls is None else f"after {self.calls} call{'s' * (self.calls != 1)}"
        return (
            f"packing {1e3 * self.packing:.3g} ms; a call {1e3 * self.packed:.3g} ms, without it "
            f"{1e3 * self.plain:.3g} ms: it pays {count}"
        )


def payoff(bound: Bound, *, seconds: float, repeats: int | None, params: dict[str, int]) -> Payoff:
    """Time calls of a bound layer and of the kernel that takes its inputs unpacked; see :meth:`Bound.payoff`."""
    from polyq.build.building import build

    kernel, options = bound.kernel, dict[str, Any](bound.kernel.options)
    if not isinstance(kernel.program, Spec):
        raise ArgumentError(
            f"payoff: {kernel.spec.name} was built from a schedule, which has no other form; build the spec, or the "
            "schedule without its packing, and compare their benchmark()"
        )
    options["constants"] = ()
    plain = build(kernel.program, **options)

    def time(k: Any) -> Timing:
        return measure(k, seconds=seconds, repeats=repeats, cold=True, threads=None, seed=0, params=params)

    cost = 0.0 if bound.packing is None else bound.packing.seconds
    return Payoff(cost, time(plain).median, time(kernel).median)
