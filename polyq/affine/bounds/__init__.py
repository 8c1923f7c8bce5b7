"""Forward error bounds, element by element, between a kernel under ``"reassoc"`` numerics and the oracle.

Two analyses, both deterministic and without a statistical assumption:

- of a program whose form and order of evaluation are known (:class:`Evaluation`, which a schedule gives): a running
  error analysis from the data's own partial sums (:mod:`polyq.affine.bounds.running`);
- of anything that computes the spec's formula, in whatever order and form ``"reassoc"`` allows: from magnitudes alone
  (:mod:`polyq.affine.bounds.anyform`).

The oracle's own error is not bounded but measured, against the same float64 evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polyq.affine.arrays import Array, caller_view, from_storage, shape_of, storage_shape, take_arguments
from polyq.affine.bounds.anyform import AnyForm
from polyq.affine.bounds.machine import SLACK, gamma, half_ulp, unit
from polyq.affine.bounds.running import Running
from polyq.affine.bounds.signs import not_negative
from polyq.affine.bounds.slices import best_batch
from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.instances import Value, run
from polyq.affine.interpret import interpret
from polyq.affine.spec import Spec, Tensor

__all__ = ["Evaluation", "Sums", "error_bound", "gamma", "half_ulp", "logical", "unit"]

#: elements of all tensors that are analysed at once, two to four float64 for each
ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Sums:
    """What is known of the order of one reduction: that of its dims but for the ``open`` ones.

    ``op`` updates each cell in lexicographic order of its dims, but for those in ``open``, which stand last, and but
    for up to ``run`` updates in a row, which may be combined in any order.
    """

    op: str
    open: tuple[str, ...] = ()
    run: int = 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A program as a kernel evaluates it: its spec after all rewrites, and the order of its float sums and products.

    A reduction that ``sums`` does not name has no known order.
    """

    spec: Spec
    sums: tuple[Sums, ...] = ()

    def windows(self, params: Mapping[str, int]) -> dict[str, int]:
        """Return of how many updates in a row the order is open, for each reduction that ``sums`` names."""
        found: dict[str, int] = {}
        for s in self.sums:
            op = self.spec.op(s.op)
            found[s.op] = max(1, s.run * prod(op.extent(d).evaluate({}, params) for d in s.open))
        return found


def error_bound(
    spec: Spec,
    arguments: Mapping[str, object],
    oracle: Sequence[Array] | None = None,
    *,
    evaluation: Evaluation | None = None,
    reference: bool = False,
) -> tuple[Array, ...]:
    """Return, for each output, the greatest difference between a kernel under ``"reassoc"`` and the oracle.

    ``arguments`` holds inputs and parameters as for :func:`~polyq.affine.interpret.interpret`; ``oracle`` its result as
    a sequence, which is computed if it is not given. ``evaluation`` says how the kernel computes the spec; without it
    the bound holds for every order and form, and is wider. With ``reference`` the bound is between the kernel and
    anything else that computes the spec in its dtypes, in any order and form, instead of the oracle.

    The arrays are float64 in the logical shape of the outputs; integers that no float decides get 0. An entry is inf
    where an intermediate result may overflow or is not finite, or where nothing is known (a divisor or what stands
    under a root may have either sign).
    """
    arrays, params = take_arguments(spec, arguments)
    anyhow = None
    if evaluation is None or reference:
        anyhow = _analysed(spec, arrays, params, AnyForm())
    kernel = anyhow
    if evaluation is not None:
        form = Running(evaluation.windows(params), not_negative(evaluation.spec))
        kernel = _as_evaluated(spec, arrays, params, evaluation.spec, form)
    assert kernel is not None
    if reference and anyhow is not None:
        return tuple(_widest(_error(k) + _error(a) + _gap(a[0], k[0])) for k, a in zip(kernel, anyhow, strict=True))
    if oracle is None:
        oracle = _interpreted(spec, arguments)
    return tuple(
        _widest(_error(k) + _gap(logical(t, np.asarray(o), shape_of(t, params)), k[0]))
        for t, k, o in zip(spec.outputs, kernel, oracle, strict=True)
    )


def _as_evaluated(
    spec: Spec, arrays: Mapping[str, Array], params: Mapping[str, int], evaluated: Spec, form: Running
) -> list[Value]:
    """Analyse the program that a kernel evaluates, whose tensors may have other shapes of the same memory."""
    stored = {t.name: np.reshape(arrays[t.name], storage_shape(t, params)) for t in evaluated.inputs}
    found: list[Value] = []
    for value, had, t in zip(_analysed(evaluated, stored, params, form), evaluated.outputs, spec.outputs, strict=True):
        old, new = shape_of(had, params), shape_of(t, params)
        found.append(value if old == new else tuple(np.broadcast_to(v, old).reshape(new) for v in value))
    return found


def _analysed(
    spec: Spec, arrays: Mapping[str, Array], params: Mapping[str, int], arithmetic: Running | AnyForm
) -> list[Value]:
    """Return the outputs of ``spec`` in an arithmetic that carries errors, slice by slice where it is large."""
    inputs = {t.name: from_storage(t, arrays[t.name], shape_of(t, params)) for t in spec.inputs}
    cut = best_batch(spec, params, ELEMENTS)
    if cut is None:
        return _run(spec, inputs, params, arithmetic)
    batch, count = cut
    parts: list[list[Value]] = []
    for start in range(0, batch.extent, count):
        here = min(count, batch.extent - start)
        some = {
            n: a.take(range(start, start + here), batch.axes[n]) if n in batch.axes else a for n, a in inputs.items()
        }
        parts.append(_run(batch.sliced(spec, start, here), some, params, arithmetic))
    return [_joined([p[k] for p in parts], batch.axes.get(t.name)) for k, t in enumerate(spec.outputs)]


def _joined(parts: Sequence[Value], axis: int | None) -> Value:
    """Return an output of all slices; one that is not cut is the same in each."""
    return parts[0] if axis is None else tuple(np.concatenate(planes, axis) for planes in zip(*parts, strict=True))


def _run(
    spec: Spec, inputs: Mapping[str, Array], params: Mapping[str, int], arithmetic: Running | AnyForm
) -> list[Value]:
    written = {op.target for op in spec.ops}
    store: dict[str, Value] = {}
    for tensor in spec.all_tensors:
        shape = shape_of(tensor, params)
        dtype = arithmetic.values.numpy_dtype(tensor.dtype)
        if tensor.name in inputs:
            value = np.array(inputs[tensor.name], dtype, order="C")
            # an input that stays as it is needs no more than its value
            store[tensor.name] = _stored(arithmetic.start(value), shape) if tensor.name in written else (value,)
        else:
            planes = len(arithmetic.start(np.zeros(())))
            store[tensor.name] = tuple(np.zeros(shape, dtype if k == 0 else np.float64) for k in range(planes))
    run(spec, store, params, arithmetic)
    return [store[t.name] for t in spec.outputs]


def _interpreted(spec: Spec, arguments: Mapping[str, Any]) -> Sequence[Array]:
    found = interpret(spec, **arguments)
    return [found] if len(spec.outputs) == 1 else list(found)


def _stored(start: Value, shape: tuple[int, ...]) -> Value:
    return tuple(np.array(np.broadcast_to(a, shape), order="C") for a in start)


def _error(bounded: Value) -> Array:
    """Return how far a kernel may be from the value in float64, at most."""
    return np.zeros(bounded[0].shape) if len(bounded) == 1 else bounded[1]


def _gap(a: Array, b: Array) -> Array:
    """Return the distance; 0 between equal infinities and between two NaNs."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.asarray(a).astype(np.float64) - b.astype(np.float64))
        return np.where((a == b) | ((a != a) & (b != b)), 0.0, apart)


def _widest(bound: Array) -> Array:
    return np.where(np.isnan(bound), np.inf, bound * SLACK)


def logical(tensor: Tensor, array: Array, shape: tuple[int, ...]) -> Array:
    """Return a result of a kernel or of the oracle, or one in another dtype, as one element an entry."""
    packed = info(tensor.dtype).packed
    if array.dtype != caller_dtype(tensor) or (packed and array.shape == shape):
        return array
    return from_storage(tensor, array.view(numpy_dtype(tensor.dtype)), shape)


def caller_dtype(tensor: Tensor) -> np.dtype[np.generic]:
    """Return the numpy dtype in which callers see the tensor."""
    return caller_view(tensor, np.empty(0, numpy_dtype(tensor.dtype))).dtype
