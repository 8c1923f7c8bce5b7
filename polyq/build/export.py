"""A kernel as files for programs in C: source, header, shared library; no Python, no polyq."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from polyq.affine.dtypes import info
from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Tensor
from polyq.build.compiler import find_compiler

if TYPE_CHECKING:
    from polyq.build.kernel import Kernel

__all__ = ["save"]

#: a tensor's elements in C; floats of 16 bits as the bits, sub-byte types packed, low bits first
_TYPES = {"f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t"}
_WORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm class
delete new operator private protected public template this throw try using virtual namespace"""
_KEYWORDS = frozenset(_WORDS.split())  # of C, and those of C++ that a header must not use


def save(kernel: Kernel, path: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Write ``path`` with the endings ``.c``, ``.h`` and ``.so``; its last part is the name of the C function.

    The files appear whole or not at all. :class:`ArgumentError` for a name that C does not allow.
    """
    if kernel.constants:
        raise ArgumentError(
            f"save: {', '.join(kernel.constants)}: constants of this kernel, which bind packs; a program in C has no "
            "bind, so build the kernel without constants= and without prepared tensors"
        )
    place = Path(path)
    name = place.name
    code = kernel.source.partition("*/")[2]  # the comment before it may say anything
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _KEYWORDS or re.search(rf"\b{name}\b", code):
        raise ArgumentError(
            f"save: {name!r} cannot be the name of a C function here; the last part of the path is that name: "
            "letters, digits and underscores, no word of C, and none that the kernel's source uses"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    header, source = _texts(kernel, name)
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=place.parent))
    try:
        (work / f"{name}.h").write_text(header, encoding="utf-8")
        (work / f"{name}.c").write_text(source, encoding="utf-8")
        flags = (*kernel.executable.module.flags, "-fvisibility=hidden")
        find_compiler().compile(work, f"{name}.c", f"{name}.so", flags)
        made = tuple(place.parent / f"{name}{end}" for end in (".c", ".h", ".so"))
        for target in made:
            os.replace(work / target.name, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return made[0], made[1], made[2]


def _texts(kernel: Kernel, name: str) -> tuple[str, str]:
    """Return the header and the source."""
    module, spec = kernel.module, kernel.spec
    tensors = [spec.tensor(n) for n in dict.fromkeys((*spec.input_names, *spec.output_names))]
    names = _c_names((*(t.name for t in tensors), *spec.params), {name, "threads"})
    arguments = [f"{_pointer(t, t.name in spec.output_names)}{names[t.name]}" for t in tensors]
    arguments += [f"int64_t {names[p]}" for p in spec.params]
    signature = f"int {name}({', '.join([*arguments, 'int threads'])})"
    facts = [f"{names[t.name]}: {t.dtype}[{', '.join(map(str, t.extents))}]{_role(kernel, t)}" for t in tensors]
    needs = f" It needs a CPU with {' '.join(module.features)}." if module.features else ""
    guard = f"{name.upper()}_H"
    header = f"""#ifndef {guard}
#define {guard}
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* {name}: numerics {kernel.numerics}, target {kernel.target}.{needs}
 *
{_lines(facts)}
 *
 * Arrays are dense, the last axis varies fastest; elements of less than a byte are packed, low bits first, each row
 * padded to a byte. An output must not overlap another array. At most `threads` threads compute. Returns 0, or 1 if
 * memory is short. It may be called from several threads at once.
 */
__attribute__((visibility("default"))) {signature};

#ifdef __cplusplus
}}
#endif
#endif
"""
    buffers = ", ".join(f"(void *){names[b]}" for b in module.buffers) or "0"
    params = ", ".join(names[p] for p in module.params) or "0"
    unused = [names[p] for p in spec.params if p not in module.params]
    runtime = Path(__file__).with_name("standalone.c").read_text(encoding="utf-8")
    body = f"""
{signature}
{{
  void *const buffers[] = {{{buffers}}};
  const int64_t params[] = {{{params}}};
{"".join(f"  (void){p};{chr(10)}" for p in unused)}\
  const int status = {module.entry}(&polyq_plain_runtime, buffers, params, threads < 1 ? 1 : threads);
  polyq_free_buffers();
  return status;
}}
"""
    first = "#define _GNU_SOURCE\n"  # posix_memalign, also where a strict C standard is asked for
    return header, f'{first}{module.source}{runtime}\n#include "{name}.h"\n{body}'


def _lines(facts: Iterable[str]) -> str:
    return "\n".join(f" * {fact}" for fact in facts)


def _role(kernel: Kernel, tensor: Tensor) -> str:
    given, made = tensor.name in kernel.spec.input_names, tensor.name in kernel.spec.output_names
    return " (updated)" if given and made else " (output)" if made else ""


def _pointer(tensor: Tensor, written: bool) -> str:
    kind = info(tensor.dtype)
    c_type = "uint8_t" if kind.packed else _TYPES.get(tensor.dtype, f"{'u' * (kind.kind == 'u')}int{kind.bits}_t")
    return f"{'' if written else 'const '}{c_type} *"


def _c_names(names: Iterable[str], taken: set[str]) -> dict[str, str]:
    """Return a C identifier for each name, all of them different."""
    found: dict[str, str] = {}
    for name in names:
        text = re.sub(r"[^A-Za-z0-9_]", "_", name)
        while text in taken or text in _KEYWORDS or not re.match(r"[A-Za-z]", text):
            text = f"{text}_" if re.match(r"[A-Za-z]", text) else f"a{text}"
        taken.add(text)
        found[name] = text
    return found
