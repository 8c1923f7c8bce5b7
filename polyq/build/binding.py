"""Loading a library and calling its entry, through cffi.

cffi's out-of-line ABI mode: the types below are declared once and for all (all entries look alike), their compiled form
lies in ``_abi.py``, and so neither a C parser nor a C compiler runs to bind a kernel. docs/decisions/cffi-mode.md has
the measurements. :func:`write_types` writes ``_abi.py`` anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyq.affine.errors import BuildError
from polyq.build.locks import ForkLock

__all__ = ["DECLARATIONS", "Entry", "load", "pointers", "symbol"]

DECLARATIONS = """
typedef struct polyq_runtime polyq_runtime;
typedef int polyq_entry(const polyq_runtime *runtime, void *const *buffers, const int64_t *params, int threads);
void *dlopen(const char *path, int mode);
void *dlsym(void *library, const char *name);
char *dlerror(void);
"""

#: ``entry(runtime, buffers, params, threads) -> status``; cffi releases the GIL around the call.
Entry = Callable[[Any, Any, Any, int], int]

_libraries: dict[str, Any] = {}
_guard = ForkLock()


@lru_cache(maxsize=1)
def ffi() -> Any:
    """Return the cffi instance that knows :data:`DECLARATIONS`."""
    from polyq.build import _abi

    return _abi.ffi


@lru_cache(maxsize=1)
def _system() -> Any:
    return ffi().dlopen(None)


def symbol(path: Path, name: str, kind: str) -> Any:
    """Return the symbol ``name`` of a library as the C type ``kind``.

    A library is loaded once and never unloaded: threads of the pool may be inside it. :class:`BuildError` where it
    cannot be loaded.
    """
    with _guard:
        library = _libraries.get(str(path))
        if library is None:
            library = _system().dlopen(os.fsencode(path), os.RTLD_NOW | os.RTLD_LOCAL)
            if not library:
                raise BuildError(f"{path}: the system's loader refuses this library: {_complaint()}")
            _libraries[str(path)] = library
        address = _system().dlsym(library, name.encode())
        if not address:
            raise BuildError(f"{path}: the library has no symbol {name!r}: {_complaint()}")
    return ffi().cast(kind, address)


def _complaint() -> str:
    text = _system().dlerror()
    return ffi().string(text).decode("utf-8", "replace") if text else "no reason given"


def load(path: Path, name: str) -> Entry:
    """Return the entry ``name`` of a library, ready to be called."""
    return symbol(path, name, "polyq_entry *")


def pointers(count: int) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a C array of ``count`` addresses from buffers or integers.

    The array keeps nothing alive: whoever calls holds the arrays.
    """
    new, kind = ffi().new, ffi().typeof(f"void *[{max(1, count)}]")
    return lambda buffers: new(kind, buffers)


def integers(values: Sequence[int]) -> Any:
    """Return a C array of ``int64_t``."""
    return ffi().new("int64_t[]", list(values) or [0])


def write_types(place: Path) -> None:
    """Write :data:`DECLARATIONS` in cffi's compiled form to a file."""
    import cffi

    builder: Any = cffi.FFI()
    builder.cdef(DECLARATIONS)
    builder.set_source("polyq.build._abi", None)
    builder.emit_python_code(str(place))
    _, _, text = place.read_text().partition("\n")
    checks = "# pyright: basic, reportMissingImports=false\n# ruff: noqa\n"
    place.write_text(f"{checks}# written by polyq.build.binding.write_types\n{text}")
