"""Where in a file an error is."""

from __future__ import annotations

import re

__all__ = ["placed"]

_PLACE = re.compile(r"line (\d+), `[^`]*`: ")


def placed(file: str, text: str, message: str) -> str:
    r"""Return a message about a program in index notation with the file, and the column where one can be told.

    ``text`` is the file's. What the message quotes last and is found in its line is what it is about, else the line is.

    >>> placed("a.txt", "x: f32[8]\n  y[i] = x[2*i]", "line 2, `y[i] = x[2*i]`: op y: operand x[2*i]: outside")
    'a.txt:2:10: `y[i] = x[2*i]`: op y: operand x[2*i]: outside'
    """
    match = _PLACE.match(message)
    if match is None:
        return f"{file}: {message}"
    number, said = int(match[1]), message[match.end() :]
    line = text.splitlines()[number - 1]
    code = line.split("#", 1)[0]
    start = len(code) - len(code.lstrip())
    quotes = [m[1] or m[2] for m in re.finditer(r"`([^`]+)`|operand (\w+(?:\[.*?\])?)", said)]
    found = [_column(code, quoted) for quoted in quotes]
    column = next((c for c in reversed(found) if c is not None), start)
    return f"{file}:{number}:{column + 1}: {message[message.index('`') :]}"


def _column(line: str, quoted: str) -> int | None:
    """Return where a quoted piece begins; messages write it with spaces of their own."""
    pieces = re.findall(r"\w+|\S", quoted)
    match = re.search(r"\s*".join(map(re.escape, pieces)), line) if pieces else None
    return None if match is None else match.start()
