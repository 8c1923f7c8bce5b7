"""Bound layers as files: packed once, memory-mapped by every process that loads them.

A file has a fixed prefix (magic, version, length and checksum of the header), a header in JSON, and the held arrays,
each on a page of its own. The header says what program was bound with which options, how the arrays are laid out, and
the checksum of everything behind it. Nothing in a file is ever evaluated or unpickled: the program is checked as one
from a front end is, scheduled, certified and compiled here, and the arrays are used as they lie only where the kernel
made here packs in the very same way. docs/decisions/saved-layers.md has the reasons.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from polyq.affine import arrays as storage
from polyq.affine.arrays import Array
from polyq.affine.codec import Malformed, checked_name, decode_shape, encode_op, listed
from polyq.affine.dtypes import DTYPES, numpy_dtype
from polyq.affine.errors import ArgumentError, BuildError
from polyq.affine.spec import Tensor
from polyq.build import cache
from polyq.build.arguments import bound_params, dense_storage
from polyq.build.bound import Bound
from polyq.build.building import build
from polyq.build.kernel import Kernel
from polyq.build.unpacking import recovered
from polyq.schedule.codec import decode_program, encode_program

__all__ = ["load", "save"]

MAGIC = b"\x89polyq-layer\r\n\x1a\n"
VERSION = 1
_PREFIX = struct.Struct("<16sIQ32s")  # magic, version, bytes of the header, its SHA-256
_PAGE = 4096
#: a header holds a program, never data
_MOST_HEADER = 1 << 26
_FIELDS = {
    "kernel", "program", "options", "constants", "layout", "packed", "arrays", "bytes", "sha256", "byteorder", "polyq",
    "target", "features",
}  # fmt: skip


# ---- writing
def save(bound: Bound, path: str | os.PathLike[str]) -> Path:
    """Write a bound layer to one file, which appears whole or not at all, and return its path."""
    place = Path(path)
    held, kernel = bound.held, bound.kernel
    offsets, end = _places(held)
    total = hashlib.sha256()
    for part in _parts(held, offsets):
        total.update(part)
    header = {**_header(kernel), "arrays": _array_list(held, offsets), "bytes": end, "sha256": total.hexdigest()}
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    prefix = _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    place.parent.mkdir(parents=True, exist_ok=True)
    name = place.parent / f".{place.name}-{secrets.token_hex(8)}"
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(prefix + text + bytes(-len(prefix + text) % _PAGE))
            for part in _parts(held, offsets):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return place


def _places(held: Mapping[str, Array]) -> tuple[list[int], int]:
    """Return where each array begins, counted from the first page of data, and where the last one ends."""
    offsets, end, known = list[int](), 0, dict[tuple[int, int], int]()
    for array in held.values():
        place = array.__array_interface__["data"][0], array.nbytes
        offsets.append(known.setdefault(place, -(-end // _PAGE) * _PAGE))  # parts of one buffer are written once
        end = max(end, offsets[-1] + array.nbytes)
    return offsets, end


def _parts(held: Mapping[str, Array], offsets: Sequence[int]) -> Any:
    """Yield the bytes behind the header."""
    end = 0
    for array, offset in zip(held.values(), offsets, strict=True):
        if offset < end:
            continue
        yield bytes(offset - end)
        if array.nbytes:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        end = offset + array.nbytes


def _array_list(held: Mapping[str, Array], offsets: Sequence[int]) -> list[Any]:
    return [[n, a.dtype.str, [*a.shape], at] for (n, a), at in zip(held.items(), offsets, strict=True)]


def _header(kernel: Kernel) -> dict[str, Any]:
    asked, plan = kernel.options, kernel.plan
    ops: list[Any] = []
    if plan.prologue is not None:
        made = kernel.schedule.plan.spec
        names = {t.name for t in plan.prepared}
        ops = [[_shape_of(made.tensor(op.target)), encode_op(op)] for op in made.ops if op.target in names]
    return {
        "kernel": kernel.spec.name,
        "program": encode_program(kernel.program),
        "options": {name: value for name, value in asked.items() if name != "constants"},
        "constants": [*asked.get("constants", ())],
        "layout": kernel.layout,
        "packed": ops,
        "byteorder": sys.byteorder,
        "polyq": cache.source_digest(),
        "target": kernel.target,
        "features": sorted({*plan.module.features, *(plan.prologue.features if plan.prologue else ())}),
    }


def _shape_of(t: Tensor) -> list[Any]:
    return [t.dtype, [*t.shape]]


# ---- reading
@dataclass(frozen=True, slots=True)
class _File:
    """A file whose checksums hold: the fields of its header, and its arrays in the memory that maps it."""

    path: Path
    fields: Mapping[str, Any]
    arrays: Mapping[str, Array]


def load(path: str | os.PathLike[str]) -> Bound:
    """Return the bound layer that :meth:`Bound.save` wrote, its arrays mapped from the file.

    The kernel is built for this machine. Where it packs otherwise than the one that was saved (another CPU, another
    version of polyq), the original arrays are recovered from the packed ones and packed again; ``layer.packing`` then
    says what that cost. :class:`~polyq.affine.errors.ArgumentError` for a file that is damaged or none,
    :class:`~polyq.affine.errors.BuildError` where this machine cannot use it.
    """
    file = _read(Path(path))
    try:
        kernel = _kernel_of(file)
        if kernel.executable.entry is None:
            raise kernel.executable.cannot_run()
        if kernel.layout == file.fields["layout"]:
            return Bound(kernel, _as_they_lie(kernel, file.arrays))
        known, lost = recovered(kernel.spec, kernel.constants, file.fields["packed"], file.arrays)
        if lost:
            raise BuildError(
                f"load: {file.path}: {kernel.spec.name} was packed as another CPU or another version of polyq reads it "
                f"(for {str(file.fields['target'])[:40]}), and {', '.join(lost)} cannot be recovered from what was "
                "packed; bind the original arrays here, and save again"
            )
        kept = {n: dense_storage(kernel.spec.tensor(n), array) for n, array in known.items()}
        return Bound(kernel, *kernel.hold_packed(kept))
    except (BuildError, OSError, MemoryError):
        raise
    except Exception as error:  # whatever a header without sense runs into
        raise _refused(file.path, f"its header and what it holds do not fit: {error}") from error


def _refused(path: Path, reason: str) -> ArgumentError:
    return ArgumentError(f"load: {path}: {reason}; save the layer again from the original arrays")


def _read(path: Path) -> _File:
    if path.exists() and not path.is_file():
        raise _refused(path, "no file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
            raise _refused(path, f"no layer that polyq saved (it begins with {prefix[:8]!r})")
        _, version, length, wanted = _PREFIX.unpack(prefix)
        if version != VERSION:
            raise _refused(path, f"format {version}; this version of polyq reads format {VERSION}")
        start = -(-(_PREFIX.size + length) // _PAGE) * _PAGE
        if length > _MOST_HEADER or start > size:
            raise _refused(path, f"truncated: a header of {length} bytes does not fit in {size}")
        text = file.read(length)
        if hashlib.sha256(text).digest() != wanted:
            raise _refused(path, "damaged: the header's checksum does not fit")
        fields = _fields(path, text)
        if size != start + fields["bytes"]:
            raise _refused(path, f"truncated or longer than it should be: {size} bytes, not {start + fields['bytes']}")
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    # what is checked is what will be read: the mapped memory, not the file a second time
    with memoryview(memory) as view, view[start:] as data:
        if hashlib.sha256(data).hexdigest() != fields["sha256"]:
            raise _refused(path, "damaged: the checksum of its arrays does not fit")
    return _File(path, fields, _arrays(path, fields, memory, start))


def _fields(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _refused(path, "its header is no JSON") from None
    if not isinstance(found, dict) or cast("dict[str, object]", found).keys() != _FIELDS:
        raise _refused(path, "its header has other fields than this format")
    fields = cast("dict[str, Any]", found)
    if fields["byteorder"] != sys.byteorder:
        raise _refused(path, f"written on a machine with {str(fields['byteorder'])[:20]}-endian numbers")
    if type(fields["bytes"]) is not int or not 0 <= fields["bytes"] < 1 << 62:
        raise _refused(path, "its header gives no size")
    return fields


def _arrays(path: Path, fields: Mapping[str, Any], memory: mmap.mmap, start: int) -> dict[str, Array]:
    """Return views of the mapped memory, each inside the file and on a page of its own."""
    made: dict[str, Array] = {}
    end, known = 0, set[tuple[int, int]]()
    try:
        for entry in listed(fields["arrays"], "arrays"):
            name, text, sizes, offset = listed(entry, "an array", 4)
            shape, dtype = decode_shape(sizes), _KINDS.get(str(text))
            counts = tuple(n for n in shape if isinstance(n, int))
            if dtype is None or counts != shape or len(shape) > 32 or checked_name(name) in made:
                raise Malformed(f"its header describes no array for {str(name)[:60]!r}")
            size = prod(counts) * dtype.itemsize
            again = type(offset) is int and (offset, size) in known  # a part of one buffer
            if (
                type(offset) is not int
                or offset % _PAGE
                or offset + size > fields["bytes"]
                or (offset < end and not again)
            ):
                raise Malformed(f"its header places {name} outside of the file")
            known.add((offset, size))
            end = max(end, offset + size)
            made[str(name)] = np.ndarray(counts, dtype, memory, start + offset) if size else np.zeros(counts, dtype)
    except Malformed as error:
        raise _refused(path, str(error)) from None
    return made


_KINDS: dict[str, np.dtype[Any]] = {numpy_dtype(d).str: numpy_dtype(d) for d in DTYPES}


def _kernel_of(file: _File) -> Kernel:
    """Build what the header asks for, on this machine."""
    program = decode_program(file.fields["program"])
    options, names = file.fields["options"], listed(file.fields["constants"], "constants")
    if not isinstance(options, dict) or "constants" in options:
        raise Malformed("options: expected a mapping")
    asked = cast("dict[str, Any]", options)
    for key, value in asked.items():  # build knows which there are
        if isinstance(value, str):
            checked_name(value, key)
        elif value is not None and not isinstance(value, int):
            raise Malformed(f"options: {key} is neither a name nor a number")
    return build(program, **asked, constants=tuple(checked_name(n) for n in names))


def _as_they_lie(kernel: Kernel, held: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays if the kernel reads exactly these."""
    spec = kernel.executable.spec
    made = {t.name for t in kernel.plan.prepared}
    names = [n for n in spec.input_names if n in held]
    if len(names) != len(held) or not made & set(spec.input_names) <= held.keys():
        raise Malformed(f"arrays {', '.join(held)[:200]}: the kernel takes {', '.join(spec.input_names)}")
    missing = [n for n in kernel.constants if n in spec.input_names and n not in held]
    if missing:
        raise Malformed(f"{', '.join(missing)}: missing")
    for name in names:
        t = spec.tensor(name)
        if held[name].dtype != numpy_dtype(t.dtype) or len(held[name].shape) != len(t.shape):
            raise Malformed(f"{name}: {t} is not stored as {held[name].dtype}{list(held[name].shape)}")
        if all(e.is_constant for e in t.extents) and held[name].shape != storage.storage_shape(t, {}):
            raise Malformed(f"{name}: {t} is not stored as {list(held[name].shape)}")
    bound_params(spec, held)
    return {n: held[n] for n in names}
