"""Strided reads that a nest repeats go through a copy, and the values stay those of the program."""

import numpy as np
import pytest

import symgrad as sg


def pairwise(points):
    points = points.requires_grad_()
    d = points[:, None, :] - points[None, :, :]
    energy = sg.exp(-(d * d).sum(2)).sum()
    return energy, sg.autograd.grad(energy, points)[0]


@pytest.mark.parametrize("components", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_forces_between_points_stored_point_by_point(components, dtype):
    x = np.random.default_rng(components).standard_normal((60, components)).astype(dtype)
    f = sg.compile(pairwise)
    energy, force = f(x)
    wide = x.astype(np.float64)
    d = wide[:, None] - wide[None]
    weight = np.exp(-(d * d).sum(2))
    tolerance = 1e-12 if dtype is np.float64 else 2e-5
    assert energy == pytest.approx(weight.sum(), rel=tolerance)
    np.testing.assert_allclose(
        force, (-4 * weight[:, :, None] * d).sum(1), rtol=tolerance, atol=tolerance
    )
    steps = f.schedule().splitlines()[1:]
    assert any(f"loops [{components}, 60] -> " in s for s in steps)
    # Nothing of the size of all pairs is stored.
    assert not any("[60, 60" in s and "store" in s for s in steps)


def test_a_column_read_many_times_equals_its_copy():
    a = np.random.default_rng(0).standard_normal((50, 7))
    b = np.random.default_rng(1).standard_normal(40)
    f = sg.compile(lambda a, b: (a[:, 3][None, :] * b[:, None]).sum(1))
    np.testing.assert_allclose(f(a, b), (a[:, 3][None, :] * b[:, None]).sum(1), rtol=1e-14)
