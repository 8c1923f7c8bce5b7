"""What is tuned: one spec with its options in one range of sizes, as data that travels between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from polyq.affine.codec import decode_spec, encode_spec
from polyq.affine.errors import ArgumentError
from polyq.affine.names import meant
from polyq.affine.numbering import Form
from polyq.affine.spec import Spec
from polyq.build.advice import Asked
from polyq.schedule.draft import UNKNOWN_EXTENT
from polyq.schedule.ladder import ladder_of

__all__ = ["Problem", "Sizes", "problems_of"]

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """One schedule to find: of ``spec``, made for ``sizes``, judged by calls at each of ``points``.

    ``shared`` says that other ranges read what is bound in the same layout, which therefore stays.
    """

    spec: Spec
    numerics: str
    target: str
    threads: int
    constants: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    points: tuple[tuple[tuple[str, int], ...], ...]
    shared: bool

    @property
    def asked(self) -> Asked:
        """The same as the request that a build makes of it."""
        form = Form.of(self.spec)
        return Asked(self.spec, form, self.numerics, self.target, self.constants, dict(self.sizes))

    @property
    def title(self) -> str:
        """The program's name, and the sizes that are timed."""
        points = ", ".join(" ".join(f"{name}={size}" for name, size in point) for point in self.points)
        return " ".join(filter(None, [self.spec.name, points]))

    def encode(self) -> dict[str, Any]:
        """Return the problem as lists, texts and numbers."""
        return {
            "spec": encode_spec(self.spec), "numerics": self.numerics, "target": self.target, "threads": self.threads,
            "constants": list(self.constants), "sizes": dict(self.sizes), "points": [dict(p) for p in self.points],
            "shared": self.shared,
        }  # fmt: skip

    @staticmethod
    def decode(value: Mapping[str, Any]) -> Problem:
        """Return the problem that :meth:`encode` wrote."""
        given = dict(value)
        given["spec"], given["constants"] = decode_spec(value["spec"]), tuple(value["constants"])
        given["sizes"] = tuple(value["sizes"].items())
        given["points"] = tuple(tuple(point.items()) for point in value["points"])
        return Problem(**given)


def problems_of(
    spec: Spec, sizes: Iterable[Sizes] | None, numerics: str, target: str, threads: int, constants: tuple[str, ...]
) -> tuple[Problem, ...]:
    """Return the problems of a spec, one for each range that some of ``sizes`` lie in; by default every range."""
    ladder = ladder_of(spec, bool(constants))
    given = [dict(each) for each in sizes] if sizes is not None else []
    for each in given:
        _check(spec, each)
    if sizes is None:
        none: list[dict[str, int]] = [{}]
        rungs = none if ladder is None else [ladder.sizes(rung) for rung in range(len(ladder.rungs))]
        given = [dict.fromkeys(spec.params, UNKNOWN_EXTENT) | rung for rung in rungs]
    found: dict[int, list[dict[str, int]]] = {}
    for each in given:
        found.setdefault(0 if ladder is None else ladder.rung(each[ladder.param]), []).append(each)
    shared = ladder is not None and len(ladder.rungs) > 1 and bool(constants)
    return tuple(
        Problem(
            spec, numerics, target, threads, constants,
            () if ladder is None else tuple(ladder.sizes(rung).items()),
            tuple(tuple((name, point[name]) for name in spec.params) for point in points), shared,
        )
        for rung, points in sorted(found.items())
    )  # fmt: skip


def _check(spec: Spec, sizes: Sizes) -> None:
    """Refuse sizes that are not one for each parameter."""
    missing = [name for name in spec.params if name not in sizes]
    unknown = [name for name in sizes if name not in spec.params]
    if missing or unknown:
        wanted = ", ".join(f"{name}=..." for name in spec.params) or "no sizes, since it has no parameters"
        hint = meant(unknown[0], spec.params) if unknown else ""
        raise ArgumentError(f"tune: {spec.name}: expected {wanted}; got {', '.join(sizes) or 'none'}{hint}")
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise ArgumentError(f"tune: {spec.name}: {', '.join(wrong)}: expected whole numbers of at least 1")
