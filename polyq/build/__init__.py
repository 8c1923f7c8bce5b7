"""From printed C to a callable kernel: compiler, cache, thread pool, arguments.

This package is ``polyq.build`` itself: calling it builds a kernel, and its modules import as those of any package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from polyq.affine.spec import Spec
from polyq.build.bound import Bound
from polyq.build.building import build as _build
from polyq.build.kernel import Kernel

if TYPE_CHECKING:
    from polyq.build.timing import Timing
    from polyq.schedule import Schedule

__all__ = ["Bound", "Kernel", "Timing"]


class CallableModule(ModuleType):
    """A package that can be called, and pickles as a reference to itself."""

    def __call__(
        self,
        program: Spec | Schedule,
        /,
        *,
        numerics: Literal["strict", "reassoc", "i16", "i16x2", "i8"] | None = None,
        threads: int | None = None,
        target: str | None = None,
        constants: Iterable[str] = (),
        **unknown: object,
    ) -> Kernel:
        """Return the kernel of a spec or a schedule: see :func:`polyq.build.building.build`."""
        return _build(program, numerics=numerics, threads=threads, target=target, constants=constants, **unknown)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


def __getattr__(name: str) -> Any:
    if name != "Timing":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from polyq.build.timing import Timing

    return Timing


sys.modules[__name__].__class__ = CallableModule
