"""The process of one candidate: builds it, holds its data, and times calls when told to.

Requests come as lines of JSON on stdin, replies go as lines of JSON to stdout. The first request has the problem and
the choices; each later one asks for a round of calls.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from typing import Any

from polyq.build.building import build_range
from polyq.build.timing import Calls
from polyq.tuning.problem import Problem

__all__ = ["serve"]


def serve() -> None:
    """Serve the requests of one candidate until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is printed on the way is no reply
    prepared: list[Calls] = []
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        try:
            reply = _round(prepared, request["calls"]) if prepared else _built(request, prepared)
        except Exception as error:  # told to the parent, who gives up this candidate
            reply = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _built(request: dict[str, Any], prepared: list[Calls]) -> dict[str, Any]:
    """Build the candidate, prepare its data, and run each point once, untimed."""
    problem = Problem.decode(request["problem"])
    kernel = build_range(
        problem.spec, dict(problem.sizes), request["choices"], numerics=problem.numerics, target=problem.target,
        threads=problem.threads, constants=problem.constants,
    )  # fmt: skip
    made = [
        Calls(kernel, cold=request["cold"], threads=problem.threads, seed=0, params=dict(point))
        for point in problem.points
    ]
    first = [calls.time() for calls in made]
    prepared.extend(made)
    return {"layout": kernel.layout, "first": first}


def _round(prepared: list[Calls], counts: list[int]) -> dict[str, Any]:
    """Time so many calls at each point; the median of each stands for the round."""
    each = [[calls.time() for _ in range(count)] for calls, count in zip(prepared, counts, strict=True)]
    return {"seconds": [statistics.median(times) for times in each]}
