"""L-BFGS with a line search for the strong Wolfe conditions.

The two-loop recursion is Algorithm 7.4 of Nocedal and Wright, *Numerical Optimization* (2006); the
line search is their Algorithms 3.5 and 3.6, with cubic interpolation (equation 3.59). `LBFGS` takes
torch's settings and stops where torch does. Start reading at `LBFGS.step`, then `strong_wolfe`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from symgrad.autograd.grad_mode import enable_grad, no_grad
from symgrad.creation import zeros_like
from symgrad.interface import FUNCTIONS
from symgrad.optim.optimizer import Optimizer, check_at_least_zero


class _Point:
    """A point along a line: how far along, the loss, its gradient, the slope along the line."""

    def __init__(self, at: float, loss: float, gradient: Any, slope: float) -> None:
        self.at = at
        self.loss = loss
        self.gradient = gradient
        self.slope = slope


def _between(a: _Point, b: _Point, low: float, high: float) -> float:
    """The minimum in [low, high] of the cubic through two points with their slopes."""
    if a.at > b.at:
        a, b = b, a
    if a.at == b.at:
        return (low + high) / 2
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.at - b.at)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    found = b.at - (b.at - a.at) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    return min(max(found, low), high)


def strong_wolfe(
    evaluate: Callable[[float], _Point],
    start: _Point,
    first: float,
    size: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance: float = 1e-9,
    most: int = 25,
) -> tuple[_Point, int]:
    """A point along a line that satisfies the strong Wolfe conditions.

    Parameters
    ----------
    evaluate : callable
        The point at a distance.
    start : _Point
        The point at distance 0, where the loss falls.
    first : float
        The distance to try first.
    size : float
        The largest element of the direction; brackets that change no element by more than
        `tolerance` are not divided further.

    Returns
    -------
    point : _Point
    evaluations : int
    """

    def falls_enough(point: _Point) -> bool:
        return point.loss <= start.loss + c1 * point.at * start.slope

    new = evaluate(first)
    count = 1
    before = start
    bracket: list[_Point] = []
    for step in range(most):
        if not falls_enough(new) or (step > 1 and new.loss >= before.loss):
            bracket = [before, new]
            break
        if abs(new.slope) <= -c2 * start.slope:
            return new, count
        if new.slope >= 0:
            bracket = [before, new]
            break
        low, high = new.at + 0.01 * (new.at - before.at), new.at * 10
        further = _between(before, new, low, high)
        before, new = new, evaluate(further)
        count += 1
    if not bracket:
        bracket = [start, new]

    stuck = False
    # The better end has to satisfy the first condition, or the bracket may close around nothing.
    best = 1 if bracket[1].loss < bracket[0].loss and falls_enough(bracket[1]) else 0
    for _ in range(most):
        low, high = sorted(point.at for point in bracket)
        if abs(high - low) * size < tolerance:
            break
        at = _between(bracket[0], bracket[1], low, high)
        # Too near an end twice in a row: go a tenth of the bracket into it.
        if min(high - at, at - low) / (high - low) < 0.1:
            if stuck or at >= high or at <= low:
                at = (
                    high - 0.1 * (high - low)
                    if abs(at - high) < abs(at - low)
                    else low + 0.1 * (high - low)
                )
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        new = evaluate(at)
        count += 1
        if not falls_enough(new) or new.loss >= bracket[best].loss:
            bracket[1 - best] = new
            continue
        if abs(new.slope) <= -c2 * start.slope:
            return new, count
        if new.slope * (bracket[1 - best].at - bracket[best].at) >= 0:
            bracket[1 - best] = bracket[best]
        bracket[best] = new
    return bracket[best], count


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last `history_size` changes of parameters and gradient.

    Parameters
    ----------
    params : iterable of Tensor
        One group.
    lr : float
        The length of a step, or the first that the line search tries.
    max_iter, max_eval : int
        How many iterations and evaluations `step` makes at most (1.25 as many by default).
    tolerance_grad, tolerance_change : float
        Stop when no element of the gradient, or of a step, is larger.
    history_size : int
    line_search_fn : {"strong_wolfe", None}

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor([-1., 2.], dtype=sg.float64, requires_grad=True)
    >>> optimizer = sg.optim.LBFGS([x], line_search_fn="strong_wolfe", max_iter=50)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    ...     loss.backward()
    ...     return loss
    >>> _ = optimizer.step(closure)
    >>> closure().item() < 1e-12
    True
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_at_least_zero("learning rate", lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise RuntimeError(
                f"only 'strong_wolfe' is supported (got line_search_fn={line_search_fn!r})"
            )
        defaults = {
            "lr": lr, "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
            "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._params: list[Any] = self.param_groups[0]["params"]

    # -- parameters as one vector -------------------------------------------------------

    def _gradient(self) -> Any:
        parts: list[Any] = [zeros_like(p) if p.grad is None else p.grad for p in self._params]
        return FUNCTIONS["cat"]([part.reshape(-1) for part in parts])

    def _move(self, origin: list[Any], distance: float, direction: Any) -> None:
        """Go to a distance from a point along a direction."""
        start = 0
        for p, value in zip(self._params, origin, strict=True):
            part = direction[start : start + p.numel()].reshape(p.shape)
            p.copy_(value + distance * part)
            start += p.numel()

    # -- stepping -----------------------------------------------------------------------

    def step(self, closure: Any = None) -> Any:
        """Make up to `max_iter` iterations.

        Parameters
        ----------
        closure : callable
            Clears the gradients, computes the loss, differentiates it and returns it.

        Returns
        -------
        Tensor
            The loss before the first iteration.
        """
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        group = self.param_groups[0]
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)

        def evaluated() -> tuple[Any, float, Any]:
            with enable_grad():
                result = closure()
            state["func_evals"] += 1
            return result, float(result), self._gradient()

        with no_grad():
            first, loss, gradient = evaluated()
            evaluations = 1
            if gradient.abs().max().item() <= group["tolerance_grad"]:
                return first
            direction: Any = state.get("d")
            length: Any = state.get("t")
            old_gradient: Any = state.get("prev_flat_grad")
            old_loss: Any = state.get("prev_loss")
            for iteration in range(1, group["max_iter"] + 1):
                state["n_iter"] += 1
                if state["n_iter"] == 1:
                    direction = -gradient
                    state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
                    length = min(1.0, 1.0 / gradient.abs().sum().item()) * group["lr"]
                else:
                    self._remember(
                        state, gradient - old_gradient, direction * length, group["history_size"]
                    )
                    direction = self._direction(state, gradient)
                    length = group["lr"]
                old_gradient, old_loss = gradient.clone(), loss
                slope = gradient.dot(direction).item()
                if slope > -group["tolerance_change"]:
                    break
                if group["line_search_fn"] == "strong_wolfe":
                    chosen, count = self._search(
                        evaluated, _Point(0.0, loss, gradient, slope), direction, length
                    )
                    loss, gradient, length = chosen.loss, chosen.gradient, chosen.at
                else:
                    self._move([p.detach().clone() for p in self._params], length, direction)
                    count = 0
                    if iteration != group["max_iter"]:
                        _, loss, gradient = evaluated()
                        count = 1
                evaluations += count
                small = gradient.abs().max().item() <= group["tolerance_grad"]
                still = direction.abs().max().item() * abs(length) <= group["tolerance_change"]
                if small or still or abs(loss - old_loss) < group["tolerance_change"]:
                    break
                if evaluations >= group["max_eval"]:
                    break
            state.update(d=direction, t=length, prev_flat_grad=old_gradient, prev_loss=old_loss)
        return first

    def _search(
        self, evaluated: Callable[[], Any], start: _Point, direction: Any, length: float
    ) -> tuple[_Point, int]:
        """The line search from where the parameters are; they end at the point it chose."""
        origin = [p.detach().clone() for p in self._params]

        def evaluate(at: float) -> _Point:
            self._move(origin, at, direction)
            _, loss, gradient = evaluated()
            return _Point(at, loss, gradient, gradient.dot(direction).item())

        chosen, count = strong_wolfe(evaluate, start, length, direction.abs().max().item())
        self._move(origin, chosen.at, direction)
        return chosen, count

    @staticmethod
    def _remember(state: dict[str, Any], change: Any, step: Any, most: int) -> None:
        """Keep how gradient and parameters changed, if the curvature is positive."""
        curvature = change.dot(step).item()
        if curvature <= 1e-10:
            return
        for name, value in (("old_dirs", change), ("old_stps", step), ("ro", 1.0 / curvature)):
            if len(state[name]) == most:
                state[name].pop(0)
            state[name].append(value)
        state["H_diag"] = curvature / change.dot(change).item()

    @staticmethod
    def _direction(state: dict[str, Any], gradient: Any) -> Any:
        """The two-loop recursion. Products are looked at, so that each iteration runs the same programs."""
        pairs = list(zip(state["old_dirs"], state["old_stps"], state["ro"], strict=True))
        q = -gradient
        shares = []
        for change, step, inverse in reversed(pairs):
            share = step.dot(q).item() * inverse
            shares.append(share)
            q = q - share * change
        r = q * state["H_diag"]
        for (change, step, inverse), share in zip(pairs, reversed(shares), strict=True):
            r = r + (share - change.dot(r).item() * inverse) * step
        return r
