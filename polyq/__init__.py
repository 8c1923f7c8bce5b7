"""polyq: from small programs of affine loop nests to fast, proven CPU kernels.

>>> import numpy, polyq
>>> spec = polyq.parse("y[i] += a[i, j] * x[j]", a=("f32", ("m", 4)), x=("f32", (4,)))
>>> polyq.interpret(spec, a=numpy.ones((2, 4), "f4"), x=numpy.ones(4, "f4"))
array([4., 4.], dtype=float32)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polyq.affine.errors import (
    ArgumentError,
    ArgumentTypeError,
    BuildError,
    CompilerNotFound,
    PolyqError,
    ScheduleError,
    SpecError,
)

if TYPE_CHECKING:
    from polyq import testing as testing
    from polyq.affine.canonical import canonical as canonical
    from polyq.affine.encodings import Encoding as Encoding
    from polyq.affine.encodings import encodings as encodings
    from polyq.affine.encodings import propagate as propagate
    from polyq.affine.interpret import interpret as interpret
    from polyq.affine.layout import Layout as Layout
    from polyq.affine.layout import pad_pitch as pad_pitch
    from polyq.affine.mlir import from_mlir as from_mlir
    from polyq.affine.notation import parse as parse
    from polyq.affine.record import Record as Record
    from polyq.affine.spec import Spec as Spec
    from polyq.affine.spec import Tensor as Tensor
    from polyq.affine.steps import Step as Step
    from polyq.build.building import build as build
    from polyq.build.kernel import Kernel as Kernel
    from polyq.build.many import build_many as build_many
    from polyq.build.saved import load as load
    from polyq.schedule import Schedule as Schedule
    from polyq.tuning.tuner import tune as tune

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BuildError",
    "CompilerNotFound",
    "Encoding",
    "Kernel",
    "Layout",
    "PolyqError",
    "Record",
    "Schedule",
    "ScheduleError",
    "Spec",
    "SpecError",
    "Step",
    "Tensor",
    "build",
    "build_many",
    "canonical",
    "encodings",
    "from_mlir",
    "interpret",
    "load",
    "pad_pitch",
    "parse",
    "propagate",
    "testing",
    "tune",
]

#: What loads when it is first used, so that ``import polyq`` costs little more than numpy: name -> its module.
_LAZY = {
    "Encoding": "polyq.affine.encodings",
    "Kernel": "polyq.build.kernel",
    "Layout": "polyq.affine.layout",
    "Record": "polyq.affine.record",
    "Schedule": "polyq.schedule",
    "Spec": "polyq.affine.spec",
    "Step": "polyq.affine.steps",
    "Tensor": "polyq.affine.spec",
    "encodings": "polyq.affine.encodings",
    "from_mlir": "polyq.affine.mlir",
    "build_many": "polyq.build.many",
    "canonical": "polyq.affine.canonical",
    "interpret": "polyq.affine.interpret",
    "load": "polyq.build.saved",
    "pad_pitch": "polyq.affine.layout",
    "parse": "polyq.affine.notation",
    "propagate": "polyq.affine.encodings",
    "tune": "polyq.tuning.tuner",
}
_PACKAGES = ("build", "testing")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"polyq.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    else:  # dtypes and functions for traced bodies: polyq.f32, polyq.exp
        affine = importlib.import_module("polyq.affine")
        if name.startswith("_") or name not in getattr(affine, "__all__", ()):
            raise AttributeError(f"module 'polyq' has no attribute {name!r}")
        value = getattr(affine, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
