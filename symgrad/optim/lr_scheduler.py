"""torch.optim.lr_scheduler: learning rates that change from step to step.

A scheduler writes the rate into the optimiser's groups. Most compute it from the last one, so that
schedulers may be chained; `closed_form` computes it from the number of the step. Start reading at
`LRScheduler`.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from symgrad.autograd.grad_mode import no_grad
from symgrad.optim.optimizer import Optimizer
from symgrad.tensor import Tensor


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def rate_of(group: dict[str, Any]) -> float:
    """A group's rate as a number."""
    return group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]


def set_rate(group: dict[str, Any], value: float) -> None:
    """Set a group's rate; one that is a tensor is written in place, and compiled functions see it."""
    if isinstance(group["lr"], Tensor):
        with no_grad():
            group["lr"].fill_(value)  # type: ignore[attr-defined]
    else:
        group["lr"] = value


class LRScheduler:
    """Base of schedulers: a subclass gives `get_lr`.

    Attributes
    ----------
    base_lrs : list of float
        The rates to start from.
    last_epoch : int
        The number of the last step; 0 after construction.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        _check_optimizer(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate_of(group))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{number}] when resuming scheduler "
                    "with last_epoch >= 0; load the optimizer's state first"
                )
        self.optimizer = optimizer
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[Any] = []
        self.step()

    @property
    def _lrs(self) -> list[Any]:
        return [rate_of(group) for group in self.optimizer.param_groups]

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        raise NotImplementedError

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`, whatever they were before."""
        return self.get_lr()

    def get_last_lr(self) -> list[Any]:
        """The rates that were set last."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step, or to a given one, and set its rates."""
        self._step_count += 1
        if self._step_count == 2 and not self.optimizer.stepped:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and "
                "later, you should call them in the opposite order: `optimizer.step()` before "
                "`lr_scheduler.step()`. Failure to do this will result in PyTorch skipping the first value "
                "of the learning rate schedule.",
                UserWarning,
                stacklevel=2,
            )
        if epoch is None:
            self.last_epoch += 1
            values = self.get_lr()
        else:
            self.last_epoch = epoch
            values = self.closed_form()
        self._set(values)

    def _set(self, values: Sequence[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            set_rate(group, value)
        self._last_lr = self._lrs

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scheduler of this kind."""
        self.__dict__.update(state_dict)


class LambdaLR(LRScheduler):
    """The initial rate times a function of the step's number."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        self.lr_lambdas = _one_each(optimizer, lr_lambda, "lr_lambdas")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        return [
            base * f(self.last_epoch)
            for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser and the functions."""
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class MultiplicativeLR(LambdaLR):
    """The last rate times a function of the step's number."""

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        if self.last_epoch <= 0:
            return self._lrs
        return [lr * f(self.last_epoch) for lr, f in zip(self._lrs, self.lr_lambdas, strict=True)]


def _one_each(optimizer: Optimizer, given: Any, name: str) -> list[Any]:
    """A value per parameter group, from one for all or a list."""
    count = len(optimizer.param_groups)
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"Expected {count} {name}, but got {len(given)}")
    return list(given)


class StepLR(LRScheduler):
    """The rate times gamma every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        if self.last_epoch == 0 or self.last_epoch % self.step_size:
            return self._lrs
        return [lr * self.gamma for lr in self._lrs]

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of the milestones."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        times = self.milestones[self.last_epoch]
        return [lr * self.gamma**times for lr in self._lrs] if times else self._lrs

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scheduler of this kind."""
        super().load_state_dict(state_dict)
        self.milestones = Counter(self.milestones)


class ConstantLR(LRScheduler):
    """The rate times a factor until step `total_iters`."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        if self.last_epoch == 0:
            return [lr * self.factor for lr in self._lrs]
        if self.last_epoch == self.total_iters:
            return [lr / self.factor for lr in self._lrs]
        return self._lrs

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        return [
            base * (self.factor if self.last_epoch < self.total_iters else 1)
            for base in self.base_lrs
        ]


class LinearLR(LRScheduler):
    """The rate times a factor that goes linearly from `start_factor` to `end_factor`."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal to 1."
            )
        if not 0 <= end_factor <= 1.0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, step: int) -> float:
        share = min(step, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        if self.last_epoch == 0:
            return [lr * self.start_factor for lr in self._lrs]
        if self.last_epoch > self.total_iters:
            return self._lrs
        ratio = self._factor(self.last_epoch) / self._factor(self.last_epoch - 1)
        return [lr * ratio for lr in self._lrs]

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times gamma at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        return self._lrs if self.last_epoch == 0 else [lr * self.gamma for lr in self._lrs]

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """The rate along half a cosine from the initial one to `eta_min` in `T_max` steps (arXiv:1608.03983)."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, step: int) -> float:
        return 1 + math.cos(math.pi * step / self.T_max)

    def get_lr(self) -> list[Any]:
        """The rates of this step."""
        if self.last_epoch == 0:
            return self._lrs
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [
                lr + (base - self.eta_min) * rise
                for lr, base in zip(self._lrs, self.base_lrs, strict=True)
            ]
        ratio = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in self._lrs]

    def closed_form(self) -> list[Any]:
        """The rates of step `last_epoch`."""
        half = self._height(self.last_epoch) / 2
        return [self.eta_min + (base - self.eta_min) * half for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """The rate up to `max_lr` and down again within `total_steps` (arXiv:1708.07120).

    Parameters
    ----------
    optimizer : Optimizer
    max_lr : float or list of float
    total_steps : int, or `epochs` and `steps_per_epoch`
    pct_start : float
        The share of steps in which the rate rises.
    anneal_strategy : {"cos", "linear"}
    div_factor, final_div_factor : float
        The first rate is ``max_lr / div_factor``, the last that over `final_div_factor`.
    cycle_momentum : bool
        Whether momentum goes the other way, between `base_momentum` and `max_momentum`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        last_epoch: int = -1,
    ) -> None:
        _check_optimizer(optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError(
                    "You must define either total_steps OR (epochs AND steps_per_epoch)"
                )
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps <= 0:
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.total_steps = total_steps
        self.peak = float(pct_start * total_steps) - 1
        self.anneal_strategy = anneal_strategy
        self.max_lrs = _one_each(optimizer, max_lr, "max_lr")
        self.cycle_momentum = cycle_momentum
        self.momenta = (base_momentum, max_momentum)
        if last_epoch == -1:
            for group, most in zip(optimizer.param_groups, self.max_lrs, strict=True):
                group["initial_lr"] = most / div_factor
                group["max_lr"] = most
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum and not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
            )
        super().__init__(optimizer, last_epoch)

    def _way(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def get_lr(self) -> list[Any]:
        """The rates of this step; momentum is set too."""
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The total number of steps is {self.total_steps}"
            )
        low, high = self.momenta
        rates = []
        for group in self.optimizer.param_groups:
            if step <= self.peak:
                share = step / self.peak
                rate = self._way(group["initial_lr"], group["max_lr"], share)
                momentum = self._way(high, low, share)
            else:
                share = (step - self.peak) / (self.total_steps - 1 - self.peak)
                rate = self._way(group["max_lr"], group["min_lr"], share)
                momentum = self._way(low, high, share)
            rates.append(rate)
            if self.cycle_momentum and "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif self.cycle_momentum:
                group["momentum"] = momentum
        return rates


def _refuse_others(optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
    """Refuse schedulers of other optimizers."""
    for k, scheduler in enumerate(schedulers):
        if scheduler.optimizer is not optimizer:
            raise ValueError(
                "expected all schedulers to belong to the same optimizer, but the scheduler at "
                f"index {k} belongs to another; make it with this optimizer"
            )


class _Several(LRScheduler):
    """What schedulers made of others share."""

    _schedulers: list[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser, with the states of the schedulers in their place."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scheduler of this kind."""
        states = state_dict["_schedulers"]
        if len(states) != len(self._schedulers):
            raise ValueError(
                f"load_state_dict: the state is of another number of schedulers (got {len(states)}, this has "
                f"{len(self._schedulers)}); make it of the same schedulers"
            )
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, states, strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Several):
    """Schedulers one after the other: the next from each milestone on."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number "
                f"of milestone points, but got number of schedulers {len(schedulers)} and the number of "
                f"milestones to be equal to {len(milestones)}"
            )
        _refuse_others(optimizer, schedulers)
        self.optimizer = optimizer
        self._schedulers = list(schedulers)
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        # Each scheduler took a first step when it was made; only the first one's counts.
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        for scheduler in self._schedulers:
            scheduler.last_epoch -= 1
            scheduler._step_count -= 1
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Several):
    """Schedulers all at once: each goes on from what the one before it set."""

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise ValueError(
                "ChainedScheduler expects at least one scheduler to be chained, but got none."
            )
        self._schedulers = list(schedulers)
        self.optimizer = optimizer or schedulers[0].optimizer
        _refuse_others(self.optimizer, schedulers)
        self._last_lr = self._lrs

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._lrs


class ReduceLROnPlateau:
    """The rate times a factor when a measure has not improved for `patience` steps.

    Parameters
    ----------
    optimizer : Optimizer
    mode : {"min", "max"}
        Whether smaller or larger is better.
    factor : float
    patience, cooldown : int
        How many steps without improvement are waited for, and how many after a reduction.
    threshold, threshold_mode : float, {"rel", "abs"}
        By how much the measure has to be better to count.
    min_lr : float or list of float
    eps : float
        Smaller changes of the rate are not made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        _check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = _one_each(optimizer, min_lr, "min_lrs")
        self.eps = eps
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0
        self.last_epoch = 0
        self._last_lr = [rate_of(group) for group in optimizer.param_groups]

    def is_better(self, a: float, best: float) -> bool:
        """Whether a measure is better than the best so far by the threshold."""
        margin = self.threshold if self.mode == "max" else -self.threshold
        bound = best * (1 + margin) if self.threshold_mode == "rel" else best + margin
        return a > bound if self.mode == "max" else a < bound

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Note a measure; reduce the rate if there was no improvement for long."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                new = max(rate_of(group) * self.factor, least)
                if rate_of(group) - new > self.eps:
                    set_rate(group, new)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = [rate_of(group) for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[Any]:
        """The rates that were set last."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimiser."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of another scheduler of this kind."""
        self.__dict__.update(state_dict)
