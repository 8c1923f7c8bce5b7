"""Programs for a file: a spec, or a schedule as its directives, as plain values and back (see polyq.affine.codec)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from polyq.affine.codec import (
    Malformed,
    check_written,
    checked_name,
    decode_affine,
    decode_constraint,
    decode_layout,
    decode_spec,
    encode_affine,
    encode_constraint,
    encode_layout,
    encode_spec,
)
from polyq.affine.errors import ScheduleError
from polyq.affine.expr import Affine, Constraint
from polyq.affine.layout import Layout
from polyq.affine.spec import Spec
from polyq.schedule.schedule import Directive, Schedule
from polyq.schedule.transforms import TRANSFORMS

__all__ = ["decode_program", "encode_program"]


def encode_program(program: Spec | Schedule) -> dict[str, Any]:
    """Return a spec or a schedule as plain values; the notes of a schedule stay behind."""
    if isinstance(program, Spec):
        return {"spec": encode_spec(program)}
    directives = [
        [d.transform, [[k, _encode_argument(d, k, v)] for k, v in d.arguments]] for d in program.directives
    ]  # fmt: skip
    made: dict[str, Any] = {
        "spec": encode_spec(program.spec),
        "numerics": program.numerics,
        "target": program.target,
        "directives": directives,
    }
    check_written(decode_program, made, program, ScheduleError, f"{program.spec.name}: this schedule")
    return made


def decode_program(value: object) -> Spec | Schedule:
    """Return the spec or the schedule that :func:`encode_program` wrote.

    The directives are as they were written; only under ``"strict"`` have they been applied. :class:`Malformed` for
    whatever is none, however it comes to light.
    """
    try:
        return _program(value)
    except Malformed:
        raise
    except Exception as error:  # values that no program has run into anything
        raise Malformed(f"{type(error).__name__}: {error}") from error


def _program(value: object) -> Spec | Schedule:
    if not isinstance(value, dict):
        raise Malformed("a program is a mapping")
    fields = cast("dict[str, object]", value)
    if fields.keys() == {"spec"}:
        return decode_spec(fields["spec"])
    if fields.keys() != {"spec", "numerics", "target", "directives"} or not isinstance(fields["directives"], list):
        raise Malformed(f"a schedule has other fields than {', '.join(map(str, fields))[:200]}")
    directives = tuple(map(_decode_directive, cast("list[object]", fields["directives"])))
    numerics, target = (checked_name(fields[k], k) for k in ("numerics", "target"))
    made = Schedule(decode_spec(fields["spec"]), numerics, target)
    if numerics != "strict":
        return made.then(*directives)
    for directive in directives:  # each must keep the rounding of what stood before it
        made = made.then(directive)
    return made


_OBJECTS: dict[str, Callable[[object], object]] = {
    "affine": decode_affine,
    "constraint": decode_constraint,
    "layout": decode_layout,
}


def _encode_argument(directive: Directive, key: str, value: Any) -> Any:
    if isinstance(value, Layout):
        return {"layout": encode_layout(value)}
    if isinstance(value, Affine):
        return {"affine": encode_affine(value)}
    if isinstance(value, Constraint):
        return {"constraint": encode_constraint(value)}
    if isinstance(value, tuple):
        return [_encode_argument(directive, key, v) for v in cast("tuple[Any, ...]", value)]
    if value is None or isinstance(value, str | int):  # bool is an int
        return value
    raise ScheduleError(f"{directive}: {key} holds {type(value).__name__}, which cannot be written")


def _decode_directive(value: object) -> Directive:
    transform, arguments = _pair(value, "a directive")
    if not isinstance(transform, str) or transform not in TRANSFORMS or not isinstance(arguments, list):
        raise Malformed(f"{str(transform)[:60]!r} is no transform of a schedule")
    pairs = [_pair(a, "an argument") for a in cast("list[object]", arguments)]
    return Directive(transform, tuple((checked_name(k), _decode_value(v)) for k, v in pairs))


def _pair(value: object, what: str) -> tuple[object, object]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != 2:
        raise Malformed(f"{what} is a pair")
    first, second = cast("list[object]", value)
    return first, second


def _decode_value(value: object) -> Any:
    if isinstance(value, dict):
        entries = list(cast("dict[str, object]", value).items())
        if len(entries) == 1 and entries[0][0] in _OBJECTS:
            return _OBJECTS[entries[0][0]](entries[0][1])
    elif isinstance(value, list):
        return tuple(map(_decode_value, cast("list[object]", value)))
    elif isinstance(value, str):
        return checked_name(value)
    elif value is None or (isinstance(value, int) and abs(value) < 1 << 62):
        return value
    raise Malformed(f"{str(cast('object', value))[:60]!r} is no argument of a transform")
