"""A kernel as files for programs in C: source, header, shared library; no Python, no polyq."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polyq.affine.dtypes import info
from polyq.affine.errors import ArgumentError
from polyq.affine.spec import Tensor
from polyq.build.compiler import find_compiler
from polyq.emit.module import Module

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
    # the comment in front of each source may say anything
    code = "".join(each.source.partition("*/")[2] for _, each in kernel.all_ranges)
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
        find_compiler().compile(work, f"{name}.c", f"{name}.so", (*_flags(kernel), "-fvisibility=hidden"))
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
    features = dict.fromkeys(f for _, each in kernel.all_ranges for f in each.module.features)
    needs = f" It needs a CPU with {' '.join(features)}." if features else ""
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
{_ranges_text(kernel, names)} *
 * To use the library:  cc main.c -L. -l:{name}.so -Wl,-rpath,'$ORIGIN'
 * To use the source:   cc main.c {name}.c {" ".join(_source_flags(kernel))}
 * Other flags for floating-point arithmetic, -ffast-math above all, give other results.
 */
__attribute__((visibility("default"))) {signature};

#ifdef __cplusplus
}}
#endif
#endif
"""
    used = {p for _, each in kernel.all_ranges for p in each.module.params} | {kernel.range_parameter}
    unused = [names[p] for p in spec.params if p not in used]
    runtime = Path(__file__).with_name("standalone.c").read_text(encoding="utf-8")
    code, calls = module.source, [_call(module, names, module.entry)]
    for at, (least, each) in enumerate(kernel.all_ranges[1:], 2):
        more, entry = _beside(code, each.module, f"_range{at}")
        code += more
        calls.insert(
            0, f"if ({names[str(kernel.range_parameter)]} >= {least}) {_call(each.module, names, entry)}"
        )
    body = f"""
{signature}
{{
  int status;
  threads = threads < 1 ? 1 : threads;
{"".join(f"  (void){p};{chr(10)}" for p in unused)}  {" else ".join(calls)}
  polyq_free_buffers();
  return status;
}}
"""
    first = "#define _GNU_SOURCE\n"  # posix_memalign, also where a strict C standard is asked for
    return header, f'{first}{code}{runtime}\n#include "{name}.h"\n{body}'


def _call(module: Module, names: Mapping[str, str], entry: str) -> str:
    buffers = ", ".join(f"(void *){names[b]}" for b in module.buffers) or "0"
    params = ", ".join(names[p] for p in module.params) or "0"
    return f"""{{
    void *const buffers[] = {{{buffers}}};
    const int64_t params[] = {{{params}}};
    status = {entry}(&polyq_plain_runtime, buffers, params, threads);
  }}"""


# ---- several modules in one file
_RUNTIME = re.compile(r"typedef struct \{[^}]*\} polyq_runtime;\n")
_MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
_DEFINED = re.compile(
    r"^(?:typedef [^;{]*?(\w+)(?: __attribute__\(\(.*\)\))?;"  # a type
    r"|struct (\w+) \{"
    r"|[a-z][^=;{(]*?\b(\w+)(?:\[[^\]]*\])* = "  # a constant
    r"|[a-z][^=;{(]*?\b(\w+)\()",  # a function
    re.MULTILINE,
)


def _beside(before: str, module: Module, suffix: str) -> tuple[str, str]:
    """Return the source of a module to stand below another in one file, and the name of its entry there.

    All that it defines gets a suffix, by macros: what has one name in both may still be different.
    """
    code = _RUNTIME.sub("", module.source, count=1)  # that of the file serves all
    comments = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), code, flags=re.DOTALL)
    names = list(dict.fromkeys(n for m in _DEFINED.finditer(comments) for n in m.groups() if n))
    dropped = dict.fromkeys(_MACRO.findall(before))
    lines = [f"#undef {n}" for n in dropped] + [f"#define {n} {n}{suffix}" for n in names]
    after = [f"#undef {n}" for n in names]
    return "\n".join(["", *lines, code, *after, ""]), f"{module.entry}{suffix}"


def _flags(kernel: Kernel) -> tuple[str, ...]:
    """Return what the modules of all ranges have to be compiled with."""
    return tuple(dict.fromkeys(f for _, each in kernel.all_ranges for f in each.module.flags))


def _source_flags(kernel: Kernel) -> tuple[str, ...]:
    return ("-O2", "-std=gnu11", *_flags(kernel), "-lm", "-pthread")


def _ranges_text(kernel: Kernel, names: Mapping[str, str]) -> str:
    """Say which code runs for which sizes."""
    ranges, param = kernel.all_ranges, kernel.range_parameter
    if len(ranges) > 1 and param is not None:
        ends = [*(f" to {least - 1}" for least, _ in ranges[1:]), " and more"]
        made = [f"{least}{end} (made for {each.sizes[param]})" for (least, each), end in zip(ranges, ends, strict=True)]
        sizes = f"Sizes of {names[param]} that have code of their own: {', '.join(made)}"
        return f" * {sizes}. Each is right for all sizes.\n"
    return "".join(
        f" * The code is made for {names[p]} = {n}, and right for all sizes.\n" for p, n in kernel.sizes.items()
    )


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
