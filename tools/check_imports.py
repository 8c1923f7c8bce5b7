#!/usr/bin/env python3
"""Check that polyq's rooms import in one direction, and that each outside library is seen by one room alone.

    python tools/check_imports.py [FOLDER]      (default: the polyq folder beside this one)

Prints one line for each import that breaks a rule and exits with 1; imports inside functions count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

#: the rooms in order: each may import itself and those before it
ROOMS = ("affine", "schedule", "emit", "build", "tuning")
#: an outside library -> the only module or room (a path prefix) that may import it
ONLY = {"islpy": "affine/sets/", "cffi": "build/", "cgen": "emit/", "xdsl": "affine/mlir/"}


def imported(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, dotted name as parts) of every import; ``module`` is the package of relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def violations(package: Path) -> list[str]:
    """Return one line for each import below ``package`` that breaks a rule, in order of the files."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        room = inside.parts[0] if len(inside.parts) > 1 else None
        parent = (package.name, *inside.parts[:-1])
        for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), parent):
            reason = _reason(package.name, inside.as_posix(), room, name)
            if reason and (text := f"{package.name}/{inside.as_posix()}:{line}: {reason}") not in found:
                found.append(text)
    return found


def _reason(package: str, inside: str, room: str | None, name: tuple[str, ...]) -> str | None:
    """Return why a module may not import ``name``, or ``None``."""
    owner = ONLY.get(name[0])
    if owner is not None and not inside.startswith(owner):
        return f"imports {name[0]}, which only {owner.rstrip('/')} may"
    if name[0] != package or room is None:
        return None
    if room not in ROOMS:
        return f"{room} is no room of {package}: add it to ROOMS"
    target = name[1] if len(name) > 1 else ""
    if target not in ROOMS:
        return f"the room {room} imports {'.'.join(name)}, which stands above the rooms"
    if ROOMS.index(target) > ROOMS.index(room):
        return f"the room {room} imports {target}, which comes after it"
    return None


def main(arguments: list[str]) -> int:
    """Print what breaks a rule; the exit status is 1 if anything does."""
    package = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent / "polyq"
    found = violations(package)
    print("\n".join(found) if found else f"imports: {len(list(package.rglob('*.py')))} modules, one direction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
