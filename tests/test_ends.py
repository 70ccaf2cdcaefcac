"""Kernels read no byte beyond the end of an array: behind it lies a page that must not be touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, mmap
import numpy as np, symgrad as sg

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None)

def ending(values):
    size = -(-values.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(PAGE), 0) == 0
    array = np.frombuffer(memory, values.dtype, values.size, size - values.nbytes)
    array = array.reshape(values.shape)
    array[...] = values
    KEEP.append((memory, array))
    return array

KEEP = []
random = np.random.default_rng(0)
sg_row = sg.compile(lambda x, y: x * y + 1)
sg_sum = sg.compile(lambda x: (x * x).sum())
sg_functions = sg.compile(lambda x: (sg.exp(x).sum(), sg.exp(x)))
sg_columns = sg.compile(lambda x: x.sum(0))
sg_pairs = sg.compile(lambda x: x[:, 1] - x[:, 0])
sg_truth = sg.compile(lambda x: ~x)
for dtype in (np.float64, np.float32):
    for n in (1, 7, 8, 9, 15, 16, 17, 33, 1001):
        x, y = (ending(random.random(n).astype(dtype)) for _ in range(2))
        near = dict(rtol=1e-5)
        np.testing.assert_allclose(sg_row(x, y), x * y + 1, **near)
        np.testing.assert_allclose(sg_sum(x), (x * x).sum(), **near)
        total, every = sg_functions(x)
        np.testing.assert_allclose(total, np.exp(x).sum(), **near)
        np.testing.assert_allclose(every, np.exp(x), **near)
        z = ending(random.random((40, n)).astype(dtype))
        np.testing.assert_allclose(sg_columns(z), z.sum(0), **near)
        p = ending(random.random((n, 2)).astype(dtype))
        np.testing.assert_allclose(sg_pairs(p), p[:, 1] - p[:, 0], atol=1e-6)
        t = ending(random.random(n) < 0.5)
        np.testing.assert_array_equal(sg_truth(t), ~t)
print("read")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected in another way")
def test_no_byte_beyond_an_array_is_read() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
