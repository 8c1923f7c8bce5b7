"""The whole translation unit: preamble, one function per threaded region, and the entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import cgen

from polyq.affine import dtypes
from polyq.emit.address import Names, affine_text, memory_of
from polyq.emit.body import Context, Emitter
from polyq.emit.ctypes import storage_type
from polyq.emit.helpers import Helpers
from polyq.emit.module import Module
from polyq.schedule.loopnest import Block, Buffer, Guard, Loop, LoopNest, Scope

if TYPE_CHECKING:
    from polyq.schedule.target import Target

__all__ = ["c_module"]

_PREAMBLE = """\
#include <stddef.h>
#include <stdint.h>

typedef struct {
  void (*run)(void (*body)(void *argument, int thread, int threads), void *argument, int threads);
  void *(*workspace)(size_t bytes);
  void *(*scratch)(size_t bytes);
} polyq_runtime;

/* Keeps a value in its register, so that the compiler loads it once for all its users. */
#if defined(__x86_64__)
#define KEEP(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define KEEP(v) __asm__("" : "+w"(v))
#else
#define KEEP(v) (void)(v)
#endif
/* Stores past the cache; the address is aligned to the vector. */
#if defined(__clang__)
#define STREAM(type, address, value) __builtin_nontemporal_store((type)(value), (type *)(address))
#elif defined(__AVX__)
typedef float stream32 __attribute__((vector_size(32), may_alias));
#define STREAM(type, address, value) __builtin_ia32_movntps256((float *)(address), (stream32)(type)(value))
#else
#define STREAM(type, address, value) (*(type##_u *)(address) = (value))
#endif
static inline int64_t floordiv_i64(int64_t a, int64_t b) { return a / b - (a % b < 0); }"""

#: iterations of innermost statements below which a second thread costs more than it brings (a region is 1 to 2 us)
WORK_PER_THREAD = 16384


@dataclass
class _Unit:
    """A module in the making."""

    nest: LoopNest
    target: Target
    names: Names
    emitter: Emitter
    fields: list[tuple[str, str]]  # (C type, name) of what every region is given


def c_module(nest: LoopNest, target: Target, numerics: str, prefetch: dict[str, int] | None = None, stream: frozenset[str] = frozenset()) -> Module:
    """Return the C of ``nest`` for ``target``.

    ``prefetch`` maps buffers to a distance in bytes; ``stream`` names outputs that are stored past the cache.
    """
    names = Names()
    entry = names.fresh(f"polyq_{nest.name}")
    strict = numerics == "strict"
    emitter = Emitter(names, Helpers(), target.vector_bytes, strict, barrier=target.vector_bytes > 0)
    emitter.pending = []
    emitter.prefetch = (prefetch or {}) if target.vector_bytes else {}
    unit = _Unit(nest, target, names, emitter, [])
    opening = _open(unit, stream)
    body = emitter.block(nest.body, Context())
    regions, entry_body = _outline(unit, body)
    functions = [*regions, *_entry(unit, entry, opening, entry_body)]
    text = "\n".join([_title(nest, target, numerics), _PREAMBLE, *emitter.helpers.text(), f"enum {{ ARENA_BYTES = {emitter.arena + 64} }};", "", _shared(unit), *functions]) + "\n"
    contract = "-ffp-contract=off" if strict else "-ffp-contract=fast"
    outside = tuple(b.name for b in nest.buffers if b.kind != "temp")
    flags = (*target.flags, contract, "-fno-math-errno", "-fwrapv", "-fno-trapping-math")
    return Module(entry, text, outside, nest.params, flags, target.features)


def _title(nest: LoopNest, target: Target, numerics: str) -> str:
    lines = [f"{nest.name}: {target.name}, {numerics}", "", *str(nest).splitlines()]
    return "\n".join(["/*", *(f" * {line}".rstrip().replace("*/", "* /") for line in lines), " */"])


def _open(unit: _Unit, stream: frozenset[str]) -> list[str]:
    """Declare parameters, pointers and strides at the entry; note them as fields of the shared record."""
    lines: list[str] = []
    for i, p in enumerate(unit.nest.params):
        name = unit.names(f"param {p}")
        lines.append(f"const int64_t {name} = params[{i}];")
        unit.fields.append(("const int64_t", name))
    outside = [b for b in unit.nest.buffers if b.kind != "temp"]
    for i, b in enumerate(outside):
        kind, pointer = _pointer(b), unit.names.fresh(b.name)
        lines.append(f"{kind} {pointer} = ({kind.replace(' restrict', '').removesuffix(' const')})buffers[{i}];")
        unit.fields.append((kind, pointer))
        lines += _memory(unit, b, pointer, b.name in stream)
    return lines + _temporaries(unit)


def _pointer(b: Buffer) -> str:
    return f"{'const ' if b.kind == 'input' else ''}{storage_type(b.dtype)} *restrict const"


def _memory(unit: _Unit, b: Buffer, pointer: str, stream: bool) -> list[str]:
    declare: dict[str, str] = {}
    memory = memory_of(b, pointer, unit.names, declare, stream)
    unit.emitter.storage[b.name] = memory
    unit.fields += [("const int64_t", name) for name in declare]
    return [f"const int64_t {name} = {text};" for name, text in declare.items()]


def _temporaries(unit: _Unit) -> list[str]:
    """Whole intermediate tensors lie one after another in the workspace."""
    temps = [b for b in unit.nest.buffers if b.kind == "temp"]
    if not temps:
        return []
    lines, sizes = [], []
    for b in temps:
        size = unit.names.fresh(f"{b.name}_bytes")
        cells = " * ".join([f"({affine_text(e, unit.names)})" for e in b.shape] or ["1"])
        lines.append(f"const size_t {size} = ((size_t)({cells}) * {max(dtypes.info(b.dtype).bits, 8) // 8} + 63) / 64 * 64;")
        sizes.append(size)
    lines.append(f"char *const work = (char *)runtime->workspace({' + '.join(sizes)} + 64);")
    lines.append("if (!work) return 1;")
    for i, b in enumerate(temps):
        kind, pointer = _pointer(b), unit.names.fresh(b.name)
        lines.append(f"{kind} {pointer} = ({kind.replace(' restrict', '').removesuffix(' const')})(work{''.join(f' + {s}' for s in sizes[:i])});")
        unit.fields.append((kind, pointer))
        lines += _memory(unit, b, pointer, False)
    return lines


def _shared(unit: _Unit) -> str:
    """Return the record that regions are given."""
    fields = ["  const polyq_runtime *runtime;", *(f"  {_plain(kind)}{name};" for kind, name in unit.fields)]
    return "\n".join(["struct shared {", *fields, "};", ""])


def _plain(kind: str) -> str:
    """Return a declarable field type: without the const of the variable itself and restrict."""
    if kind == "const int64_t":
        return "int64_t "
    return kind.replace(" *const restrict", " *").replace(" *restrict const", " *")


def _outline(unit: _Unit, body: list[cgen.Generable]) -> tuple[list[str], list[cgen.Generable]]:
    """Emit each threaded region as a function and put its call where its marker stands."""
    functions: list[str] = []
    done = 0
    emitter = unit.emitter
    while done < len(emitter.regions):
        loop, context = emitter.regions[done]
        functions.append(_region(unit, done, loop, context))
        done += 1
    return functions, body


def _region(unit: _Unit, number: int, loop: Loop, context: Context) -> str:
    emitter = unit.emitter
    low, high = emitter.bounds(loop, context)
    var = unit.names(f"dim {loop.var}")
    inside = Context(context.bind, None, True, context.visible)
    inner = emitter.block(loop.body, inside)
    head = [f"const struct region_{number} *const given = (const struct region_{number} *)argument;", "const struct shared *const shared = given->shared;"]
    opening = [f"{kind} {name} = shared->{name};" for kind, name in unit.fields]
    opening += [f"{kind} {name} = given->{name};" for kind, name in context.visible]
    unused = [f"(void){name};" for _, name in [*unit.fields, *context.visible]]
    arena = ["char *const arena = (char *)shared->runtime->scratch(ARENA_BYTES);", "if (!arena) { *given->failed = 1; return; }", "(void)arena;"]
    share = [f"const int64_t first = {low}, count = {high} - first > 0 ? {high} - first : 0;"]
    each = cgen.For(
        f"int64_t {var} = first + count * thread / threads", f"{var} < first + count * (thread + 1) / threads", f"++{var}", cgen.Block(inner)
    )
    lines = [*map(cgen.Line, head + opening + unused + arena + share), each]
    record = [f"struct region_{number} {{", "  const struct shared *shared;", "  int *failed;", *(f"  {_plain(k)}{n};" for k, n in context.visible), "};"]
    body = str(cgen.Block(lines))
    return "\n".join([*record, f"static void run_region_{number}(void *argument, int thread, int threads)", body, ""])


def _call(unit: _Unit, number: int) -> list[str]:
    loop, context = unit.emitter.regions[number]
    low, high = unit.emitter.bounds(loop, context)
    extra = "".join(f", .{n} = ({_plain(k).strip()}){n}" for _, n in context.visible for k in [_])
    work = _work(unit, loop.body, context, {loop.var})
    return [
        "{",
        f"  struct region_{number} given = {{.shared = &shared, .failed = &failed{extra}}};",
        f"  const double work = (double)({high} - {low}) * ({work});",
        f"  const double most = 1 + work / {WORK_PER_THREAD};",
        f"  runtime->run(run_region_{number}, &given, most < threads ? (int)most : threads);",
        "}",
    ]


def _work(unit: _Unit, block: Block, context: Context, inner: set[str]) -> str:
    """Return a C estimate of the innermost statements in one iteration; bounds that vary inside count as 16."""
    terms: list[str] = []
    for node in block:
        match node:
            case Loop():
                span = [u - low for u in node.upper for low in node.lower]
                open_span = [e for e in span if not e.dims()]
                trips = f"(double)({affine_text(open_span[0], unit.names)})" if open_span else "16.0"
                terms.append(f"{trips} * ({_work(unit, node.body, context, inner | {node.var})})")
            case Guard() | Scope():
                terms.append(_work(unit, node.body, context, inner))
            case _:
                terms.append("1.0")
    return " + ".join(terms) or "0.0"


def _entry(unit: _Unit, entry: str, opening: list[str], body: list[cgen.Generable]) -> list[str]:
    fields = ", ".join([".runtime = runtime", *(f".{name} = {_cast(kind)}{name}" for kind, name in unit.fields)])
    text = "\n".join(str(item) for item in body)
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("@region "):
            pad = line[: len(line) - len(line.lstrip())]
            lines += [pad + part for part in _call(unit, int(stripped.split()[1]))]
        else:
            lines.append(line)
    signature = f"int {entry}(const polyq_runtime *runtime, void *const *buffers, const int64_t *params, int threads)"
    unused = ["(void)buffers; (void)params; (void)threads;", *(f"(void){name};" for _, name in unit.fields)]
    start = [
        *opening,
        "int failed = 0;",
        "char *const arena = (char *)runtime->scratch(ARENA_BYTES);",
        "if (!arena) return 1;",
        "(void)arena;",
        f"const struct shared shared = {{{fields}}};",
        "(void)shared;",
        *unused,
    ]
    return [signature, "{", *(f"  {line}" for line in start + lines), "  return failed;", "}"]


def _cast(kind: str) -> str:
    return "" if kind.startswith("const int64_t") else f"({_plain(kind).strip()})"

