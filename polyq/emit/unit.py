"""The whole translation unit: preamble, one function per threaded loop, and the entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import cgen

from polyq.affine import dtypes
from polyq.emit import blocks
from polyq.emit.address import Names, factor_text, memory_of
from polyq.emit.body import Context, Emitter
from polyq.emit.ctypes import storage_type
from polyq.emit.helpers import Helpers, words
from polyq.emit.module import Module
from polyq.emit.threads import check_packed, is_uneven, work
from polyq.schedule.loopnest import Buffer, Loop, LoopNest

if TYPE_CHECKING:
    from polyq.schedule.target import Target

__all__ = ["c_module"]

_PREAMBLE = """\
#include <stddef.h>
#include <stdint.h>

typedef struct {
  void (*run)(void (*body)(void *argument, int part, int parts), void *argument, int threads);
  void *(*workspace)(size_t bytes);
  void *(*scratch)(size_t bytes);
} polyq_runtime;
"""
#: what stands in front of the functions where they use it
_OPTIONAL = {
    "vector": '#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to inlined functions only */',
    "KEEP": """\
/* That every cell is written before it is read is proven on the loop nest; gcc cannot follow equal conditions. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
/* Keeps a value in its register, so that the compiler loads it once for all its users. */
#if defined(__AVX512F__)
#define KEEP(v) __asm__("" : "+v"(v))
#elif defined(__x86_64__)
#define KEEP(v) __asm__("" : "+x"(v))
#elif defined(__aarch64__)
#define KEEP(v) __asm__("" : "+w"(v))
#else
#define KEEP(v) (void)(v)
#endif""",
    "ROLLED": """\
/* Stands in a loop over a tile in registers: what its iterations load in common is not kept over them. */
#if defined(__GNUC__)
#define ROLLED() __asm__ volatile("" : : : "memory")
#else
#define ROLLED() (void)0
#endif""",
    "STREAM": """\
/* Stores 16 bytes past the cache, at an aligned address; the fence makes them visible. */
typedef float stream16 __attribute__((vector_size(16), may_alias));
#if defined(__clang__)
#define STREAM(address, value) __builtin_nontemporal_store(value, (stream16 *)(address))
#elif defined(__x86_64__)
#define STREAM(address, value) __builtin_ia32_movntps((float *)(address), value)
#else
#define STREAM(address, value) (*(stream16 *)(address) = (value))
#endif
#if defined(__x86_64__)
#define STREAM_FENCE() __builtin_ia32_sfence()
#else
#define STREAM_FENCE() (void)0
#endif""",
    "index_floor": "static inline int64_t index_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); }",
}

#: iterations of innermost statements below which a second thread costs more than it brings (a region is 1 to 2 us)
WORK_PER_THREAD = 16384


@dataclass(frozen=True, slots=True)
class _Local:
    """A constant of the entry: its C type, its name and its value."""

    kind: str
    name: str
    value: str

    @property
    def line(self) -> str:
        return f"{self.kind} {self.name} = {self.value};"

    @property
    def member(self) -> str:
        """The variable as a member of a record."""
        return _member(self.kind, self.name)


def _member(kind: str, name: str) -> str:
    """Return the declaration of a member: the type without the qualifiers of the variable itself."""
    if "*" in kind:
        return f"{kind[: kind.index('*') + 1]}{name};"
    return f"{kind.removeprefix('const ')} {name};"


@dataclass
class _Unit:
    """A module in the making: constants of the entry, functions, and their C."""

    nest: LoopNest
    names: Names
    emitter: Emitter
    locals: list[_Local] = field(default_factory=list[_Local])
    functions: list[str] = field(default_factory=list[str])
    used: set[str] = field(default_factory=set[str])


def c_module(
    nest: LoopNest,
    target: Target,
    numerics: str,
    prefetch: dict[str, int] | None = None,
    stream: frozenset[str] = frozenset(),
) -> Module:
    """Return the C of ``nest`` for ``target``.

    ``prefetch`` maps buffers to a distance in bytes; ``stream`` names outputs that are stored past the cache. Raises
    :class:`~polyq.affine.errors.ScheduleError` where threads would write elements that share a byte.
    """
    names = Names()
    entry = names.fresh(f"kernel_{nest.name}")
    strict = numerics == "strict"
    helpers = Helpers(target.vector_bytes, target.dots, target.libmvec)
    emitter = Emitter(names, helpers, strict, (prefetch or {}) if target.vector_bytes else {})
    unit = _Unit(nest, names, emitter)
    emitter.threaded = lambda loop, context: _region(unit, loop, context)
    failure = _open(unit, stream if target.vector_bytes else frozenset())
    body = _text(emitter.block(nest.body, Context()))
    if emitter.helpers.streams:
        body += "\nSTREAM_FENCE();"
    functions = "\n".join([*unit.functions, _entry(unit, entry, failure, body)])
    text = "\n".join([_title(nest, target, numerics), _PREAMBLE, *_declarations(unit, functions), functions]) + "\n"
    outside = tuple(b.name for b in nest.buffers if b.kind != "temp")
    contract = "-ffp-contract=off" if strict else "-ffp-contract=fast"
    flags = (*target.flags, contract, "-fno-math-errno", "-fwrapv", "-fno-trapping-math")
    return Module(entry, text, outside, nest.params, flags, target.features)


def _title(nest: LoopNest, target: Target, numerics: str) -> str:
    lines = [f"{nest.name}: {target.name}, {numerics}", "", *str(nest).splitlines()]
    return "\n".join(["/*", *(f" * {line}".rstrip().replace("*/", "* /") for line in lines), " */"])


def _declarations(unit: _Unit, functions: str) -> list[str]:
    """Return what the functions need in front of them."""
    helpers = unit.emitter.helpers.text(functions)
    named = words(functions + "\n".join(helpers))
    wanted = named | ({"vector"} if unit.emitter.helpers.vector_bytes else set[str]())
    optional = [text for word, text in _OPTIONAL.items() if word in wanted]
    arena = [f"enum {{ ARENA_BYTES = {unit.emitter.arena + 64} }};"] if "ARENA_BYTES" in named else []
    return [
        part + "\n" for part in ("\n".join(optional), "\n".join([*helpers, *arena]), "\n".join(_shared(unit))) if part
    ]


def _text(nodes: Iterable[cgen.Generable]) -> str:
    return "\n".join(str(node) for node in nodes)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for text in lines for line in text.splitlines()]


# ---- what the entry holds
def _open(unit: _Unit, stream: frozenset[str]) -> str:
    """Declare parameters, pointers and strides; return the C that ends the entry where memory is missing."""
    for i, p in enumerate(unit.nest.params):
        unit.locals.append(_Local("const int64_t", unit.names(f"param {p}", p), f"params[{i}]"))
    for i, b in enumerate(b for b in unit.nest.buffers if b.kind != "temp"):
        _pointer(unit, b, f"buffers[{i}]", b.name in stream)
    temps = [b for b in unit.nest.buffers if b.kind == "temp"]
    if not temps:
        return ""
    sizes: list[str] = []
    for b in temps:
        cells = " * ".join([f"(size_t){factor_text(e, unit.names)}" for e in b.shape] or ["(size_t)1"])
        size = unit.names.fresh(f"{b.name}_bytes")
        unit.locals.append(_Local("const size_t", size, f"({cells} * {_unit_bytes(b)} + 63) / 64 * 64"))
        sizes.append(size)
    work = unit.names.fresh("workspace")
    unit.locals.append(_Local("char *const", work, f"(char *)runtime->workspace({' + '.join(sizes)} + 64)"))
    for i, b in enumerate(temps):
        _pointer(unit, b, " + ".join([work, *sizes[:i]]), False)
    return f"if (!{work}) return 1;"


def _pointer(unit: _Unit, b: Buffer, address: str, stream: bool) -> None:
    """Declare a buffer's pointer, its symbolic strides, and whether it is aligned for stores past the cache."""
    kind = f"{'const ' if b.kind == 'input' else ''}{storage_type(b.dtype)} *"
    name = unit.names.fresh(b.name)
    inner = address if address.isidentifier() or address.endswith("]") else f"({address})"
    unit.locals.append(_Local(f"{kind}restrict const", name, f"({kind}){inner}"))
    declare: dict[str, str] = {}
    memory = memory_of(b, name, unit.names, declare)
    unit.locals += [_Local("const int64_t", n, text) for n, text in declare.items()]
    if stream:
        tests = [f"(uintptr_t){name} % 16 == 0", *(f"{n} * {_unit_bytes(b)} % 16 == 0" for n in declare)]
        memory = replace(memory, stream=unit.names.fresh(f"{b.name}_aligned"))
        unit.locals.append(_Local("const int64_t", memory.stream, " && ".join(tests)))
    unit.emitter.storage[b.name] = memory


def _unit_bytes(b: Buffer) -> int:
    return max(dtypes.info(b.dtype).bits, 8) // 8


def _shared(unit: _Unit) -> list[str]:
    """Return the record that regions are given."""
    if not unit.functions:
        return []
    fields = [f"  {x.member}" for x in unit.locals if x.name in unit.used]
    return ["struct shared {", "  const polyq_runtime *runtime;", *fields, "};"]


# ---- regions
def _region(unit: _Unit, loop: Loop, context: Context) -> list[cgen.Generable]:
    """Print a threaded loop as a function of its own; return the call."""
    check_packed(unit.nest, loop)
    emitter, number = unit.emitter, len(unit.functions)
    low, high = emitter.bounds(loop, context)
    unit.functions.append("")  # its place: a region inside comes later
    outer, emitter.helpers.streams = emitter.helpers.streams, False
    with unit.names.scope():
        var = unit.names.loop(loop.var)
        inner = emitter.looped(loop, replace(context, parallel=True))
    fence = blocks.lines(["STREAM_FENCE();"] if emitter.helpers.streams else [])
    emitter.helpers.streams = outer
    span = f"const int64_t first = {low}, count = {high} > first ? {high} - first : 0;"
    each = _slices(var, inner, is_uneven(loop))
    text = _text([*blocks.lines([span]), each, *fence])
    used = words(text)
    given = [(kind, name) for kind, name in context.visible if name in used]
    unit.used |= used
    unit.functions[number] = _function(unit, number, text, used, given)
    count = f"{high} - {low}" if low != "0" else high
    record = "".join([".shared = &shared, .failed = &failed", *(f", .{n} = {n}" for _, n in given)])
    lines = [
        f"struct region_{number} given = {{{record}}};",
        f"const double work = (double)({count}) * ({work(loop.body, unit.names, context.bind)});",
        f"const double most = 1 + work / {WORK_PER_THREAD};",
        f"runtime->run(run_region_{number}, &given, most < threads ? (int)most : threads);",
    ]
    unit.used |= words("\n".join(lines))
    return [blocks.braces(blocks.lines(lines))]


def _slices(var: str, inner: list[cgen.Generable], uneven: bool) -> cgen.Generable:
    """Return a part of ``first`` to ``first + count``: a slice, or two that lie opposite each other.

    Where work grows from one end to the other, as over a triangle, two opposite slices come to the same for all parts.
    """
    if not uneven:
        start, end = "first + count * part / parts", "first + count * (part + 1) / parts"
        return blocks.loop(f"int64_t {var} = {start}", f"{var} < {end}", f"++{var}", inner)
    start, end = "first + count * slice / (2 * parts)", "first + count * (slice + 1) / (2 * parts)"
    each = blocks.loop(f"int64_t {var} = {start}", f"{var} < {end}", f"++{var}", inner)
    step = "slice = slice < parts ? 2 * parts - 1 - part : 2 * parts"
    return blocks.loop("int slice = part", "slice < 2 * parts", step, [each])


def _function(unit: _Unit, number: int, body: str, used: set[str], given: list[tuple[str, str]]) -> str:
    fields = [f"  {_member(kind, n)}" for kind, n in given]
    record = [f"struct region_{number} {{", "  const struct shared *shared;", "  int *failed;", *fields, "};"]
    opening = [
        f"const struct region_{number} *const given = argument;",
        *(f"{x.kind} {x.name} = given->shared->{x.name};" for x in unit.locals if x.name in used),
        *(f"{kind} {n} = given->{n};" for kind, n in given),
    ]
    if "arena" in used:
        opening += ["char *const arena = given->shared->runtime->scratch(ARENA_BYTES);"]
        opening += ["if (!arena) { *given->failed = 1; return; }"]
    if len(opening) == 1:
        opening = ["(void)argument;"]
    head = f"static void run_region_{number}(void *argument, int part, int parts)"
    return "\n".join([*record, "", head, "{", *_indented([*opening, body]), "}", ""])


def _entry(unit: _Unit, entry: str, failure: str, body: str) -> str:
    """Return the entry: what it and the regions use of its constants, then the body."""
    used = words(body) | {x.name for x in unit.locals if x.name in unit.used}
    opening: list[str] = []
    for x in reversed(unit.locals):
        if x.name in used:
            used |= words(x.value)
            if "workspace(" in x.value:
                opening.insert(0, failure)
            opening.insert(0, x.line)
    if "arena" in used:
        opening += ["char *const arena = runtime->scratch(ARENA_BYTES);", "if (!arena) return 1;"]
    if unit.functions:
        shared = [f".{x.name} = {x.name}" for x in unit.locals if x.name in unit.used]
        members = ", ".join([".runtime = runtime", *shared])
        opening += ["int failed = 0;", f"const struct shared shared = {{{members}}};"]
    used |= words("\n".join(opening))
    unused = [f"(void){name};" for name in ("runtime", "buffers", "params", "threads") if name not in used]
    signature = f"int {entry}(const polyq_runtime *runtime, void *const *buffers, const int64_t *params, int threads)"
    end = "return failed;" if unit.functions else "return 0;"
    return "\n".join([signature, "{", *_indented([*unused, *opening, body, end]), "}"])
