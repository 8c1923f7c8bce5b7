#!/usr/bin/env python3
"""The limits of this machine as a Markdown table: reading, copying, f32 multiply-adds, by number of threads.

python benchmarks/limits.py [--threads 1,2] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from polyq.limits import Copy, Fma, Read
from polyq.schedule.target import Target


def main() -> None:
    """Measure all limits, interleaved round by round, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = Target.named("native").cores
    parser.add_argument("--threads", default=",".join(map(str, sorted({1, cores}))))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"{Target.named('native')}\n")
    print("| threads | read GB/s | streams | copy GB/s | f32 GFLOP/s |\n|---|---|---|---|---|")
    for threads in map(int, options.threads.split(",")):
        read, copy, fma = Read(16 << 20, 16, threads), Copy(64 << 20, threads), Fma(2e9, threads)
        rounds = [(read.seconds(), copy.seconds(), fma.seconds()) for _ in range(options.rounds)]
        r, c, f = (statistics.median(times) for times in zip(*rounds, strict=True))
        figures = (
            f"{read.size / r / 1e9:.1f}",
            read.streams,
            f"{2 * copy.size / c / 1e9:.1f}",
            f"{fma.flop / f / 1e9:.0f}",
        )
        print(f"| {threads} | {' | '.join(map(str, figures))} |")


if __name__ == "__main__":
    main()
