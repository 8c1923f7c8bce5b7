#!/usr/bin/env python3
"""Times the group-quantized matmul against the number of rows, beside the machine's limits and what is installed.

    python benchmarks/batch.py [--bits 8] [--rows 1,2,4,8,16,32,64,128] [--threads 1] [--modes reassoc,i16]
                               [--shape 4096,32] [--rounds 5] [--peers numpy,ort] [--plot FILE.svg]

Writes a Markdown table of milliseconds (medians) and, with matplotlib, a plot with both limits drawn in: the time to
read the weights, and that of the float multiply-adds. Every column of a row is measured in the same rounds, on weights
that are cold, each peer in a process of its own; its result is compared with float64 first. What is not installed is
named below the table (pip install onnxruntime onnx llama-cpp-python iree-base-compiler iree-base-runtime). So are
numbers of rows that take polyq longer than the next larger one does, by more than a twentieth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.aside import Aside, PeerError
from benchmarks.peers import COLD_BYTES, PEERS
from benchmarks.rows import PAUSE
from benchmarks.table import GROUP
from polyq.limits import Fma, Read

ROWS = (*range(1, 33), 48, 64, 96, 128, 200, 256, 512)
ALLOWED = 1.05  # of the time of the next larger number of rows

#: the medians in seconds of each limit and peer, by the number of rows
Times = dict[int, dict[str, float]]


def started(names: Sequence[str], shape: tuple[int, int, int, int], problems: dict[str, str]) -> list[Aside]:
    """Return the peers that can be had; ``problems`` says what is wrong with the others."""
    found: list[Aside] = []
    for name in names:
        try:
            found.append(Aside(name, shape))
        except PeerError as error:
            problems[name] = str(error)
    return found


class Limits:
    """The times to read the weights and to multiply floats, for so many rows."""

    def __init__(self, shape: tuple[int, int, int, int], m: int) -> None:
        n, groups, bits, threads = shape
        size = n * groups * GROUP * bits // 8 + 2 * 4 * n * groups
        self.count = int(COLD_BYTES / size) + 2
        self.read = Read(size, self.count, threads)
        self.fma = Fma(2.0 * m * n * groups * GROUP, threads)

    def seconds(self) -> dict[str, float]:
        """Measure both."""
        return {"read": self.read.seconds(), "FMA": self.fma.seconds()}


def measured(
    peers: Sequence[Aside], shape: tuple[int, int, int, int], m: int, rounds: int, problems: dict[str, str]
) -> dict[str, float]:
    """Return the median seconds of each limit and peer for m rows, all in the same rounds."""
    limits, ready = Limits(shape, m), list[Aside]()
    for peer in peers:
        try:
            peer.prepare(m)
            ready.append(peer)
        except PeerError as error:
            problems[f"{peer.name}, {m} rows"] = str(error)
    turns = limits.count if m < 64 else 1  # many rows take long enough with one set, another each round
    found: dict[str, list[float]] = {}
    for at in range(rounds):
        times = limits.seconds()
        for peer in ready:
            time.sleep(PAUSE)
            times[peer.name] = peer.seconds(at, turns)
        for name, seconds in times.items():
            found.setdefault(name, []).append(seconds)
    return {name: statistics.median(times) for name, times in found.items()}


def table(found: Times) -> str:
    """Return the medians as Markdown, milliseconds; a dash where a peer has no time."""
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    lines = [f"| rows | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for m, times in found.items():
        cells = (f"{1e3 * times[n]:.3g}" if n in times else "-" for n in names)
        lines.append(f"| {m} | {' | '.join(cells)} |")
    return "\n".join(lines)


def slower(found: Times) -> list[str]:
    """Say where polyq takes longer for some rows than for the next larger number of them."""
    said: list[str] = []
    for m, larger in zip(found, list(found)[1:], strict=False):
        for name, seconds in found[m].items():
            more = found[larger].get(name)
            if name.startswith("polyq") and more is not None and seconds > ALLOWED * more:
                said.append(f"{name}: {m} rows take {seconds / more:.2f} times as long as {larger}")
    return said


def plot(found: Times, title: str, path: str) -> None:
    """Draw the times against the rows, the limits dashed."""
    import matplotlib

    matplotlib.use("svg" if path.endswith(".svg") else "agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name in dict.fromkeys(name for times in found.values() for name in times):
        style = "k--" if name == "read" else "k:" if name == "FMA" else "o-"
        points = [(m, 1e3 * times[name]) for m, times in found.items() if name in times]
        axes.loglog(*zip(*points, strict=True), style, label=name, markersize=3)
    axes.set(xlabel="rows of activations", ylabel="milliseconds", title=title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path)


def report(found: Times, title: str, problems: Mapping[str, str]) -> str:
    """Return the whole report as Markdown."""
    left = [f"{name}: not measured, {why}" for name, why in problems.items()]
    notes = "\n".join(f"- {line}" for line in [*slower(found), *left])
    return f"{title}\n\n{table(found)}\n\n{notes}".rstrip()


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bits", type=int, choices=(4, 8), default=8)
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["reassoc"], help="numerics of polyq")
    parser.add_argument("--shape", type=lambda text: [int(e) for e in text.split(",")], default=[4096, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--plot", metavar="FILE")
    asked = parser.parse_args()
    if unknown := set(asked.peers) - {*PEERS, ""}:
        parser.error(f"--peers: {', '.join(sorted(unknown))}: the peers are {', '.join(PEERS)}")
    n, groups = asked.shape
    shape, problems = (n, groups, asked.bits, asked.threads), dict[str, str]()
    names = [*(f"polyq {mode}" for mode in asked.modes), *filter(None, asked.peers)]
    peers = started(names, shape, problems)
    found = {m: measured(peers, shape, m, asked.rounds, problems) for m in asked.rows}
    title = f"{asked.bits} bits, {n} x {groups * GROUP}, threads: {asked.threads}; ms, medians of {asked.rounds} rounds"
    print(report(found, title, problems))
    if asked.plot:
        plot(found, title, asked.plot)
    for peer in peers:
        peer.close()


if __name__ == "__main__":
    main()
