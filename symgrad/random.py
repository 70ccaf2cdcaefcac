"""Random numbers that depend on a seed and a count alone.

Draws are functions of a key (seed, offset): the counter-based generator Philox 4x64-10, with the
offset in its counter, gives each draw its own stream of 2**64 blocks. A `Generator` only holds
the seed and counts draws. So a draw does not depend on threads, on what else was drawn from other
generators, or on when it is computed, and a compiled function gets fresh numbers by taking the
key as an input. All numbers are made from the raw 64-bit words, whose stream is fixed by the
algorithm, not by a library's version.

Structures: `Generator`, the stream; `words` and the samplers below, functions of a key. Start
reading at `words`, then `Generator.next_key`.

References
----------
J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from symgrad.locks import RenewedLock

Key = tuple[int, int]
Shape = Sequence[int]

_WORD = (1 << 64) - 1
_DEFAULT_SEED = 67280421310721
_LOCK = RenewedLock()


def _count(shape: Shape) -> int:
    total = 1
    for s in shape:
        total *= s
    return total


# -- samplers: functions of a key ---------------------------------------------------------


def words(key: Key, count: int) -> np.ndarray:
    """`count` random 64-bit words of the stream that `key` = (seed, offset) names."""
    seed, offset = (int(k) & _WORD for k in key)
    stream = np.random.Philox(
        key=np.array([seed, 0], np.uint64), counter=np.array([0, offset, 0, 0], np.uint64)
    )
    return np.asarray(stream.random_raw(count), np.uint64)


def uniform_of(key: Key, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Uniform on [0, 1): multiples of 2**-53 in float64, of 2**-24 in float32."""
    raw = words(key, _count(shape)).reshape(tuple(shape))
    if np.dtype(dtype) == np.float32:
        return (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal_of(key: Key, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Standard normal, by the polar form of Box and Muller without rejection."""
    count = _count(shape)
    half = -(-count // 2)
    raw = words(key, 2 * half)
    radius = np.sqrt(
        -2.0 * np.log(((raw[:half] >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53)
    )
    angle = (raw[half:] >> np.uint64(11)).astype(np.float64) * (2.0 * np.pi * 2.0**-53)
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].reshape(tuple(shape)).astype(dtype)


def bits_of(key: Key, shape: Shape) -> np.ndarray:
    """Integers uniform on [0, 2**63)."""
    raw = words(key, _count(shape)) >> np.uint64(1)
    return raw.astype(np.int64).reshape(tuple(shape))


def permutation_of(key: Key, count: int) -> np.ndarray:
    """A random order of 0, ..., count-1."""
    return np.argsort(words(key, count), kind="stable").astype(np.int64)


# -- generators -----------------------------------------------------------------------------


class Generator:
    """A stream of random numbers: a seed, and how many draws were made from it.

    Parameters
    ----------
    device : object
        Accepted for torch's sake; there is one device.
    """

    def __init__(self, device: object = None) -> None:
        self._seed = _DEFAULT_SEED
        self._offset = 0

    def manual_seed(self, seed: int) -> Generator:
        """Start over from a seed; returns the generator.

        Raises
        ------
        RuntimeError
            If the seed does not fit 64 bits.
        """
        value = int(seed)
        if not -(1 << 63) <= value <= _WORD:
            raise RuntimeError(
                f"manual_seed: Overflow when unpacking long: seed must fit 64 bits (got {seed})"
            )
        with _LOCK:
            self._seed, self._offset = value & _WORD, 0
        return self

    def initial_seed(self) -> int:
        """The seed the stream was started from."""
        return self._seed

    def seed(self) -> int:
        """Start over from a seed of the operating system's; returns it."""
        value = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(value)
        return value

    def get_state(self) -> np.ndarray:
        """Seed and number of draws, as 16 bytes."""
        with _LOCK:
            return np.array([self._seed, self._offset], "<u8").view(np.uint8)

    def set_state(self, state: np.ndarray) -> Generator:
        """Continue from a state that `get_state` gave; returns the generator."""
        data = np.ascontiguousarray(state)
        if data.dtype != np.uint8 or data.size != 16:
            raise RuntimeError(
                f"set_state: RNG state is wrong size: needs 16 bytes (got {data.dtype} of size {data.size}); "
                "pass what get_state returned"
            )
        seed, offset = data.reshape(-1).view("<u8").tolist()
        with _LOCK:
            self._seed, self._offset = seed, offset
        return self

    def clone_state(self) -> Generator:
        """Another generator that goes on from the same state."""
        return Generator().set_state(self.get_state())

    def next_key(self) -> Key:
        """The key of the next draw; counts it as made."""
        with _LOCK:
            key = (self._seed, self._offset)
            self._offset += 1
        return key

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        return _restored, (self.get_state().tobytes(),)

    def __repr__(self) -> str:
        return f"<Generator seed={self._seed} draws={self._offset}>"


def _restored(state: bytes) -> Generator:
    return Generator().set_state(np.frombuffer(state, np.uint8))


default_generator = Generator()
"""The generator of draws that name none."""


def manual_seed(seed: int) -> Generator:
    """Start the default generator over from a seed; returns it."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Start the default generator over from a seed of the operating system's; returns it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed the default generator was started from."""
    return default_generator.initial_seed()


def get_rng_state() -> np.ndarray:
    """The state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: np.ndarray) -> None:
    """Let the default generator go on from a state that `get_rng_state` gave."""
    default_generator.set_state(state)


@contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """Within the block draws from the default generator leave no trace after it."""
    state = default_generator.get_state()
    try:
        yield
    finally:
        if enabled:
            default_generator.set_state(state)


# -- draws ------------------------------------------------------------------------------------


def rand(generator: Generator | None, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Uniform on [0, 1)."""
    return uniform_of((generator or default_generator).next_key(), shape, dtype)


def uniform(
    generator: Generator | None, shape: Shape, dtype: np.dtype, low: float = 0.0, high: float = 1.0
) -> np.ndarray:
    """Uniform on [low, high)."""
    if not low <= high:
        raise RuntimeError(
            f"uniform: uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    unit = rand(generator, shape, np.dtype(np.float64))
    made = (low + (high - low) * unit).astype(dtype)
    # Rounding may reach the end that is not included.
    return np.where(made < high, made, np.asarray(low, dtype)).astype(dtype)


def randn(generator: Generator | None, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Standard normal."""
    return normal_of((generator or default_generator).next_key(), shape, dtype)


def normal(
    generator: Generator | None,
    shape: Shape,
    dtype: np.dtype,
    mean: float | np.ndarray = 0.0,
    std: float | np.ndarray = 1.0,
) -> np.ndarray:
    """Normal with the given mean and standard deviation, which broadcast to `shape`."""
    if np.any(np.asarray(std) < 0):
        raise RuntimeError(f"normal: normal expects all elements of std >= 0.0 (got {np.min(std)})")
    unit = randn(generator, shape, np.dtype(np.float64))
    return np.asarray(mean + std * unit).astype(dtype)


def randint(
    generator: Generator | None, shape: Shape, dtype: np.dtype, low: int, high: int
) -> np.ndarray:
    """Integers uniform on [low, high)."""
    if low >= high:
        raise RuntimeError(
            f"randint: random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    raw = words((generator or default_generator).next_key(), _count(shape))
    span = np.uint64((high - low) & _WORD)
    drawn = (raw % span if span else raw).astype(np.int64)
    with np.errstate(over="ignore"):
        return (drawn + np.int64(low)).reshape(tuple(shape)).astype(dtype)


def randperm(generator: Generator | None, count: int, dtype: np.dtype) -> np.ndarray:
    """A random order of 0, ..., count-1."""
    if count < 0:
        raise RuntimeError(f"randperm: n must be non-negative, got {count}")
    return permutation_of((generator or default_generator).next_key(), count).astype(dtype)


def bernoulli(
    generator: Generator | None, probability: float | np.ndarray, shape: Shape, dtype: np.dtype
) -> np.ndarray:
    """1 with the given probability, which broadcasts to `shape`, else 0."""
    p = np.asarray(probability)
    if not np.all((p >= 0) & (p <= 1)):
        raise RuntimeError(f"bernoulli: Expected p_in >= 0 && p_in <= 1 (got {p.reshape(-1)[:4]})")
    return (rand(generator, shape, np.dtype(np.float64)) < p).astype(dtype)


def exponential(
    generator: Generator | None, shape: Shape, dtype: np.dtype, rate: float = 1.0
) -> np.ndarray:
    """Exponential with the given rate; never 0 times infinity, since the uniform is below 1."""
    if not rate > 0:
        raise RuntimeError(
            f"exponential: exponential_ expects lambda > 0.0, but found lambda={rate}"
        )
    return (-np.log1p(-rand(generator, shape, np.dtype(np.float64))) / rate).astype(dtype)


def multinomial(
    generator: Generator | None, weights: np.ndarray, count: int, replacement: bool = False
) -> np.ndarray:
    """Positions drawn in proportion to weights, `count` per row of `weights`.

    Without replacement by a race of exponential clocks: the first `count` to ring.

    References
    ----------
    P. Efraimidis, P. Spirakis, "Weighted random sampling with a reservoir", Inf. Proc. Lett. 2006.
    """
    w = np.asarray(weights, np.float64)
    if w.ndim not in (1, 2) or w.shape[-1] == 0:
        raise RuntimeError(
            f"multinomial: prob_dist must be 1 or 2 dim and not empty (got shape {w.shape})"
        )
    if not np.all(np.isfinite(w)) or np.any(w < 0):
        raise RuntimeError(
            "multinomial: probability tensor contains either `inf`, `nan` or element < 0"
        )
    possible = np.count_nonzero(w, axis=-1)
    if np.any(possible == 0):
        raise RuntimeError(
            "multinomial: invalid multinomial distribution (sum of probabilities <= 0)"
        )
    if count <= 0:
        raise RuntimeError("multinomial: cannot sample n_sample <= 0 samples")
    if not replacement and np.any(possible < count):
        raise RuntimeError(
            "multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement "
            f"(got {count} of {int(np.min(possible))} with positive weight)"
        )
    rows = w.reshape(-1, w.shape[-1])
    if replacement:
        unit = rand(generator, (rows.shape[0], count), np.dtype(np.float64))
        ends = np.cumsum(rows, axis=1)
        drawn = [
            np.searchsorted(e, u * e[-1], side="right") for e, u in zip(ends, unit, strict=True)
        ]
        last = [np.flatnonzero(r)[-1] for r in rows]
        picked = np.minimum(np.array(drawn), np.array(last)[:, None])
    else:
        clocks = exponential(generator, rows.shape, np.dtype(np.float64))
        with np.errstate(divide="ignore"):
            picked = np.argsort(np.where(rows > 0, clocks / rows, np.inf), axis=1, kind="stable")[
                :, :count
            ]
    return picked.reshape((*w.shape[:-1], count)).astype(np.int64)
