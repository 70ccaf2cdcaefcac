"""The benchmarks' command: other libraries, files, documents, plots, and what it refuses."""

import importlib.machinery
import json

import numpy as np
import pytest

from symgrad import bench
from symgrad.__main__ import main
from symgrad.bench import document, peers, roofline
from symgrad.codegen.measure import Ceilings, Memory, Report, StepReport


def run(capsys, *arguments):
    status = main(["bench", *[str(a) for a in arguments]])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scalar", "nothing"], "no benchmark 'nothing'; there are scalar"),
        (["--vs", "torch,nothing"], "--vs knows no 'nothing'; it knows torch, jax"),
        (["--seconds", "-1"], r"--seconds must be positive (got -1.0)"),
        (["--json", "no/such/folder/x.json"], "no folder 'no/such/folder' to write x.json to"),
    ],
)
def test_arguments_are_refused_with_what_to_do(capsys, arguments, words):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("bench: ")
    assert words in err


def without(monkeypatch, *names):
    """Pretend that some libraries are not installed."""
    find = importlib.machinery.PathFinder.find_spec

    def find_spec(fullname, *rest):
        return None if fullname in names else find(fullname, *rest)

    for module in (peers, roofline):
        monkeypatch.setattr(module, "find_spec", find_spec)


def test_a_library_that_is_missing_is_named_and_left_out(capsys, monkeypatch):
    without(monkeypatch, "torch", "jax")
    status, out, _ = run(capsys, "scalar", "--seconds", "0.001", "--vs", "torch,jax")
    assert status == 0
    lines = out.splitlines()
    assert lines[:2] == ["torch is not installed: left out", "jax is not installed: left out"]
    assert lines[2].split() == ["benchmark", "NumPy", "symgrad", "first", "call", "ratio"]
    assert lines[3].split()[0] == "scalar"


def test_a_plot_without_matplotlib_is_refused_before_anything_runs(capsys, monkeypatch, tmp_path):
    without(monkeypatch, "matplotlib")
    status, out, err = run(capsys, "scalar", "--plot", tmp_path / "roof.svg")
    assert (status, out) == (2, "")
    assert "--plot needs matplotlib, which is not installed; pip install matplotlib" in err
    assert not list(tmp_path.iterdir())


def test_json_has_facts_ceilings_and_rows(capsys, tmp_path):
    path = tmp_path / "figures.json"
    status, out, _ = run(capsys, "scalar", "vector", "--seconds", "0.001", "--json", path)
    assert status == 0
    assert len(out.splitlines()) == 3
    data = json.loads(path.read_text())
    assert data["facts"]["numpy"] == np.__version__
    assert data["ceilings"]["threads"] == data["facts"]["threads"]
    assert [row["name"] for row in data["rows"]] == ["scalar", "vector"]
    for row in data["rows"]:
        seconds = row["seconds"]
        assert row["ratios"] == {"numpy": seconds["numpy"] / seconds["symgrad"]}
        assert row["first_call_seconds"]["symgrad"] > 0


def test_a_document_is_made_and_its_measured_part_renewed(capsys, tmp_path):
    path = tmp_path / "performance.md"
    assert run(capsys, "scalar", "--seconds", "0.001", "--write", path)[0] == 0
    first = path.read_text()
    assert first.startswith("# Performance\n")
    assert "| x*y + sin(x) of two floats |" in first
    path.write_text("Before.\n" + first + "After.\n")
    assert run(capsys, "vector", "--seconds", "0.001", "--write", path)[0] == 0
    second = path.read_text()
    assert second.startswith("Before.\n# Performance\n")
    assert second.endswith("After.\n")
    assert "two floats" not in second
    assert second.count("| x*y + sin(x) of two 10-vectors |") == 1


def test_a_document_without_marks_keeps_its_text():
    text = document.written("Mine.\n", "figures")
    assert text.startswith("Mine.\n")
    assert document.written(text, "others") == text.replace("figures", "others")


def row_with_a_peer():
    seconds = {"numpy": 6e-3, "symgrad": 2e-3, "torch": 5e-3}
    return bench.Row("chain", "a chain", seconds, {"symgrad": 0.1, "torch": 4.0})


def test_a_row_shows_each_peer_with_its_ratio():
    row = row_with_a_peer()
    assert row.text().split() == ("chain 6 ms 2 ms 100 ms 3.00 5 ms 4 s 2.50 a chain".split())
    assert bench.heading(["torch"]).split()[-4:] == ["torch", "first", "call", "ratio"]
    assert row.as_dict()["ratios"] == {"numpy": pytest.approx(3.0), "torch": pytest.approx(2.5)}


def step(**fields):
    given = {
        "number": 0, "kind": "loops", "text": "loops [9] -> %1:store", "dtype": "float64",
        "seconds": 1.0, "read_bytes": 60, "written_bytes": 20, "flops": 160,
    }  # fmt: skip
    return StepReport(**{**given, **fields})


CEILINGS = Ceilings(2, bytes_per_s=100.0, float64_per_s=400.0, float32_per_s=800.0)


def test_the_floor_is_the_slower_of_memory_and_operations():
    memory = Memory(inputs=60, outputs=20, temporaries=999, constants=0, peak=1079)
    report = Report((step(flops=160),), 1.0, CEILINGS)
    assert document.floor_of(report, memory) == 0.8
    report = Report((step(flops=1600),), 1.0, CEILINGS)
    assert document.floor_of(report, memory) == 4.0
    report = Report((step(flops=1600, dtype="float32"),), 1.0, CEILINGS)
    assert document.floor_of(report, memory) == 2.0


def test_points_of_the_roofline_are_operations_over_bytes():
    report = Report(
        (step(), step(seconds=3.0, flops=None), step(flops=0), step(read_bytes=0, written_bytes=0)),
        1.0,
        CEILINGS,
    )
    (point,) = roofline.points(report)
    assert point == roofline.Point(intensity=2.0, flops_per_s=160.0, share=1 / 6)
    assert roofline.roof(CEILINGS, 2.0) == 200.0
    assert roofline.roof(CEILINGS, 100.0) == 400.0


def test_the_roofline_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "roof.svg"
    roofline.draw({"chain": Report((step(),), 1.0, CEILINGS)}, str(path))
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    "name", [n for n, b in bench.BENCHMARKS.items() if b.build().argnums is None]
)
def test_formulas_of_other_namespaces_agree_with_numpy(name):
    case = bench.BENCHMARKS[name].build()
    found = case.formula(peers.JaxNames(np), *case.args)
    np.testing.assert_allclose(found, case.by_numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("peer", bench.PEERS)
def test_peers_that_are_installed_agree(peer):
    if not peers.installed(peer):
        pytest.skip(f"{peer} is not installed")
    sides = bench.check("vector", [peer])
    assert [side.name for side in sides] == ["numpy", "symgrad", peer]


def test_outputs_that_differ_are_refused(monkeypatch):
    monkeypatch.setitem(bench.PEERS, "torch", lambda case: lambda: 1.0)
    with pytest.raises(AssertionError, match="scalar, torch"):
        bench.check("scalar", ["torch"])
