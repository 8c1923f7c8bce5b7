"""Child processes that import this very polyq, whatever the current folder holds."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["python_command"]


def python_command(code: str) -> list[str]:
    """Return the command that runs ``code`` in a new interpreter with this package in reach.

    ``python -c`` looks into the current folder first, where another polyq may lie.
    """
    place = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {place!r})\n{code}"]
