"""What to do with an array of another dtype: whether a conversion would keep its values."""

from __future__ import annotations

# pyright: reportUnknownVariableType=false
# numpy's stubs leave the names of dtypes partly unknown
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.spec import Tensor

__all__ = ["advice"]

Array = NDArray[Any]


def advice(tensor: Tensor, array: Array) -> str:
    """Say how to convert an array of another dtype, and what that does to its values."""
    number = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    if info(tensor.dtype).packed or tensor.dtype == "bf16" or not number:
        return ""
    call = f"{tensor.name}.astype(numpy.{numpy_dtype(tensor.dtype).name})"
    with np.errstate(all="ignore"):
        made = array.astype(numpy_dtype(tensor.dtype))
        same = _same_values(array, made)
        if same.all():
            return f"; convert it with {call}"
        if info(tensor.dtype).kind == "f" and not np.any(np.isinf(made) & ~np.isinf(array.astype(np.float64))):
            return f"; {call} converts it, with rounding"
    at = np.unravel_index(int(np.argmin(same)), same.shape)
    place = f" at [{', '.join(str(int(i)) for i in at)}]" if at else ""
    return f"; {call} would change values, such as {array[at]}{place} to {made[at]}: round, clip or scale them first"


def _same_values(before: Array, after: Array) -> Array:
    """Where a conversion kept the value, exactly: not by way of a common float type, which rounds large integers."""
    if before.dtype.name == "bfloat16":
        before = before.astype(np.float32)
    back = after.astype(before.dtype)
    same = (back == before) | ((back != back) & (before != before) & (after != after))
    if after.dtype.kind in "iu" and before.dtype.kind in "iu":  # a change of sign comes back as it was
        same &= (after < 0) == (before < 0)
    if after.dtype.kind in "iu" and before.dtype.kind == "f":  # the greatest integer of a type may round up to 2**bits
        low, high = float(np.iinfo(after.dtype).min), 2.0 ** (8 * after.dtype.itemsize - (after.dtype.kind == "i"))
        same &= (before >= low) & (before < high)
    if after.dtype.kind == "f" and before.dtype.kind in "iu":
        high = 2.0 ** (8 * before.dtype.itemsize - (before.dtype.kind == "i"))
        same &= after.astype(np.float64) < high
    return np.asarray(same)
