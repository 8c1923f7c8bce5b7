#!/usr/bin/env python3
"""Execute notebooks from top to bottom; the first cell that raises ends the run with its traceback.

    python tools/notebooks.py [NOTEBOOK ...]      (default: all in the notebooks folder)

The files stay as they are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Execute each notebook in its own kernel, from its own folder."""
    for path in map(Path, arguments) if arguments else sorted((ROOT / "notebooks").glob("*.ipynb")):
        started = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.resolve().parent)}})
        client.execute()
        cells = sum(cell.cell_type == "code" for cell in notebook.cells)
        print(f"{path.name}: {cells} code cells in {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
