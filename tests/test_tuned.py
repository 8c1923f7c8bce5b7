"""The database of tuned choices: what build makes of an entry, what it refuses, and how entries travel."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import warnings

import numpy as np
import pytest

import polyq
from polyq.affine.errors import ArgumentError, ScheduleError
from polyq.affine.numbering import Form
from polyq.build import tuned
from polyq.build.advice import Asked
from polyq.build.tuned import Entry
from polyq.schedule.auto import weighed
from polyq.schedule.target import Target, cpu_model

TEXT, SHAPES = "y[i, j] += a[i, k] * b[k, j]", {"a": ("f32", (40, 24)), "b": ("f32", (24, 48))}


def matmul():
    return polyq.parse(TEXT, **SHAPES)


def problem(spec, sizes=(), constants=()):
    return Asked(spec, Form.of(spec), "reassoc", "native", tuple(constants), dict(sizes)).problem()


def options(spec, start, sizes=()):
    """The decision that begins with a word, and its options."""
    form = Form.of(spec)
    known = {form.renaming.numbered(n, "P"): size for n, size in dict(sizes).items()}
    offered = weighed(form.spec, "reassoc", "native", frozenset(), known)[1].offered
    return next((d, o) for d, o in offered.items() if d.startswith(start))


def entry(spec, *choices, when=1e9, cpu=None, sizes=(), **more):
    made = Entry(problem(spec, sizes), cpu or cpu_model(), Target.named().name, "some matmul", choices, 2e-3, 3e-3, 2, when)
    return dataclasses.replace(made, **more)


def check(kernel):
    a, b = np.random.default_rng(1).standard_normal((2, 40, 48)).astype("f4")
    a, b = np.ascontiguousarray(a[:, :24]), np.ascontiguousarray(b[:24])
    np.testing.assert_allclose(kernel(a=a, b=b), a.astype("f8") @ b, rtol=1e-4, atol=1e-4)


# ---- what build makes of it
@pytest.mark.skipif(Target.named().vector_bytes == 0, reason="scalar code has no tiles to choose")
@pytest.mark.parametrize("at", [1, 2, -1])
def test_build_follows_an_entry_and_says_so(folder, at):
    spec = matmul()
    plain = polyq.build(spec)
    assert plain.tuned is None
    assert "tuned" not in str(plain)
    decision, found = options(spec, "tile of")
    kept = entry(spec, (decision, found[at]))
    tuned.keep(kept)
    for _ in range(2):  # made, then from the cache
        kernel = polyq.build(spec)
        assert kernel.tuned == kept
        assert kernel.source != plain.source
        check(kernel)
        shown = Form.of(spec).renaming.text(f"{decision}: {found[at]}")
        assert kernel.explain().startswith(
            f"tuned: 1.50 times as fast as untuned when measured on 2001-09-09 with 2 threads\n    {shown}\n"
        )
        assert "  tuned        1.50 times as fast as untuned" in str(kernel)
        assert kernel.certificate.ok
        assert kernel.schedule.certificate().ok
        assert kernel.schedule != plain.schedule
    tuned.keep(dataclasses.replace(kept, choices=()))
    assert polyq.build(spec).source == plain.source
    assert "what the counts favour was not beaten" in str(polyq.build(spec))


def test_all_texts_of_a_program_share_an_entry(folder):
    spec = matmul()
    decision, found = options(spec, "tile of")
    tuned.keep(entry(spec, (decision, found[1])))
    other = polyq.parse("r[p, q] += g[s, q] * f[p, s]", f=("f32", (40, 24)), g=("f32", (24, 48)))
    assert polyq.build(other).tuned is not None
    longer = polyq.parse(TEXT, a=("f32", (41, 24)), b=("f32", (24, 48)))
    assert polyq.build(longer).tuned is None
    assert polyq.build(spec, numerics="strict").tuned is None
    assert polyq.build(spec, target="c").tuned is None


def test_each_range_has_an_entry_of_its_own(folder):
    spec = polyq.parse(TEXT, a=("f32", ("m", 24)), b=("f32", (24, 48)))
    decision, found = options(spec, "tile of", {"m": 16})
    tuned.keep(entry(spec, (decision, found[1]), sizes={"m": 16}))
    kernel = polyq.build(spec)
    assert kernel.tuned is None
    assert kernel.at(m=16).tuned is not None
    assert "1.50 times as fast as untuned when measured on 2001-09-09 with 2 threads (m from 2 on)" in str(kernel)


def test_an_entry_of_another_cpu_is_not_used(folder):
    spec = matmul()
    decision, found = options(spec, "tile of")
    tuned.keep(entry(spec, (decision, found[1]), cpu="another"))
    assert polyq.build(spec).tuned is None
    assert tuned.find(problem(spec), "another") is not None


def test_choices_can_be_forced_by_hand():
    spec = matmul()
    decision, found = options(spec, "tile of")
    made = polyq.Schedule.auto(spec, choices={decision: found[1]})
    assert made != polyq.Schedule.auto(spec)
    assert made == polyq.Schedule.auto(spec, choices={decision: found[1]})
    with pytest.raises(ScheduleError, match=r"choices that cannot be made: size: 'big' was asked for, but that is not decided here"):
        polyq.Schedule.auto(spec, choices={"size": "big"})


def test_every_option_computes_the_same(folder):
    """Whatever is forced, the certificate holds and the result is that of numpy."""
    spec = matmul()
    form = Form.of(spec)
    offered = weighed(form.spec, "reassoc", "native", frozenset(), {})[1].offered
    for decision, found in offered.items():
        for option in dict.fromkeys([*found[1:3], found[-1]]):
            tuned.keep(entry(spec, (decision, option)))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                check(polyq.build(spec))


# ---- what it refuses
def test_an_entry_that_does_not_apply_is_named_and_not_used(folder):
    spec = matmul()
    plain = polyq.build(spec)
    tuned.keep(entry(spec, (options(spec, "tile of")[0], "lanes along nothing")))
    for _ in range(2):  # the second comes from the cache, and says it as well
        with pytest.warns(RuntimeWarning, match=r"^some matmul: the choices that were tuned for it do not apply, .*'lanes along nothing'"):
            kernel = polyq.build(spec)
        assert kernel.tuned is None
        assert kernel.source == plain.source
        assert kernel.explain().startswith("tuned choices do not apply: choices that cannot be made: tile of y.acc: ")
        check(kernel)


def test_an_entry_whose_schedule_breaks_is_named_and_not_used(folder, monkeypatch):
    from polyq.schedule import cores

    spec = matmul()
    decision, found = options(spec, "tile of")
    tuned.keep(entry(spec, (decision, found[1])))
    panels = cores.panels_of

    def breaks(draft, main, tile):
        if tile.shape == found[1]:
            raise ZeroDivisionError("no such panel")
        return panels(draft, main, tile)

    monkeypatch.setattr(cores, "panels_of", breaks)
    with pytest.warns(RuntimeWarning, match="do not apply.*no such panel"):
        check(polyq.build(spec))


@pytest.mark.parametrize("damage", [
    lambda text: text[:-5], lambda text: text.replace("0.003", "0.004"), lambda text: "", lambda text: "\x00", lambda text: "[]\n[]",
])
def test_a_damaged_entry_is_named_and_not_used(folder, damage):
    spec = matmul()
    path = tuned.keep(entry(spec, (options(spec, "tile of")[0], options(spec, "tile of")[1][1])))
    path.write_text(damage(path.read_text()))
    with pytest.warns(RuntimeWarning, match=f"the tuned choices in {path} are not used: .* is damaged"):
        kernel = polyq.build(spec)
    assert kernel.tuned is None
    check(kernel)


def test_an_entry_of_another_program_in_its_place_is_not_used(folder):
    spec = matmul()
    path = tuned.keep(entry(spec, problem="abc"))
    path.rename(tuned.keep(entry(spec)))
    with pytest.warns(RuntimeWarning, match="it belongs to another program or CPU"):
        assert tuned.find(problem(spec)) is None


@pytest.mark.parametrize(("change", "said"), [
    ({"seconds": 0}, "times positive numbers"), ({"seconds": "1"}, "times positive numbers"), ({"cpu": 3}, "are texts"),
    ({"problem": "../x"}, "hexadecimal key"), ({"choices": [["a"]]}, "pairs of texts"), ({"choices": "ab"}, "pairs of texts"),
    ({"threads": 1.5}, "whole number"), ({"more": 1}, "this one has"),
])  # fmt: skip
def test_what_is_no_entry_says_why(change, said):
    value = json.loads(json.dumps(dataclasses.asdict(entry(matmul(), ("a", "b")))))
    assert Entry.read(value) == entry(matmul(), ("a", "b"))
    with pytest.raises(tuned.Malformed, match=said):
        Entry.read({**value, **change})
    with pytest.raises(tuned.Malformed, match="an entry is a record"):
        Entry.read([value])


# ---- how entries travel
def test_a_database_is_exported_and_merged(folder, tmp_path, monkeypatch):
    spec = matmul()
    one, two = entry(spec, ("a", "b"), when=5.0), entry(spec, ("a", "c"), cpu="another", when=7.0)
    tuned.keep(one)
    tuned.keep(two)
    file = tmp_path / "tuned.json"
    assert tuned.export(file) == 2
    assert list(tuned.entries()) == [two, one]
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / "elsewhere"))
    newer = dataclasses.replace(one, when=6.0, choices=())
    tuned.keep(newer)
    assert tuned.merge(file) == (1, 2)  # the entry that is newer here stays
    assert list(tuned.entries()) == [two, newer]
    assert tuned.merge(file) == (0, 2)
    assert not list(tmp_path.glob(".tuned*"))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "polyq tuned choices 1"}', '{"format": "polyq tuned choices 1", "entries": [{}]}'])
def test_what_is_no_database_is_not_merged(folder, tmp_path, text):
    file = tmp_path / "tuned.json"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=f"^merge: {file} holds no tuned choices: "):
        tuned.merge(file)
    assert list(tuned.entries()) == []
    with pytest.raises(ArgumentError, match=r"none\.json cannot be read: No such file or directory"):
        tuned.merge(tmp_path / "none.json")
    with pytest.raises(ArgumentError, match="cannot be written: No such file or directory"):
        tuned.export(tmp_path / "no" / "x.json")


def _write(number):
    made = entry(matmul(), *((f"decision {k}", f"option {number}") for k in range(200)))
    for _ in range(20):
        tuned.keep(made)


def test_writers_at_the_same_time_leave_a_whole_entry(folder):
    spec = matmul()
    key = problem(spec)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(k,)) for k in range(3)]
    for writer in writers:
        writer.start()
    seen = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a half-written entry would be named
        while any(w.is_alive() for w in writers):
            found = tuned.find(key)
            if found is not None:
                seen.add(frozenset(o for _, o in found.choices))
    assert [w.exitcode for w in writers] == [0, 0, 0]
    assert all(len(options) == 1 for options in seen)
    assert tuned.find(key) is not None
    assert not list((folder / "tuned").glob(".build*"))


def test_cleaning_the_cache_leaves_the_database(folder, capsys):
    from polyq.__main__ import main

    tuned.keep(entry(matmul()))
    assert main(["cache", "clean"]) == 0
    assert len(list(tuned.entries())) == 1
