"""What a name that is not there was probably meant to be."""

from __future__ import annotations

# pyright: reportUnknownVariableType=false
# numpy's stubs leave the names of dtypes partly unknown
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import numpy as np

from polyq.affine.dtypes import DTYPES, numpy_dtype

__all__ = ["meant", "meant_dtype", "misspelt"]


def meant(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean ...?"`` where a known name is close, else nothing.

    >>> meant("weigths", ("x", "weights")), meant("X", ("x", "w")), meant("q", ("x", "w"))
    ('; did you mean weights?', '; did you mean x?', '')
    """
    names = list(known)
    folded = [n for n in names if n.casefold() == name.casefold()]
    found = folded or get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found and found[0] != name else ""


def misspelt(given: Iterable[str], missing: Sequence[str], known: Sequence[str]) -> str:
    """Return what the names that are not known were probably meant to be, of those that are missing.

    >>> misspelt(("weigths", "x"), ("weights",), ("weights", "x"))
    '; did you mean weights by weigths?'
    """
    unknown = [name for name in given if name not in known]
    if len(unknown) == len(missing) == 1:  # nothing else is left
        return f"; did you mean {missing[0]} by {unknown[0]}?"
    hints = [(name, meant(name, missing)) for name in unknown]
    return "".join(hint.replace("?", f" by {name}?") for name, hint in hints if hint)


def meant_dtype(given: object) -> str:
    """Return the hint for what numpy or others call a dtype of polyq, else nothing.

    >>> meant_dtype("float32"), meant_dtype(np.uint8), meant_dtype("bfloat16"), meant_dtype("f31")
    ("; did you mean 'f32'?", "; did you mean 'u8'?", "; did you mean 'bf16'?", '')
    """
    if given is None or isinstance(given, int):
        return ""
    text = given.strip().casefold() if isinstance(given, str) else given
    if isinstance(text, str) and (text in DTYPES or text in _NAMES):
        return f"; did you mean '{_NAMES.get(text, text)}'?"
    try:
        name = np.dtype(text).name  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
    except (TypeError, ValueError, SyntaxError):
        name = getattr(given, "__name__", "")
    return f"; did you mean '{_NAMES[name]}'?" if name in _NAMES else ""


#: numpy's names, and those of sub-byte types and bf16 in other libraries
_NAMES = {
    **{numpy_dtype(d.name).name: d.name for d in DTYPES.values() if not d.packed and d.name != "bf16"},
    **{f"{'u' * (kind == 'u')}int{bits}": f"{kind}{bits}" for kind in "ui" for bits in (2, 4)},
    "bfloat16": "bf16", "half": "f16", "float": "f32", "double": "f64", "fp16": "f16", "fp32": "f32", "i1": "bool",
}  # fmt: skip
