"""symgrad under torch's name, torch's comparison of values, and files of tensors."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import types
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import symgrad as sg
from symgrad import compat
from symgrad.codegen import entry

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

SCRIPT = """
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function, gradcheck
from torch.func import grad, vmap
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(2, 1, bias=False).to(device)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
scheduler = StepLR(optimizer, 1, 0.5)
x, y = torch.eye(2, device=device), torch.ones(2, 1).to(device)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    scheduler.step()
assert isinstance(model.weight, torch.Tensor) and gradcheck(torch.sin, torch.ones(1, dtype=torch.float64, requires_grad=True))
print(__name__, sys.argv[1:], model.weight.tolist(), torch.linalg.det(2 * torch.eye(2)).item())
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "symgrad", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_script_for_torch_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run(str(script), "2", "--more")
    # The gradient of each weight is w - 1; the rates are 1/4 and 1/8.
    weight = 1 - (1 - 0.25) * (1 - 0.125)
    assert done.stderr == ""
    assert done.stdout == f"__main__ ['2', '--more'] [[{weight}, {weight}]] 4.0\n"


def test_example_for_torch_learns():
    done = run(str(EXAMPLES / "spirals.py"))
    assert done.stderr == ""
    assert float(re.search(r"accuracy +([0-9.]+)", done.stdout)[1]) > 0.98


def test_missing_script_is_told():
    done = run("nowhere.py")
    assert done.returncode == 2 and done.stderr == "run: there is no script 'nowhere.py'\n"


@pytest.fixture
def installed():
    compat.install()
    yield
    compat.uninstall()


def test_one_module_has_two_names(installed):
    import torch
    import torch.nn.functional
    from torch.optim import lr_scheduler

    assert (
        torch is sg
        and torch.nn.functional is sg.nn.functional
        and lr_scheduler is sg.optim.lr_scheduler
    )
    assert sg.nn.__spec__.name == "symgrad.nn" and sg.nn.__name__ == "symgrad.nn"
    compat.install()
    assert sum(type(f).__module__ == "symgrad.compat" for f in sys.meta_path) == 1


def test_modules_that_are_missing_are_not_found(installed):
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch\.distributed'"):
        import torch.distributed  # noqa: F401


def test_uninstall_leaves_nothing():
    compat.install()
    compat.uninstall()
    assert not [n for n in sys.modules if n == "torch" or n.startswith("torch.")]


def test_another_torch_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(RuntimeError, match="another torch is imported already"):
        compat.install()


def test_device():
    assert (
        repr(sg.device("cpu")) == "device(type='cpu')" and sg.device("cpu:0") == sg.ones(1).device
    )
    assert not sg.cuda.is_available() and sg.cuda.device_count() == 0
    # The memory of a large result is kept when it dies.
    assert (sg.ones(10**5) * 3.5).numpy()[0] == 3.5
    sg.cuda.empty_cache()
    assert entry.trim_arenas() == 0
    with pytest.raises(RuntimeError, match="there is no device 'cuda'"):
        sg.device("cuda", 0)


# -- assert_close -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "expected", "settings"),
    [
        (sg.ones(2), sg.ones(2, requires_grad=True), {}),
        (sg.tensor([1.0, 2.0]), sg.tensor([1.0, 2.000004]), {}),
        (sg.tensor([np.nan]), sg.tensor([np.nan]), {"equal_nan": True}),
        (sg.tensor([1.0]), sg.tensor([1.0], dtype=sg.float64), {"check_dtype": False}),
        ({"a": [sg.ones(1), 2]}, {"a": (sg.ones(1), 2)}, {}),
        (np.ones(2), np.ones(2), {}),
        (None, None, {}),
        (1.0, 1.1, {"rtol": 0.1, "atol": 0.0}),
    ],
)
def test_close_values_pass(actual, expected, settings):
    sg.testing.assert_close(actual, expected, **settings)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (
            sg.ones(2),
            sg.ones(3),
            r"The values for attribute 'shape' do not match: symgrad.Size\(\[2\]\)",
        ),
        (
            sg.ones(2),
            sg.ones(2, dtype=sg.float64),
            "The values for attribute 'dtype' do not match: symgrad.float32",
        ),
        (sg.tensor([1.0, 1.0]), sg.tensor([2.0, 1.0]), r"Mismatched elements: 1 / 2 \(50.0%\)"),
        (
            sg.tensor([1, 1]),
            sg.tensor([2, 1]),
            r"not equal!(?s:.)*Greatest absolute difference: 1 at index \(0,\)\n",
        ),
        (sg.tensor([np.nan]), sg.tensor([np.nan]), "Tensor-likes are not close!"),
        (1.0, 2.0, "Scalars are not close!\n\nExpected 2.0 but got 1.0."),
        ([sg.ones(1)], [sg.ones(1), 1], "The length of the sequences mismatch: 1 != 2"),
        ({"a": 1}, {"b": 1}, r"Missing keys in the actual mapping: \['b'\]"),
        ({"a": [1, 2]}, {"a": [1, 3]}, r"The failure occurred for item \['a'\]\[1\]"),
    ],
)
def test_other_values_do_not(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        sg.testing.assert_close(actual, expected)


def test_comparison_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="No comparison pair was able to handle inputs of type"):
        sg.testing.assert_close(sg.ones(1), 1.0)
    with pytest.raises(ValueError, match="must be either specified or omitted, but got no atol"):
        sg.testing.assert_close(1.0, 1.0, rtol=0.1)
    with pytest.raises(AssertionError, match=r"^mine$"):
        sg.testing.assert_close(1.0, 2.0, msg="mine")


# -- files --------------------------------------------------------------------------------


def written(value):
    place = io.BytesIO()
    sg.save(value, place)
    return place.getvalue()


def test_file_has_the_published_layout():
    data = written(
        {
            "a": sg.tensor([[1.0, -2.0]]),
            "b": sg.tensor([3, 4, 5], dtype=sg.int16),
            "c": sg.tensor(True),
        }
    )
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    assert length % 8 == 0
    assert {k: (v["dtype"], v["shape"]) for k, v in header.items()} == {
        "a": ("F32", [1, 2]),
        "b": ("I16", [3]),
        "c": ("BOOL", []),
    }
    ranges = sorted(v["data_offsets"] for v in header.values())
    assert [r[0] for r in ranges] == [0, *[r[1] for r in ranges[:-1]]] and ranges[-1][1] == len(
        body
    ) == 15
    start, end = header["b"]["data_offsets"]
    assert body[start:end] == b"\x03\x00\x04\x00\x05\x00"
    start, end = header["a"]["data_offsets"]
    assert body[start:end] == b"\x00\x00\x80\x3f\x00\x00\x00\xc0"


def test_files_of_others_are_read():
    header = (
        b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F64","shape":[2,1],"data_offsets":[0,16]},'
        b'"n":{"dtype":"U8","shape":[0],"data_offsets":[16,16]}}  '
    )
    data = len(header).to_bytes(8, "little") + header + np.array([0.5, -4.0]).tobytes()
    found = sg.load(io.BytesIO(data))
    assert found["w"].tolist() == [[0.5], [-4.0]] and found["w"].dtype is sg.float64
    assert found["n"].shape == (0,) and found["n"].dtype is sg.uint8


def test_nested_values_come_back(tmp_path):
    m = sg.nn.Linear(2, 1)
    optimizer = sg.optim.Adam(m.parameters(), betas=(0.8, 0.9))
    m(sg.ones(1, 2)).sum().backward()
    optimizer.step()
    value = {
        "model": m.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 7,
        "rest": [None, True, "word", (float("inf"), 0.1), {1: {}}],
        "a.b": sg.zeros(1),
        "a": {"b": sg.ones(1)},
    }
    sg.save(value, tmp_path / "checkpoint")
    found = sg.load(tmp_path / "checkpoint")
    assert (
        type(found["model"]) is OrderedDict
        and found["rest"] == value["rest"]
        and found["epoch"] == 7
    )
    assert found["a.b"].tolist() == [0.0] and found["a"]["b"].tolist() == [1.0]
    assert found["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    other = sg.optim.Adam(m.parameters())
    other.load_state_dict(found["optimizer"])
    assert other.state[m.weight]["step"].item() == 1.0
    np.testing.assert_allclose(other.state[m.weight]["exp_avg"].numpy(), [[0.2, 0.2]], rtol=1e-6)


def test_a_single_tensor_keeps_its_flag():
    found = sg.load(io.BytesIO(written(sg.tensor(3.0, requires_grad=True))))
    assert found.item() == 3.0 and found.requires_grad and found.is_leaf


def test_code_is_not_saved():
    with pytest.raises(TypeError, match=r"cannot save a value of type function \(at f\)"):
        written({"f": written})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        b"\xff" * 64,
        (3).to_bytes(8, "little") + b"{x}",
        (2).to_bytes(8, "little") + b"[]",
        written({"a": sg.ones(4)})[:-1],
        written([1]).replace(b"list", b"lust"),
    ],
)
def test_damaged_files_are_refused(data):
    with pytest.raises(RuntimeError, match=r"^load: "):
        sg.load(io.BytesIO(data))
