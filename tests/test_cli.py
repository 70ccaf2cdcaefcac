"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import symgrad as sg
from symgrad import bench
from symgrad.__main__ import main
from symgrad.explain import ExplainError, ask, load, on_numpy, parse_point

SOURCE = """
import symgrad as sg
from symgrad import exp


def wave(x, y):
    return x * y + sg.sin(x)


def bell(x, width=1.0):
    return exp(-(x / width) ** 2)


def bells(x, count=3, shift=0.5):
    total = bell(x)
    for k in range(1, count):
        total = total + bell(x - k * shift)
    return total.sum()


def method(x):
    return x.exp().sum()


def branch(x):
    return x if x > 0 else -x


def number(x):
    return 3


builtin = dict.pop
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "waves.py"
    path.write_text(SOURCE)
    return path


def run(capsys, *arguments):
    status = main([str(a) for a in arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def sections(text):
    """The report's parts by title."""
    parts = {}
    for line in text.splitlines():
        title, rest = line[:13].strip(), line[13:]
        if title and line[:1] != " ":
            last = parts.setdefault(title, [])
        if line.strip():
            last.append(rest)
    return parts


def test_explain_shows_value_formulas_kernels_accuracy_and_time(file, capsys):
    status, out, _ = run(capsys, "explain", f"{file}:wave", "--at", "x=1.5,y=2")
    assert status == 0
    assert out.splitlines()[0] == "wave at x = 1.5, y = 2.0"
    parts = sections("\n".join(out.splitlines()[1:]))
    assert float(parts["value"][0]) == pytest.approx(1.5 * 2 + math.sin(1.5), rel=1e-15)
    assert parts["formula"] == ["x*y + sin(x)"]
    assert set(re.split(r" \+ ", parts["gradient"][0].removeprefix("by x:  "))) == {"y", "cos(x)"}
    assert parts["gradient"][1] == "by y:  x"
    assert any("loops" in line for line in parts["kernels"])
    assert [line.split()[2] for line in parts["differences"]] == ["agree,", "agree,"]
    assert re.match(
        r"compiled [\d.e+]+ (ns|µs|ms), with its gradient [\d.e+]+ (ns|µs|ms)", parts["time"][0]
    )
    assert re.match(r"plain math [\d.e+]+ (ns|µs|ms): compiled is [\d.e+]+ times", parts["time"][1])


def test_explain_takes_arrays_defaults_and_static_parameters(file, capsys):
    status, out, _ = run(capsys, "explain", f"{file}:bells", "--at", "x=[0.1,0.2],count=2")
    assert status == 0
    assert out.splitlines()[0] == "bells at x = [0.1, 0.2], shift = 0.5, count = 2"
    x = np.array([0.1, 0.2])
    expected = np.sum(np.exp(-(x**2)) + np.exp(-((x - 0.5) ** 2)))
    parts = sections("\n".join(out.splitlines()[1:]))
    assert float(parts["value"][0]) == pytest.approx(expected, rel=1e-14)
    assert "plain NumPy" in parts["time"][1]
    assert "does not run" not in parts["time"][1]


def test_explain_says_when_numpy_cannot_run_the_function(file, capsys):
    status, out, _ = run(capsys, "explain", f"{file}:method", "--at", "x=[0.1,0.2]")
    assert status == 0
    assert "plain NumPy: does not run this function (AttributeError" in out


def test_a_function_on_numpy_uses_the_references(file):
    question = ask(load(f"{file}:bells"), {"x": [0.1, 0.2]})
    plain = on_numpy(question, scalars=False)
    x = np.array([0.1, 0.2])
    expected = sum(np.sum(np.exp(-((x - 0.5 * k) ** 2))) for k in range(3))
    found = plain(x, 0.5)
    assert isinstance(found, float)
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("target", "at", "words"),
    [
        ("{}", "", "write FILE.py:FUNCTION"),
        ("{}:", "", "write FILE.py:FUNCTION"),
        ("missing.py:f", "", "no file 'missing.py'"),
        ("{}:nothing", "", "has no function 'nothing'; it has wave, bell, bells"),
        ("{}:wave", "", "wave needs x, y; add for example --at x=1.5,y=1.5"),
        ("{}:wave", "x=1", "wave needs y"),
        ("{}:wave", "x=1,y=2,z=3", "wave has no parameter 'z'; it takes x, y"),
        ("{}:wave", "x=1,2", "no list of name=value pairs"),
        ("{}:wave", "x=__import__('os')", "no list of name=value pairs"),
        ("{}:wave", "x=[[1],[2,3]],y=2", "neither a number nor an array of numbers"),
        ("{}:number", "x=1", "returned 3; it must return one tensor"),
        ("{}:branch", "x=1", "use symgrad.where"),
        ("{}:builtin", "x=1", "name a Python function"),
    ],
)
def test_explain_refuses_with_what_to_do(file, capsys, target, at, words):
    status, _, err = run(capsys, "explain", target.format(file), "--at", at)
    assert status == 2
    assert err.startswith("explain: ")
    assert words in err


def test_explain_reports_a_file_that_fails(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("import symgrad\n1 / 0\n")
    status, _, err = run(capsys, "explain", f"{path}:f")
    assert status == 2
    assert "ZeroDivisionError" in err


def test_points_are_python_literals():
    assert parse_point("") == {}
    assert parse_point("x=1.5, y=[1, -2], z='a'") == {"x": 1.5, "y": [1, -2], "z": "a"}
    with pytest.raises(ExplainError):
        parse_point("x=open('f')")


def test_help_names_the_commands_and_gives_examples(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "explain" in out
    assert "bench" in out
    assert "--at x=1.5,y=2" in out


def test_version_is_the_packages(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert sg.__version__ in capsys.readouterr().out


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_bench_lists_and_refuses(capsys):
    status, out, _ = run(capsys, "bench", "--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(bench.BENCHMARKS)
    status, _, err = run(capsys, "bench", "nothing")
    assert status == 2
    assert "no benchmark 'nothing'; there are scalar" in err
    status, _, err = run(capsys, "bench", "scalar", "--seconds", "0")
    assert status == 2
    assert "must be positive" in err


def test_bench_prints_a_row_with_a_ratio(capsys):
    status, out, _ = run(capsys, "bench", "scalar", "vector", "--seconds", "0.001")
    assert status == 0
    heading, *rows = out.splitlines()
    assert heading.split() == ["benchmark", "NumPy", "symgrad", "first", "call", "ratio"]
    assert [row.split()[0] for row in rows] == ["scalar", "vector"]
    assert all(re.search(r" \d+\.\d\d  ", row) for row in rows)


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_both_sides_of_a_benchmark_agree(name):
    bench.check(name)
