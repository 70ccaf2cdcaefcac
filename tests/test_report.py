"""What a compiled program reports of itself: bytes, operations and memory of known programs."""

import json

import numpy as np
import pytest

import symgrad as sg
from symgrad.codegen import measure, pool


def report_of(function, *args):
    return sg.compile(function).report(*args)


def test_an_elementwise_program_reads_each_input_once():
    n = 1000
    x, y = np.ones(n), np.ones(n)
    report = report_of(lambda x, y: x * y + x, x, y)
    (step,) = report.steps
    assert (step.kind, step.dtype) == ("loops", "float64")
    assert (step.read_bytes, step.written_bytes) == (2 * 8 * n, 8 * n)
    assert step.flops == 2 * n
    assert step.seconds > 0
    assert step.bytes_per_s == pytest.approx(24 * n / step.seconds, rel=1e-12)


def test_overlapping_views_of_one_buffer_are_read_once():
    x = np.ones(500)
    (step,) = report_of(lambda x: x[1:] - x[:-1], x).steps
    assert (step.read_bytes, step.written_bytes, step.flops) == (8 * 500, 8 * 499, 499)


def test_a_view_reads_what_it_shows():
    x = np.ones((100, 8))
    (step,) = report_of(lambda x: x[:, ::2] * 2.0, x).steps
    assert (step.read_bytes, step.written_bytes) == (8 * 400, 8 * 400)


def test_a_broadcast_operand_is_read_once():
    x, row = np.ones((64, 32), np.float32), np.ones(32, np.float32)
    (step,) = report_of(lambda x, row: x + row, x, row).steps
    assert (step.read_bytes, step.written_bytes) == (4 * (64 * 32 + 32), 4 * 64 * 32)
    assert step.flops == 64 * 32


def test_a_product_counts_two_operations_per_term():
    m, n, k = 40, 30, 20
    report = report_of(lambda a, b: a @ b, np.ones((m, k), np.float32), np.ones((k, n), np.float32))
    (step,) = report.steps
    assert (step.kind, step.dtype) == ("product", "float32")
    assert step.flops == 2 * m * n * k == report.flops
    assert (step.read_bytes, step.written_bytes) == (4 * (m * k + k * n), 4 * m * n)
    share = step.flops / step.seconds / report.ceilings.float32_per_s
    assert report.peak_share(step) == pytest.approx(share, rel=1e-12)


def test_a_product_of_a_few_terms():
    (step,) = report_of(lambda a, b: a @ b, np.ones((50, 3)), np.ones((3, 20))).steps
    assert step.flops == 2 * 50 * 3 * 20
    assert (step.read_bytes, step.written_bytes) == (8 * (150 + 60), 8 * 1000)


@pytest.mark.parametrize("n", [1000, 300_000])
def test_a_dot_product_counts_two_operations_per_term(n):
    (step,) = report_of(lambda x, y: (x * y).sum(), np.ones(n), np.ones(n)).steps
    assert step.flops in (2 * n, 2 * n - 1)
    assert (step.read_bytes, step.written_bytes) == (16 * n, 8)


@pytest.mark.parametrize(("exponent", "products"), [(1, 0), (2, 1), (3, 2)])
def test_a_small_power_counts_its_products(exponent, products):
    (step,) = report_of(lambda x: x**exponent + x, np.ones(100)).steps
    assert step.flops == 100 * (products + 1)


def test_a_library_call_has_bytes_and_no_count_of_operations():
    a = np.eye(6) * 2
    steps = report_of(sg.linalg.cholesky, a).steps
    (step,) = [s for s in steps if s.kind == "library"]
    assert (step.read_bytes, step.written_bytes, step.flops) == (8 * 36, 8 * 36, None)


def test_a_routine_of_pythons_is_measured_too():
    report = report_of(lambda x: x[x.long()].sum(), np.array([1.0, 0.0, 1.0]))
    assert "library" in [s.kind for s in report.steps]
    assert all(s.seconds > 0 for s in report.steps)


def test_drawn_values_stand_for_arguments():
    f = sg.compile(lambda x, k: sg.linalg.cholesky(x)[k].sum())
    f(np.eye(4), np.array([3, 1]))
    report = f.report()
    assert len(report.steps) >= 2
    assert report.call_s > 0


def test_drawn_values_that_do_not_suit_are_refused():
    f = sg.compile(lambda x: sg.linalg.cholesky(-x))
    f(-np.eye(4))
    with pytest.raises(RuntimeError, match=r"report: drawn values do not suit .*pass arguments"):
        f.report()
    assert f.report(-np.eye(4)).call_s > 0


def test_measuring_leaves_arguments_captured_tensors_and_generators_alone():
    w = sg.ones(3, dtype=sg.float64)
    sg.manual_seed(1)
    want = sg.rand(2).numpy()

    def f(x):
        w.mul_(2)
        return x * w + sg.rand(3, dtype=sg.float64)

    x = np.ones(3)
    sg.manual_seed(1)
    report_of(f, x)
    np.testing.assert_array_equal(sg.rand(2).numpy(), want)
    np.testing.assert_array_equal(w.numpy(), [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(x, [1.0, 1.0, 1.0])


def test_totals_shares_and_plain_data_agree():
    report = report_of(lambda a, b: sg.tanh(a @ b).sum(), np.ones((50, 40)), np.ones((40, 30)))
    data = report.as_dict()
    assert json.loads(json.dumps(data)) == data
    steps = data["steps"]
    assert [s["number"] for s in steps] == list(range(len(report.steps)))
    for name in ("seconds", "read_bytes", "written_bytes", "flops"):
        assert data["total"][name] == pytest.approx(sum(s[name] for s in steps), rel=1e-12)
    for s in steps:
        moved = (s["read_bytes"] + s["written_bytes"]) / s["seconds"]
        assert s["bytes_per_s"] == pytest.approx(moved, rel=1e-12)
        assert s["bandwidth_share"] == pytest.approx(
            moved / data["ceilings"]["bytes_per_s"], rel=1e-12
        )
    assert data["ceilings"]["threads"] == pool.get_num_threads()


def test_the_table_has_a_line_per_step_and_totals():
    report = report_of(lambda a, b: sg.tanh(a @ b).sum(), np.ones((50, 40)), np.ones((40, 30)))
    lines = str(report).splitlines()
    assert lines[0].split()[:4] == ["step", "time", "share", "read"]
    assert [line.split()[0] for line in lines[1:-3]] == [str(s.number) for s in report.steps]
    assert "product 1x(50x40 . 40x30)" in lines[1]
    assert "48 kB" not in lines[1] and "25.6 kB" in lines[1] and "12 kB" in lines[1]
    assert lines[-3].split()[:2] == ["all", "steps"]
    assert lines[-2].split()[:2] == ["one", "call"]
    assert lines[-1].startswith("machine, ")


def test_long_programs_show_their_slowest_steps():
    def chain(x):
        for _ in range(measure.SHOWN + 10):
            x = x.sum() + x
        return x

    report = report_of(chain, np.ones(3))
    assert len(report.steps) > measure.SHOWN
    lines = str(report).splitlines()
    assert len(lines) == measure.SHOWN + 5
    assert lines[-4].split()[:3] == [str(len(report.steps) - measure.SHOWN), "steps", "more"]


def test_nothing_compiled_nothing_to_report():
    f = sg.compile(lambda x: x)
    for ask in (f.report, f.memory):
        with pytest.raises(RuntimeError, match="nothing was compiled yet"):
            ask()


# -- memory -----------------------------------------------------------------------------


def test_memory_of_a_fused_program_is_inputs_and_outputs():
    f = sg.compile(lambda x, y: (sg.exp(x) * y + x, x.sum()))
    f(np.ones(1000), np.ones(1000))
    memory = f.memory()
    assert memory.inputs == 16_000
    assert memory.outputs == 8_008
    assert memory.temporaries == 0
    assert memory.peak == sum(memory[:-1])
    assert "inputs 16 kB" in str(memory)


def test_memory_of_temporaries_is_aligned_and_used_again():
    f = sg.compile(lambda a: (((a @ a) @ a) @ a) @ a)
    f(np.eye(10))
    # Three products in between, of which two live at one time; 800 bytes take 832.
    assert f.memory() == (800, 800, 2 * 832, 0, 800 + 800 + 2 * 832)


def test_memory_counts_unread_arguments_not_and_complex_results_twice():
    f = sg.compile(lambda z, unused: z * z)
    f(np.ones(10, complex), np.ones(99))
    # The parts are computed first and then put together.
    assert f.memory()[:2] == (160, 320)
