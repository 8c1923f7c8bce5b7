"""The same programs under each C compiler of this machine."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from programs import PROGRAMS

import polyq
import polyq.build
from polyq.build import compiler
from polyq.testing import assert_close

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
if find_spec("ziglang"):
    COMPILERS.append(f"{sys.executable} -m ziglang cc")


@pytest.fixture(params=COMPILERS, ids=lambda name: name.split()[-2] if " " in name else name)
def chosen(request, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CC", request.param)
    return compiler.find_compiler()


@pytest.mark.parametrize("numerics", ["strict", "reassoc"])
@pytest.mark.parametrize("program", PROGRAMS[::16], ids=lambda p: p.name)
def test_programs(chosen, program, numerics, caplog):
    spec = program.spec()
    kernel = polyq.build(spec, numerics=numerics, threads=2)
    assert_close(kernel, **program.arrays(spec), **program.free_params(spec))
    assert [r.getMessage() for r in caplog.records if "compiler says" in r.getMessage()] == []


def test_grouped_codes_threads_and_export(chosen, tmp_path):
    text = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
    spec = polyq.parse(text, w=("u8", (64, 4, 32)), z=("f32", (64, 4)), s=("f32", (64, 4)), x=("f32", ("m", 4, 32)))
    kernel = polyq.build(spec)
    rng = np.random.default_rng(1)
    arrays = {"w": rng.integers(0, 256, (64, 4, 32), np.uint8), "x": rng.standard_normal((9, 4, 32), np.float32)}
    arrays |= {name: rng.random((64, 4), np.float32) for name in "zs"}
    assert_close(kernel, **arrays)
    assert all(path.stat().st_size for path in kernel.save(tmp_path / "grouped"))


def test_strict_sums_are_not_contracted_or_reordered(chosen):
    spec = polyq.parse("y[i] += a[i, k] * b[k]", a=("f32", (33, 257)), b=("f32", 257))
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((33, 257), np.float32), rng.standard_normal(257, np.float32)
    got = polyq.build(spec, numerics="strict")(a, b)
    np.testing.assert_array_equal(got, polyq.interpret(spec, a=a, b=b))


def test_options_are_those_that_the_compiler_takes():
    gcc = compiler.Compiler(("/usr/bin/cc",), "/usr/bin/cc", "cc (Debian 12.2.0-14+deb12u1) 12.2.0")
    clang = compiler.Compiler(("/usr/bin/cc",), "/usr/bin/cc", "Apple clang version 15.0.0")
    zig = compiler.Compiler(("/opt/zig", "cc"), "/opt/zig", "clang version 19.1.7")
    assert gcc.options == ("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops")
    assert clang.options == ()
    assert zig.options == ("-mcpu=baseline", "-fno-sanitize=undefined")
    assert not compiler.Compiler(("ccache", "cc"), "ccache", "gcc 12").is_zig


def test_the_package_serves_where_no_compiler_is_on_the_path(monkeypatch, tmp_path):
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "zig").write_text('#!/bin/sh\necho "clang version 19.1.7"\n')
    (package / "zig").chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = compiler.find_compiler()
    assert (found.command, found.version) == ((str(package / "zig"), "cc"), "clang version 19.1.7")
