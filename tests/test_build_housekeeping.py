"""The cache's bound, its cleaning, and the command that lists it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import build_programs
import pytest

import polyq
import polyq.build
from polyq.affine.errors import BuildError
from polyq.build import cache, compiler, housekeeping
from polyq.build.runtime import shared_runtime

build_programs.install()
ROOT = Path(__file__).parent.parent
DAY = 86400.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "cache"
    shared_runtime()  # in the cache of the other tests
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(place))
    place.mkdir(mode=0o700)
    return place


def put(folder, name, size, age):
    path = folder / name
    path.write_bytes(b"x" * size)
    used = time.time() - age
    os.utime(path, (used, used))
    return path


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def answer(value):
    return build_programs.program("answer", [], [("y", "i32", (1,))], f"  *(int *)buffers[0] = {value};")


def test_entries_are_grouped_and_ordered_by_last_use(folder):
    put(folder, "aa.so", 100, 3 * DAY)
    put(folder, "aa.c", 20, 2 * DAY)
    put(folder, "bb.json", 7, DAY)
    put(folder, "failed-cc.c", 5, 9 * DAY)
    put(folder, "notes.txt", 1000, DAY)
    (folder / ".build-x").mkdir()
    found = housekeeping.entries(folder)
    assert [(e.key, e.kind, e.bytes, len(e.files)) for e in found] == [
        ("bb", "memo", 7, 1), ("aa", "library", 120, 2), ("cc", "failed", 5, 1)
    ]  # fmt: skip
    assert [round((time.time() - e.used) / DAY) for e in found] == [1, 2, 9]
    assert housekeeping.entries(folder / "nothing") == ()


def test_the_least_recently_used_go_first_until_a_tenth_is_free(folder):
    for day in range(1, 11):
        put(folder, f"k{day:02}.so", 90, day * DAY)
        put(folder, f"k{day:02}.c", 10, day * DAY)
    assert housekeeping.trim(folder, 1000) == 0
    assert housekeeping.trim(folder, 500) == 600  # 450 at most stay
    assert names(folder) == sorted(f"k{day:02}.{end}" for day in range(1, 5) for end in ("so", "c"))


def test_what_was_used_a_moment_ago_stays(folder):
    put(folder, "old.so", 100, DAY)
    put(folder, "new.so", 100, 1)
    assert housekeeping.trim(folder, 10) == 100
    assert names(folder) == ["new.so"]


def test_a_build_keeps_the_bound_and_what_it_made(folder, monkeypatch):
    put(folder, "old.so", 10_000_000, DAY)
    monkeypatch.setenv("POLYQ_CACHE_SIZE", "1M")
    assert polyq.build(answer(4))()[0] == 4
    assert "old.so" not in names(folder)
    assert {Path(n).suffix for n in names(folder)} == {".so", ".c", ".json"}


def test_a_use_makes_an_entry_young(folder):
    polyq.build(answer(5))
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    polyq.build(answer(5))
    assert all(time.time() - e.used < 3600 for e in housekeeping.entries(folder))


@pytest.mark.parametrize(
    ("text", "limit"), [("", 1 << 30), ("1234", 1234), ("3k", 3 << 10), ("5M", 5 << 20), ("2GB", 2 << 30), ("0", 0)]
)
def test_the_bound_is_read_from_the_environment(monkeypatch, text, limit):
    monkeypatch.setenv("POLYQ_CACHE_SIZE", text)
    assert housekeeping.size_limit() == limit


@pytest.mark.parametrize("text", ["much", "1.5G", "-1", "G"])
def test_a_bound_that_is_none_is_refused_by_a_build(folder, monkeypatch, text):
    monkeypatch.setenv("POLYQ_CACHE_SIZE", text)
    with pytest.raises(BuildError, match=rf"^POLYQ_CACHE_SIZE='{text}': expected a number of bytes, such as 500M or 2G$"):
        cache.find_library("int one = 1;", (), compiler.find_compiler())


def test_cleaning_spares_builds_on_their_way_and_strangers(folder):
    polyq.build(answer(6))
    put(folder, "failed-aa.c", 5, 1)
    put(folder, "notes.txt", 5, 1)
    (folder / ".build-x").mkdir()
    size = sum(e.bytes for e in housekeeping.entries(folder))
    assert housekeeping.clean(folder) == size > 1000
    assert names(folder) == [".build-x", "notes.txt"]
    assert polyq.build(answer(6))()[0] == 6


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "polyq", *arguments], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


def test_the_command_lists_says_the_size_and_cleans(folder):
    polyq.build(polyq.parse("y[i] = 2.0 * x[i]", x=("f32", ("n",))), target="c", numerics="strict")
    put(folder, "failed-0123456789abcdef.c", 2048, 2 * DAY)
    listed = run("cache").stdout.splitlines()
    assert listed[0].split() == ["key", "kind", "size", "last", "used", "source"]
    rows = {line[:36].split()[1]: line for line in listed[1:-1]}
    assert set(rows) == {"library", "memo", "failed"}
    assert rows["library"].endswith("  just now  kernel: c, strict")
    assert rows["failed"].split()[:6] == ["0123456789ab", "failed", "2.0", "KiB", "2", "d"]
    assert listed[-1].startswith(f"{folder}: 4 entries, ")  # the memo is a plan and a link to it
    assert listed[-1].endswith(" of at most 1.0 GiB")
    assert run("cache", "size").stdout == listed[-1] + "\n"
    assert run("cache", "size", POLYQ_CACHE_SIZE="3M").stdout.endswith(" of at most 3.0 MiB\n")
    cleaned = run("cache", "clean").stdout
    assert cleaned.startswith(f"{folder}: ")
    assert cleaned.endswith(" KiB removed\n")
    assert names(folder) == []
    assert run("cache", "list").stdout.splitlines()[1:] == [f"{folder}: 0 entries, 0 B of at most 1.0 GiB"]


def test_the_command_refuses_what_it_does_not_know(folder):
    result = run("cache", "eat")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "python -m polyq cache: 'eat' is not known; --help lists the actions\n"
    assert run("cache", "--help").stdout.startswith("usage: python -m polyq cache [list | size | clean]\n")
    bad = run("cache", POLYQ_CACHE_SIZE="x")
    assert (bad.returncode, bad.stderr) == (
        2, "python -m polyq: POLYQ_CACHE_SIZE='x': expected a number of bytes, such as 500M or 2G\n"
    )  # fmt: skip
