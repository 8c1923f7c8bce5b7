"""The HTML that polyq's values are shown in: tags, escaping, one stylesheet; what they say is up to each room.

A page is static: no script, nothing from outside, every text escaped. Colours follow the page that it stands in
(JupyterLab, VS Code and Colab say whether they are dark), else what the reader's system prefers. Where styles are
stripped, the tags still read as headings, lists and tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Union

__all__ = ["Content", "Html", "code", "facts", "folded", "join", "page", "pill", "said", "table", "tag", "verbatim"]


@dataclass(frozen=True, slots=True)
class Html:
    """Finished markup; any other text is escaped when it goes into a tag."""

    markup: str


Content = Union[str, Html]


def tag(name: str, /, *children: Content, style: str = "", **attributes: str | bool) -> Html:
    """Return an element; ``style`` names its classes, each of the stylesheet.

    >>> tag("b", "x < y", style="name").markup
    '<b class="pq-name">x &lt; y</b>'
    """
    given: dict[str, str | bool] = {"class": " ".join(f"pq-{s}" for s in style.split()), **attributes}
    written = "".join(f' {k}="{k if v is True else escape(str(v))}"' for k, v in given.items() if v)
    return Html(f"<{name}{written}>{join(children).markup}</{name}>")


def join(children: Iterable[Content], between: str = "") -> Html:
    """Return contents side by side, with a text between them."""
    return Html(escape(between).join(c.markup if isinstance(c, Html) else escape(_printable(c)) for c in children))


def _printable(text: str) -> str:
    """Return a text without what markup cannot hold: control characters, halves of surrogate pairs."""
    keep = text.isprintable() or all(c in "\n\t" or c.isprintable() or c == "\xa0" for c in text)
    return (
        text
        if keep
        else "".join(c if c in "\n\t\xa0" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )


def page(kind: str, title: Content, *content: Content, pills: Iterable[Content] = ()) -> str:
    """Return what ``_repr_html_`` returns: a heading that says what it is (``kind``) and which, then the content."""
    about = [Html(" " + p.markup) if isinstance(p, Html) else f" {p}" for p in pills]
    name = (" ", tag("strong", title)) if title else ()
    head = tag("header", tag("span", kind, style="what"), *name, *about)
    inside = join((head, *content), "\n").markup
    return f'<div class="polyq"><style>{STYLESHEET}</style>{inside}</div>'


# ---- what pages are made of
def code(text: str, style: str = "") -> Html:
    """Return a piece of code within a line."""
    return tag("code", text, style=style)


def verbatim(text: Content) -> Html:
    """Return lines of code as they are."""
    return tag("pre", text)


def pill(text: str, tone: str = "") -> Html:
    """Return a word set apart; ``tone`` is ``good``, ``bad``, a kind of loop, or nothing."""
    return tag("span", text, style=f"pill {tone}")


def said(text: str) -> Html:
    """Return a sentence as a paragraph, lines as they are, nothing for nothing."""
    if not text:
        return Html("")
    return verbatim(text) if "\n" in text else tag("p", text)


def facts(given: Mapping[str, Content]) -> Html:
    """Return names with what is said of each, one a line; those of which nothing is said are left out."""
    rows = [tag("div", tag("dt", name), " ", tag("dd", text)) for name, text in given.items() if text]
    return tag("dl", *rows) if rows else Html("")


def table(head: Sequence[str], rows: Iterable[Sequence[Content]]) -> Html:
    """Return a table with a line of headings."""
    top = tag("thead", tag("tr", *(tag("th", h, scope="col") for h in head)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", top, body), style="wide")


def folded(title: Content, *content: Content, opened: bool = False) -> Html:
    """Return content behind a title that opens it."""
    return tag("details", tag("summary", title), tag("div", *content), style="fold", open=opened)


# ---- colours and lines
#: name -> light, dark; all texts have a contrast of at least 4.5 on paper, wash and mark
_COLOURS = {
    "ink": ("#1f2430", "#e3e6eb"), "soft": ("#5c6470", "#9aa3af"), "rule": ("#e0e3e8", "#343a43"),
    "wash": ("#f5f6f8", "#20252c"), "paper": ("#ffffff", "#14171c"), "name": ("#0b57a4", "#82b9ff"),
    "parallel": ("#1a6f3c", "#6fcf8f"), "vector": ("#7440b8", "#c9a5ff"), "unroll": ("#8f5400", "#e5b567"),
    "good": ("#1a6f3c", "#6fcf8f"), "bad": ("#b3261e", "#ff8a80"), "mark": ("#fdecea", "#43211f"),
}  # fmt: skip
#: where a page that says whether it is dark has colours of its own, these are taken
_THEIRS = {"ink": "--jp-content-font-color1", "soft": "--jp-content-font-color2", "rule": "--jp-border-color2"}
#: how pages say it: JupyterLab, VS Code, Colab, documentation sites
_PAGES = (
    'body[data-jp-theme-light="{yes}"] .polyq,body[data-vscode-theme-kind="vscode-{name}"] .polyq,'
    'html[theme="{name}"] .polyq,html[data-theme="{name}"] .polyq'
)
_RULES = """
.polyq{color:var(--pq-ink);background:var(--pq-paper);
font:13px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
padding:2px 2px 6px;max-width:78em;text-align:left;overflow-wrap:anywhere}
.polyq *{box-sizing:border-box}
.polyq code,.polyq pre,.polyq .pq-tree{font-family:var(--jp-code-font-family,ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace);font-size:12px;font-variant-ligatures:none}
.polyq code,.polyq pre{background:none;color:inherit;border:0;padding:0;margin:0}
.polyq header{display:flex;flex-wrap:wrap;align-items:baseline;gap:2px 8px;padding-bottom:6px;margin-bottom:8px;
border-bottom:1px solid var(--pq-rule)}
.polyq header strong{font-size:15px;font-weight:600}
.polyq .pq-what{color:var(--pq-soft);font-size:11px;letter-spacing:.06em;text-transform:uppercase}
.polyq .pq-pill{font-size:11px;line-height:1.5;padding:0 7px;border-radius:9px;background:var(--pq-wash);
color:var(--pq-soft);white-space:nowrap}
.polyq .pq-pill.pq-good,.polyq .pq-good{color:var(--pq-good)}
.polyq .pq-pill.pq-bad,.polyq .pq-bad{color:var(--pq-bad)}
.polyq dl{margin:0 0 8px;padding:0}
.polyq dl>div{display:flex;flex-wrap:wrap;gap:0 12px;padding:1px 0}
.polyq dt{flex:0 0 8em;color:var(--pq-soft);font-weight:400;margin:0;padding:0}
.polyq dd{flex:1 1 18em;margin:0;padding:0}
.polyq p{margin:0 0 8px;max-width:60em}
.polyq pre{white-space:pre;overflow-x:auto;padding:6px 10px;background:var(--pq-wash);border-radius:4px}
.polyq .pq-wide{overflow-x:auto;margin:0 0 8px}
.polyq table{border-collapse:collapse;margin:0;font-size:inherit;color:inherit;border:0}
.polyq table th,.polyq table td{text-align:left;vertical-align:top;padding:3px 18px 3px 0;border:0;background:none;
white-space:normal;max-width:48em}
.polyq table th{white-space:nowrap;color:var(--pq-soft);font-weight:400;font-size:11px}
.polyq tbody tr{border-top:1px solid var(--pq-rule);background:none}
.polyq td ul{margin:2px 0 2px;padding:0;list-style:none;color:var(--pq-soft)}
.polyq .pq-soft{color:var(--pq-soft)}
.polyq .pq-fold{margin:6px 0 0}
.polyq .pq-fold>summary{cursor:pointer;color:var(--pq-soft)}
.polyq .pq-fold>div{padding:6px 0 2px 14px}
.polyq .pq-name{color:var(--pq-name);font-weight:600;white-space:nowrap}
.polyq .pq-parallel{color:var(--pq-parallel)}.polyq .pq-vector{color:var(--pq-vector)}
.polyq .pq-unroll{color:var(--pq-unroll)}
.polyq .pq-mark{display:inline-block;min-width:100%;background:var(--pq-mark);color:var(--pq-bad)}
.polyq .pq-tree,.polyq .pq-tree ul{list-style:none;margin:0;padding:0}
.polyq .pq-tree ul{margin-left:5px;padding-left:14px;border-left:1px solid var(--pq-rule)}
.polyq .pq-tree li{margin:0;padding:0}
.polyq .pq-tree details>summary{cursor:pointer;list-style:none}
.polyq .pq-tree details>summary::-webkit-details-marker{display:none}
.polyq .pq-tree details:not([open])>summary .pq-head::after{content:" \\2026";color:var(--pq-soft)}
.polyq .pq-tree summary:hover{background:var(--pq-wash)}
.polyq .pq-line{display:flex;flex-wrap:wrap;padding:1px 0}
.polyq .pq-line>*{min-width:0;padding-left:1.2em;text-indent:-1.2em}
.polyq .pq-line .pq-head{flex:0 1 auto;min-width:13em}
.polyq .pq-line .pq-body,.polyq .pq-line .pq-touches{flex:1 1 20em;padding-left:2.6em}
.polyq .pq-touches{color:var(--pq-soft)}
.polyq .pq-one{display:inline-block;max-width:100%;text-indent:0;vertical-align:top}
.polyq b{font-weight:600}
.polyq .pq-touches b{color:var(--pq-ink);font-weight:500}
"""


def _stylesheet() -> str:
    light, dark = (";".join(f"--pq-{n}:{c[at]}" for n, c in _COLOURS.items()) for at in (0, 1))
    rules = [f".polyq{{{light}}}", f"@media (prefers-color-scheme:dark){{.polyq{{{dark}}}}}"]
    for at, yes, name in ((0, "true", "light"), (1, "false", "dark")):
        own = {**{n: c[at] for n, c in _COLOURS.items()}, "paper": "transparent"}
        own |= {n: f"var({theirs},{own[n]})" for n, theirs in _THEIRS.items()}
        rules.append(f"{_PAGES.format(yes=yes, name=name)}{{{';'.join(f'--pq-{n}:{c}' for n, c in own.items())}}}")
    return "".join([*rules, *_RULES.splitlines()])


STYLESHEET = _stylesheet()
