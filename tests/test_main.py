"""The command line, and what README and package metadata promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import polyq.__main__ as command
import polyq.limits
from polyq import command_line
from polyq.command_line import FLAGSHIP
from polyq.schedule.target import Target

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it along
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path):
    """Write a program file; return its path as text."""

    def write(text):
        path = tmp_path / "program.txt"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def bandwidth(monkeypatch):
    """Replace the measurement of the machine, which takes a second."""
    monkeypatch.setattr(command, "_read_limit", lambda threads: 1e10 * threads)


MATVEC = "a: f32[m, 40]\nx: f32[40]\ny[i] += a[i, k] * x[k]\n"


# ---- errors: one line, status 2
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (MATVEC, ["--set", "q=3"], "--set q: the program has no such parameter; its parameters: m"),
        ("y[i] = 1 where i < 3", ["--set", "m=3"], "--set m: the program has no such parameter; its parameters: none"),
        (MATVEC, ["--numerics", "i4"], "numerics='i4' is not known; choose one of 'strict', 'reassoc', 'i16', 'i16x2', 'i8'"),
        (MATVEC, ["--target", "avx3"], "target='avx3' is not known; choose one of 'native', 'avx512vnni', 'avx512', 'avxvnni', 'avx2', 'neondot', 'neon', 'sse', 'c'"),
        (MATVEC, ["--set", "M=3"], "--set M: the program has no such parameter; its parameters: m; did you mean m?"),
        (MATVEC, ["--bind", "A"], "constants: A: no input has that name; the inputs are a, x; did you mean a?"),
        (MATVEC, ["--bind", "A", "--emit", "c"], "--bind A: the program has no such input (a, x); did you mean a?"),
        (MATVEC, ["--input", "A=a.npy"], "--input A: the program has no such input; its inputs: a: f32[m, 40], x: f32[40]; did you mean a?"),
        (MATVEC, ["--emit", "c", "--save", "o.npz"], "--save o.npz: --emit prints and stops, and so there is nothing to write; leave one of them out"),
    ],
)
def test_a_refusal_is_one_line(program, capsys, text, options, message):
    assert command.main([program(text), *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"python -m polyq: {message}\n")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("x: f32[8]\ny[i] = x[2*i", ":2:1", "`y[i] = x[2*i`: a bracket is never closed"),
        ("x: f32[8]\n\n  y[i] = 2*x[ i*i ]", ":3:15", "`y[i] = 2*x[ i*i ]`: op y: operand x, subscript 0 (`i * i`): `i * i` is not affine: one factor of a product must be a constant"),
        ("x: f32[8]\ny[i] = foo(x[i])", ":2:8", "`y[i] = foo(x[i])`: op y: `foo(x[i])`: unknown function foo; "),
        ("x: float32[8]\ny[i] = x[i]", ":1:1", "`x: float32[8]`: tensor x: unknown dtype 'float32'; "),
        ("x: f32[8]\nx: f32[8]\ny[i] = x[i]", "", "tensor x: declared twice; declare it once, as a keyword or as a line"),
    ],
)  # fmt: skip
def test_an_error_in_a_file_has_its_place(program, capsys, text, place, message):
    path = program(text)
    assert command.main([path]) == 2
    assert capsys.readouterr().err.startswith(f"python -m polyq: {path}{place}: {message}")


def test_a_missing_file_is_one_line(tmp_path, capsys):
    path = tmp_path / "none.txt"
    assert command.main([str(path)]) == 2
    assert capsys.readouterr().err == f"python -m polyq: cannot read {path}: No such file or directory\n"


def test_a_folder_that_is_missing(program, tmp_path, capsys):
    path = tmp_path / "none" / "run.npz"
    assert command.main([program("x: f32[8]\ny[i] = 2 * x[i]"), "--save", str(path)]) == 2
    assert capsys.readouterr().err == f"python -m polyq: --save: cannot write {path}: No such file or directory\n"


def test_a_file_that_is_no_text(tmp_path, capsys):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    assert command.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"python -m polyq: {path} is no text in UTF-8: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "m"], "argument --set: 'm' is not of the form NAME=NUMBER, such as m=16"),
        (["--set", "m=-1"], "argument --set: 'm=-1': a size is at least 0"),
        (["--threads", "0"], "argument --threads: '0' is not a positive number"),
        (["--threads", "two"], "argument --threads: 'two' is not a positive number"),
    ],
)
def test_wrong_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"python -m polyq: {message}; --help lists the options\n"


# ---- a run
@pytest.mark.parametrize("numerics", ["strict", "reassoc"])
def test_a_program_from_a_file(program, capsys, bandwidth, numerics):
    assert command.main([program(MATVEC), "--set", "m=7", "--threads", "1", "--numerics", numerics]) == 0
    out = capsys.readouterr().out
    assert "run on random data, m = 7\n" in out
    assert re.search(r"^  numerics +" + numerics + "$", out, re.MULTILINE)
    error, bound = map(float, re.search(r"^  y +error (\S+) at most \(\S+ of the largest value\), bound (\S+) there: within the bound$", out, re.MULTILINE).groups())
    assert error <= bound < 1e-3
    assert bound > 0 or numerics == "strict"
    assert re.search(r"^  time +\d+\.\d{3} ms \(.*\), 1 thread, cold data$", out, re.MULTILINE)
    assert re.search(r"^  memory +\S+ \S*B, \d+\.\d\d GB/s, \d+\.\d\d of the 10\.0 GB/s that 1 thread read here$", out, re.MULTILINE)
    assert re.search(r"^  build +\d+\.\d\d s \(", out, re.MULTILINE)
    assert "certificate" in out
    assert "not given" not in out


def test_a_parameter_that_is_not_given_is_said(program, capsys, bandwidth):
    assert command.main([program(MATVEC)]) == 0
    out = capsys.readouterr().out
    assert "  note         m not given: 64; --set m=N changes it\n" in out
    assert "run on random data, m = 64\n" in out


def test_a_wrong_kernel_is_said(program, capsys, bandwidth, monkeypatch):
    monkeypatch.setattr("polyq.build.kernel.Kernel.__call__", lambda self, **given: np.full(3, 1e6, np.float32))
    assert command.main([program(MATVEC), "--set", "m=3"]) == 1
    assert "OUTSIDE THE BOUND" in capsys.readouterr().out


def test_several_outputs_of_narrow_types(program, capsys, bandwidth):
    text = "x: f32[9]\nq: u4[9]\nu[i] = u8(q[i])\nh[i] = f16(x[i])\nb[i] = bf16(x[i] * 3)\n"
    assert command.main([program(text)]) == 0
    assert len(re.findall("within the bound", capsys.readouterr().out)) == 3


@pytest.mark.parametrize(("form", "part"), [("schedule", "i"), ("loops", "for "), ("c", "#include <stdint.h>")])
def test_emit(program, capsys, form, part):
    assert command.main([program(MATVEC), "--emit", form]) == 0
    out = capsys.readouterr().out
    assert part in out
    assert "run on random data" not in out


def test_the_largest_error_and_its_bound():
    inf, nan = np.inf, np.nan
    assert command._error(np.array([1.0, 2.5]), np.array([1.0, 2.0]), np.array([0.1, 0.5])) == (0.5, 0.5, True)
    assert command._error(np.array([1.0, 2.5]), np.array([1.1, 2.0]), np.array([0.0, 0.5]))[2] is False
    assert command._error(np.array([inf, nan]), np.array([inf, nan]), np.array([0.0, 0.0])) == (0.0, 0.0, True)
    assert command._error(np.array([nan]), np.array([1.0]), np.array([1.0]))[2] is False
    assert command._error(np.array([nan, 2.0]), np.array([1.0, 2.0]), np.array([inf, 0.0]))[2] is True
    assert command._error(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3))) == (0.0, 0.0, True)
    assert command._error(np.array(3.0), np.array(2.0), np.array(0.5)) == (1.0, 0.5, False)


# ---- limits
def test_limits_measure_what_they_say():
    read = polyq.limits.Read(1 << 20, 3, 1)
    assert read.size == 1 << 20
    assert read.streams in polyq.limits.STREAMS
    assert 1e8 < read.size / read.seconds() < 1e12
    fma = polyq.limits.Fma(1e8, 1)
    assert fma.flop == pytest.approx(1e8, rel=1e-4)
    assert 1e8 < fma.flop / fma.seconds() < 1e13
    allowed = os.sched_getaffinity(0)
    copy = polyq.limits.Copy(3 << 20, 2)
    copy._from[:] = np.arange(copy.size, dtype=np.uint64).astype(np.uint8)
    assert copy.seconds() > 0
    assert np.array_equal(copy._from, copy._to)
    assert os.sched_getaffinity(0) == allowed  # its threads are pinned, the caller is not


# ---- the table of benchmarks
def test_a_row_says_what_was_missed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.rows import Row

    assert Row(0.002, "read", 0.0015, 0.75, "4 streams").line("a") == "| a | 2 | read | 1.5 | 0.75 | 0.75 | 4 streams |"
    assert Row(0.002, "numpy", 0.001, 1.0).line("b") == "| b | 2 | numpy | 1 | 0.50 | 1.00 missed |  |"
    assert Row(0.002, "FMA", 0.001).line("c") == "| c | 2 | FMA | 1 | 0.50 |  |  |"


def test_rows_alternate_and_give_medians(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import rows

    monkeypatch.setattr(rows, "PAUSE", 0)
    ours, theirs = iter([3.0, 1.0, 2.0]), iter([5.0, 9.0, 7.0])
    row = rows.Row.measured(3, ours.__next__, "x", theirs.__next__)
    assert (row.ours, row.theirs, row.ratio) == (2.0, 7.0, 3.5)


def test_rows_are_chosen_by_words():
    table = [sys.executable, str(ROOT / "benchmarks" / "table.py"), "--list"]
    listed = subprocess.run([*table, "8 x 4096, 1t", "softmax"], capture_output=True, text=True, check=True).stdout.splitlines()
    counts = sorted({1, Target.named("native").cores})
    kinds = ("", "4 bits ", "4 bits i16 ")
    assert listed == [
        *(f"decode {kind}11008 x 4096, 1t" for kind in kinds),
        "program: softmax",
        *(f"softmax on 64 MB, {threads}t" for threads in counts),
    ]


# ---- what the README and the metadata promise
def test_the_two_commands():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert [c.rpartition("-m ")[2] for c in commands] == ["polyq", "pytest"]
    assert "'.[test]'" in commands[1]


def test_the_example_runs_and_computes_what_it_says():
    code = re.search(r"```python\n(import numpy.*?)```", README, re.DOTALL).group(1)
    assert code.count("\n") == 10
    scope = {}
    exec(code, scope)
    a = {name: scope[name].astype(np.float64) for name in "wzsx"}
    expected = np.einsum("mgj,ngj->mn", a["x"], (a["w"] - a["z"][..., None]) * a["s"][..., None])
    assert scope["y"].shape == (1, 4096)
    assert np.max(np.abs(scope["y"] - expected)) < 1e-5 * np.max(np.abs(expected))


def test_nothing_names_another_projects_package():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "polyq").rglob("*.py")]:
        assert "pip install polyq" not in path.read_text(encoding="utf-8"), path


def test_every_folder_of_code_is_packaged():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in (ROOT / "polyq").rglob("__init__.py")}
    assert set(metadata["tool"]["setuptools"]["packages"]) == folders
    assert metadata["project"]["name"] == "polyq-loops"


# ---- inputs that are bound
def test_bound_inputs_are_packed_and_checked(program, capsys, bandwidth):
    text = "a: u8[96, 256]\nx: f32[m, 256]\ny[m, i] += f32(a[i, k]) * x[m, k]\n"
    assert command.main([program(text), "--bind", "a", "--set", "m=3"]) == 0
    out = capsys.readouterr().out
    assert "  constants    a\n" in out
    assert "prepared once: a.packed" in out
    assert "within the bound" in out


@pytest.mark.parametrize("options", [[], ["--emit", "schedule"]])
def test_an_unknown_bound_input_is_refused(program, capsys, options):
    assert command.main([program(MATVEC), "--bind", "q", *options]) == 2
    assert "q" in capsys.readouterr().err


# ---- inputs from files
@pytest.mark.parametrize(
    ("entry", "size", "n"),
    [("n", 7, 7), ("n + 2", 9, 7), ("2*n - 1", 13, 7)],
)
def test_a_given_array_determines_the_parameters(program, capsys, bandwidth, tmp_path, entry, size, n):
    np.save(tmp_path / "x.npy", np.arange(size, dtype=np.float32))
    text = f"x: f32[{entry}]\ny[i] = x[0] * 2.0 where i < n\n"
    assert command.main([program(text), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path / "o.npz")]) == 0
    assert f"run on x as given, random data for the others, n = {n}\n" in capsys.readouterr().out
    assert np.load(tmp_path / "o.npz")["y"].shape == (n,)


def test_an_array_that_no_parameter_fits_is_refused(program, capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    assert command.main([program("x: f32[2*n + 1]\ny[i] = x[i]\n"), "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert "x: expected shape (129,) (f32[2*n + 1]), got (4,); n = 64 from the value given by name" in capsys.readouterr().err


def test_what_is_solved_for_a_parameter():
    n, m = command.Affine.param("n"), command.Affine.param("m")
    assert command._solved(10 - n, 3) == ("n", 7)
    assert command._solved(3 * n + 1, 7) == ("n", 2)
    unsolved = ("", -1)
    assert [command._solved(e, 8) for e in (3 * n + 1, n + m, n // 2, command.Affine(8))] == [unsolved] * 4


def test_packed_rows_determine_nothing_but_their_other_axes(tmp_path):
    spec = command.polyq.parse("y[i, j] = u8(q[i, j])", q=("u4", ("m", "n")))
    assert command._sizes(spec, {"q": np.zeros((3, 2), np.uint8)}) == {"m": 3}


def test_a_program_is_named_after_its_file(tmp_path, capsys, bandwidth):
    path = tmp_path / "my-layer 2.txt"
    path.write_text(MATVEC)
    assert command.main([str(path), "--set", "m=3"]) == 0
    out = capsys.readouterr().out
    assert "kernel my_layer_2(a: f32[m, 40], x: f32[40]) -> y: f32[m]\n" in out
    assert "  schedule of my_layer_2: " in out


def test_each_run_of_the_flagship_is_saved_by_itself(tmp_path, bandwidth, monkeypatch):
    monkeypatch.setattr(command_line, "FLAGSHIP", FLAGSHIP.replace("4096", "64"))
    assert command.main(["--save", str(tmp_path / "run.npz")]) == 0
    saved = {path.name: np.load(path)["y"].shape for path in tmp_path.iterdir()}
    assert saved == {"run-m1.npz": (1, 64), "run-m16.npz": (16, 64)}


# ---- samples
def test_samples_have_the_same_kind_of_bound_as_the_whole(program, capsys, bandwidth, monkeypatch):
    text = "w: u8[64, 4, 32]\nz: f32[64, 4]\ns: f32[64, 4]\nx: f32[m, 4, 32]\n" + FLAGSHIP[FLAGSHIP.index("d[n, g, j] =") :]
    path = program(text)
    bounds = []
    for most in (command.MOST_INSTANCES, 10):
        monkeypatch.setattr(command, "MOST_INSTANCES", most)
        monkeypatch.setattr(command, "random_arrays", _fixed_arrays)
        assert command.main([path, "--set", "m=20", "--threads", "1"]) == 0
        out = capsys.readouterr().out
        bounds.append(float(re.search(r"bound (\S+) there: within", out)[1]))
        assert ("cells were checked)" in out) == (most == 10)
    assert bounds[1] <= 4 * bounds[0]  # elements differ; the bound of any order is some hundred times as wide


def _fixed_arrays(spec, parameters):
    random = np.random.default_rng(0)
    found = {}
    for t in spec.inputs:
        shape = tuple(parameters.get(n, n) for n in t.shape)
        found[t.name] = random.integers(0, 256, shape, np.uint8) if t.dtype == "u8" else random.random(shape, np.float32)
    return found


# ---- Ctrl-C
def test_an_interrupt_is_one_line(program, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.polyq, "build", interrupted)
    assert command.main([program(MATVEC)]) == 130
    assert capsys.readouterr() == ("", "python -m polyq: interrupted\n")
