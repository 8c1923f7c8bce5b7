"""What notebooks show: well-formed, static, escaped, and with every word of the text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import polyq
from polyq.affine.html import STYLESHEET, Html, page, tag
from polyq.schedule.explanation import Explanation, noted

HOSTILE = '<script>alert("&")</script>\x00\x1b[31m\ud800'
#: what static pages have no need of
FORBIDDEN = {"script", "link", "img", "iframe", "object", "embed", "form", "input", "svg", "base", "meta", "a", "video"}


def parsed(html: str) -> ElementTree.Element:
    """Parse a page as XML, which forgives nothing; check that it is static."""
    root = ElementTree.fromstring(html)
    for element in root.iter():
        assert element.tag not in FORBIDDEN
        assert set(element.attrib) <= {"class", "open", "scope"}, element.attrib
    style = "".join(e.text for e in root.iter("style"))
    assert style == STYLESHEET
    assert re.search(r"url\(|@import|https?:|expression\(", html) is None
    known = set(re.findall(r"pq-[a-z]+", STYLESHEET))
    used = {c for e in root.iter() for c in e.get("class", "").split()} - {"polyq"}
    assert used <= known, used - known
    return root


def words(element: ElementTree.Element) -> str:
    """Return the text of an element, styles aside, with single spaces."""
    return " ".join("".join(t for e in texts(element) for t in e).split())


def texts(element):
    if element.tag != "style":
        yield element.text or ""
        for child in element:
            yield from texts(child)
            yield child.tail or ""


def lines_of(tree: ElementTree.Element):
    return [words(e) for e in tree.iter() if "pq-line" in e.get("class", "").split()]


def text_lines(text: str) -> list[str]:
    """Return the lines of a text tree, continuations joined, without what draws it."""
    found: list[str] = []
    for line in text.splitlines():
        if re.match(r"[│ ]*[├└]─ |whole tensors|prepared once", line):
            found.append(line)
        else:
            found[-1] += " " + re.sub(r"^[│ ]*", "", line)
    return [" ".join(re.sub(r"^[│ ]*[├└]─ ", "", line).split()) for line in found]


# ---- the vocabulary
def test_texts_and_attributes_are_escaped():
    assert tag("p", "a < b & c", Html("<b>x</b>")).markup == "<p>a &lt; b &amp; c<b>x</b></p>"
    assert tag("th", "x", scope='a"b').markup == '<th scope="a&quot;b">x</th>'
    assert tag("details", open=True).markup == '<details open="open"></details>'
    assert tag("details", open=False).markup == "<details></details>"


def test_what_markup_cannot_hold_is_replaced():
    root = parsed(page("kind", HOSTILE, tag("p", HOSTILE)))
    said = '<script>alert("&")</script>\ufffd\ufffd[31m\ufffd'
    assert words(root) == f"kind {said} {said}"


def test_every_theme_has_every_colour():
    blocks = re.findall(r"\{((?:--pq-[a-z]+:[^;}]+;?)+)\}", STYLESHEET)
    names = [re.findall(r"(--pq-[a-z]+):", block) for block in blocks]
    assert len(blocks) == 4
    assert all(n == names[0] for n in names)
    assert set(re.findall(r"var\((--pq-[a-z]+)\)", STYLESHEET)) == set(names[0]) - {"--pq-" + n for n in ()}


@pytest.mark.parametrize("at", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(at):
    from polyq.affine.html import _COLOURS

    def luminance(name):
        parts = [int(_COLOURS[name][at][k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    def contrast(a, b):  # WCAG 2.1, 1.4.3
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    inks = ("ink", "soft", "name", "parallel", "vector", "unroll", "good", "bad")
    assert all(contrast(ink, ground) >= 4.5 for ink in inks for ground in ("paper", "wash"))
    assert contrast("bad", "mark") >= 4.5


# ---- schedules
FUSED = "d[n, k] = (f32(w[n, k]) - 8.0) * s[n]\ny[m, n] += x[m, k] * d[n, k] where k <= n + 20"


def fused() -> polyq.Schedule:
    spec = polyq.parse(FUSED, w=("u8", (18, 32)), s=("f32", 18), x=("f32", ("m", 32)))
    plain = polyq.Schedule.naive(spec, target="c")
    return plain.split("y", "n", 4, "no", "ni").parallel("y", "m").unroll("y", "ni").fuse("d", into="y", at="no")


def automatic(text: str, **tensors) -> polyq.Schedule:
    return polyq.Schedule.auto(polyq.parse(text, **tensors), target="avx2")


SOFTMAX = "t[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - t[i])\ns[i] += e[i, j]\ny[i, j] = e[i, j] / s[i]"
MATMUL = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
SCHEDULES = {
    "by hand": fused,
    "a guard": lambda: polyq.Schedule.naive(
        polyq.parse("t += x[i, j] where j <= i, j % 2 == 0\ny = t * 2.0", x=("f32", ("i", "n")), outputs=("y",))
    ),
    "softmax": lambda: automatic(SOFTMAX, x=("f32", ("m", 512))),
    "matmul": lambda: automatic(MATMUL, w=("u8", (256, 8, 64)), z=("f32", (256, 8)), s=("f32", (256, 8)), x=("f32", ("m", 8, 64))),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_every_line_of_its_text(name):
    schedule = SCHEDULES[name]()
    _head, _, tree = str(schedule).partition("\n")
    root = parsed(schedule._repr_html_())
    assert lines_of(root) == text_lines(tree)
    assert words(root.find("header")) == f"schedule {schedule.spec.name} numerics {schedule.numerics} target {schedule.machine.name}"
    for directive in schedule.directives:
        assert str(directive) in words(root)


def test_loops_nest_in_html_as_in_the_nest():
    root = parsed(fused()._repr_html_())
    inner = next(e for e in root.iter("li") if words(e).startswith("no 4 "))
    assert next(words(li.find("*")) for li in inner.find("details/ul")) == "scratch d f32[4, 32] 512 B"
    outer = next(e for e in root.iter("li") if words(e).startswith("m parallel m "))
    assert inner in list(outer.find("details/ul"))


def test_hostile_names_are_escaped_in_a_schedule():
    spec = replace(fused().spec, name=HOSTILE)
    root = parsed(replace(fused(), spec=spec, notes=(f"{HOSTILE}: kept",))._repr_html_())
    assert 'schedule <script>alert("&")</script>' in words(root)


# ---- explanations
def test_an_explanation_is_the_same_text_and_a_table():
    schedule = SCHEDULES["softmax"]()
    said = schedule.explain()
    assert said == "\n".join(schedule.notes)
    root = parsed(said._repr_html_())
    rows = [[words(cell) for cell in row] for row in root.iter("tr")]
    assert rows[0] == ["what", "decided"]
    assert [": ".join(row) for row in rows[1:]] == [" ".join(note.split()) for note in schedule.notes]


def test_alternatives_stand_below_their_decision():
    said = Explanation("\n".join([noted("d: inlined, 2 times a cell", ["stored: 12 cells"]), "every op on its own: no", ".split(op='y')"]))
    assert str(said) == "d: inlined, 2 times a cell\n    stored: 12 cells\nevery op on its own: no\n.split(op='y')"
    rows = [[words(cell) for cell in row] for row in parsed(said._repr_html_()).iter("tr")]
    assert rows[1:] == [["d", "inlined, 2 times a cell stored: 12 cells"], ["", "every op on its own: no"], ["", ".split(op='y')"]]
    assert [words(li) for li in parsed(said._repr_html_()).iter("li")] == ["stored: 12 cells"]


# ---- specs
def table_of(root) -> list[list[str]]:
    return [[words(cell) for cell in row] for row in next(root.iter("table")).iter("tr")]


def test_a_spec_shows_tensors_statements_and_notes():
    spec = polyq.parse("t[i] = x[i] * 2.0\ny[i] += t[i]\nz = t[0] where n >= 1", x=("f32", "n"), y=("f32", "n"), outputs=("y", "z"))
    spec = replace(spec, name=HOSTILE, notes=("n is < 7 & odd",))
    root = parsed(spec._repr_html_())
    assert table_of(root) == [
        ["tensor", "dtype", "shape", "role"],
        ["x", "f32", "[n]", "input"],
        ["y", "f32", "[n]", "input, updated"],
        ["z", "f32", "one number", "output"],
        ["t", "f32", "[n]", "temporary"],
    ]
    assert root.find("pre").text == "\n".join(map(str, spec.ops))
    assert "note n is < 7 & odd" in words(root)
    assert words(root).startswith('program <script>alert("&")</script>')


def test_an_empty_spec_is_a_page():
    assert words(parsed(polyq.Spec("empty")._repr_html_())) == "program empty"


# ---- certificates, witnesses, errors
def refusal() -> polyq.ScheduleError:
    with pytest.raises(polyq.ScheduleError) as caught:
        fused().vectorize("y", "k")
    return caught.value


def test_a_certificate_lists_its_checks():
    certificate = fused().certificate()
    root = parsed(certificate._repr_html_())
    assert words(root.find("header")).startswith("certificate y proven numerics reassoc ")
    rows = table_of(root)
    assert [row[:2] for row in rows[1:]] == [[c.name, "holds"] for c in certificate.checks]
    assert all(re.fullmatch(r"\d+\.\d ms", row[2]) for row in rows[1:])


def test_a_refused_certificate_shows_the_witness():
    spec = polyq.parse("y += x[i]", x=("f32", "n"))
    refused = polyq.Schedule.naive(spec).then(
        polyq.schedule.schedule.Directive("mark", (("op", "y"), ("axis", "i"), ("kind", "parallel")))
    )
    certificate = refused.certificate()
    assert not certificate.ok
    root = parsed(certificate._repr_html_())
    assert "refused" in words(root.find("header"))
    assert "does not hold" in [row[1] for row in table_of(root)]
    assert certificate.violation.headline in words(root)


def test_an_error_shows_the_instances_and_the_place_in_the_loops():
    error = refusal()
    root = parsed(error._repr_html_())
    assert words(root.find("header")) == "ScheduleError"
    assert words(root.find("p")) == str(error).splitlines()[0]
    assert error.witness.instances
    rows = table_of(root)
    assert rows[0] == ["statement", "instance", "loop variables"]
    assert [row[0] for row in rows[1:]] == [i.op for i in error.witness.instances]
    assert [row[1] for row in rows[1:]] == [", ".join(f"{d} = {v}" for d, v in i.dims) for i in error.witness.instances]
    assert "".join(texts(root.find("pre"))) == error.witness.nest
    marked = [e.text for e in root.iter("span") if "pq-mark" in e.get("class", "")]
    assert marked == [line for line in error.witness.nest.splitlines() if line.endswith("<-- here")]
    assert len(marked) == 1
    assert words(parsed(error.witness._repr_html_())).startswith(f"witness {error.witness.headline}")


@pytest.mark.parametrize("kind", [polyq.SpecError, polyq.BuildError, polyq.ArgumentError, polyq.ScheduleError])
def test_any_error_shows_its_message(kind):
    root = parsed(kind(f"{HOSTILE}: wrong\n  command: cc a && b\n  output: <none>")._repr_html_())
    assert words(root.find("header")) == kind.__name__
    assert words(root.find("p")).endswith(": wrong")
    assert root.find("pre").text == "  command: cc a && b\n  output: <none>"
    assert words(parsed(kind("")._repr_html_())) == kind.__name__
    assert words(parsed(kind("one line")._repr_html_())) == f"{kind.__name__} one line"


# ---- kernels
def facts_of(root) -> dict[str, str]:
    return {words(row.find("dt")): words(row.find("dd")) for row in next(root.iter("dl"))}


def text_facts(text: str) -> dict[str, str]:
    return {line[2:14].strip(): " ".join(line[15:].split()) for line in text.splitlines()[1:]}


def test_a_kernel_shows_its_card():
    spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", x=("f32", ("m", 64)), w=("u8", (32, 64)))
    kernel = polyq.build(spec, constants=("w",), target="native")
    root = parsed(kernel._repr_html_())
    expected = text_facts(repr(kernel))
    assert {**facts_of(root), "numerics": kernel.numerics} == expected
    assert words(root.find("header")) == f"kernel {spec.name} numerics reassoc target native"
    assert table_of(root) == [
        ["tensor", "dtype", "shape", "role"],
        ["x", "f32", "[m, 64]", "input"],
        ["w", "u8", "[32, 64]", "input, constant"],
        ["y", "f32", "[m, 32]", "output"],
    ]
    folded = {words(e.find("summary")): words(e) for e in root.iter("details")}
    assert str(spec.ops[-1]) in folded["program"]
    assert all(d.text in folded["decisions"] for d in kernel.explain().decisions)

    layer = kernel.bind(w=np.ones((32, 64), np.uint8))
    root = parsed(layer._repr_html_())
    assert facts_of(root)["bound"] == text_facts(repr(layer))["bound"] == "w, packed as w.packed 2048 B"


def test_a_hostile_name_stays_text_on_a_card():
    spec = replace(polyq.parse("y[i] = 2.0 * x[i]", x=("f32", 3)), name=HOSTILE)
    card = replace(polyq.build(polyq.parse("y[i] = 2.0 * x[i]", x=("f32", 3))).card(bound=HOSTILE), spec=spec, target=HOSTILE)
    root = parsed(card.page(Explanation(f"{HOSTILE}: kept")))
    assert words(root).count('<script>alert("&")</script>') == 5  # name, pill, facts of target and bound, decision


def test_the_automatic_schedule_says_what_else_it_weighed():
    said = SCHEDULES["softmax"]().explain()
    kept = next(d for d in said.decisions if d.text.startswith("kept, since each cell is read twice"))
    # m rows (64, where nothing is known) of 512 cells, each read by the sum and by the quotient
    counted = "computed where it is read: 65536 times in all, not 32768 (with m counted as 64)"
    assert (kept.subject, kept.weighed[0], len(kept.weighed)) == ("e", counted, 4)
    chosen = SCHEDULES["matmul"]().explain().decisions
    tile = next(d for d in chosen if "loads a multiply-add" in d.text and d.weighed)
    costs = [float(re.search(r": (\d+\.\d+) loads a multiply-add$", line)[1]) for line in (tile.text, *tile.weighed)]
    assert len(costs) > 2
    assert costs[0] == min(costs)
    assert costs[1:] == sorted(costs[1:])
    dims = [re.match(r"(?:lanes|partial sums) along (\w+) ", line)[1] for line in (tile.text, *tile.weighed)]
    assert len(set(dims)) == len(dims)
