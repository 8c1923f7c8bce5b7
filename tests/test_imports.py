"""The import-direction check, on polyq itself and on small packages that break each rule."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_imports  # noqa: E402


def make(tmp_path, **files):
    package = tmp_path / "polyq"
    for name, text in files.items():
        path = package / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_polyq_imports_in_one_direction():
    assert check_imports.violations(ROOT / "polyq") == []


@pytest.mark.parametrize(
    ("module", "text", "line"),
    [
        (
            "affine__sets__raw",
            "import polyq.schedule.target",
            "affine/sets/raw.py:1: the room affine imports schedule, which comes after it",
        ),
        (
            "schedule__a",
            "\nfrom polyq import emit",
            "schedule/a.py:2: the room schedule imports emit, which comes after it",
        ),
        (
            "schedule__a",
            "from ..build import kernel",
            "schedule/a.py:1: the room schedule imports build, which comes after it",
        ),
        (
            "emit__a",
            "def f():\n    import polyq.build",
            "emit/a.py:2: the room emit imports build, which comes after it",
        ),
        ("affine__a", "import islpy as isl", "affine/a.py:1: imports islpy, which only affine/sets may"),
        ("emit__a", "from islpy import Set", "emit/a.py:1: imports islpy, which only affine/sets may"),
        ("emit__a", "import cffi", "emit/a.py:1: imports cffi, which only build may"),
        ("build__a", "from cgen import Block", "build/a.py:1: imports cgen, which only emit may"),
        (
            "build__a",
            "import polyq.testing",
            "build/a.py:1: the room build imports polyq.testing, which stands above the rooms",
        ),
        ("attic__a", "import polyq.affine", "attic/a.py:1: attic is no room of polyq: add it to ROOMS"),
    ],
)
def test_breaking_a_rule_is_named(tmp_path, module, text, line):
    assert check_imports.violations(make(tmp_path, **{module: text})) == [f"polyq/{line}"]


def test_allowed_imports_pass(tmp_path):
    package = make(
        tmp_path,
        affine__sets__raw="import islpy\nfrom . import expr\nfrom .expr import x",
        emit__a="import cgen\nimport polyq.schedule.target\nfrom ..affine import expr",
        build__a="import cffi\nfrom polyq.emit import Module",
        testing="import polyq.build\nimport numpy",
    )
    assert check_imports.violations(package) == []


def test_command_line_exit_status(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "check_imports.py"), str(make(tmp_path, emit__a="import cffi"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "polyq/emit/a.py:1: imports cffi, which only build may\n")
