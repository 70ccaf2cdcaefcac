"""Native classes: instances behave as those of their base and call their entry."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from entry_program import Program, Refused, Slots, add_all, doubled, twice, view

from symgrad.codegen import entry
from symgrad.codegen.entry_class import bind, native_class
from symgrad.codegen.entry_spec import FloatLeaf, Scalar, Static


class WithDict:
    """A base with a dictionary."""

    note: Any = None

    def formula(self) -> str:
        """Something to call besides the object itself."""
        return f"formula of {self.note}"


class WithSlots:
    """A base without one."""

    __slots__ = ("__weakref__", "extra", "note")

    def __init__(self, note: Any = None) -> None:
        self.note = note

    def formula(self) -> str:
        """Something to call besides the object itself."""
        return f"formula of {self.note}"


class Derived(WithSlots):
    """A base with a base."""

    __slots__ = ("more",)


BASES = [WithDict, WithSlots, Derived]


def doubling(**more: Any) -> entry.Entry:
    return entry.make_entry(twice(()).spec([FloatLeaf(0)], Scalar(float, 1), 2, **more))


@pytest.mark.parametrize("base", BASES)
def test_instance_has_methods_and_calls_its_entry(base: Any) -> None:
    thing: Any = native_class(base)()
    bind(thing, doubling())
    thing.note = "x"
    assert isinstance(thing, base)
    assert thing.formula() == "formula of x"
    assert thing(1.5) == 3.0
    assert thing(*[1.5]) == 3.0
    assert list(map(thing, [1.0, 2.0])) == [2.0, 4.0]
    assert type(thing).__call__(thing, 4.0) == 8.0
    for args in ((1,), (), (1.0, 2.0)):
        with pytest.raises(Refused):
            thing(*args)
    with pytest.raises(Refused):
        thing(x=1.0)


def test_class_is_made_once_and_looks_like_its_base() -> None:
    made: Any = native_class(WithSlots)
    assert native_class(WithSlots) is made
    assert (made.__name__, made.__module__) == ("WithSlots", __name__)
    assert made("given").note == "given"
    assert not {"_owned", "_called"} & set(dir(made()))


@pytest.mark.parametrize("base", BASES)
def test_unbound_instance_raises(base: Any) -> None:
    with pytest.raises(TypeError):
        native_class(base)()(1.0)


@pytest.mark.parametrize("base", BASES)
def test_instance_keeps_its_entry_and_is_collected_in_a_cycle(base: Any) -> None:
    thing: Any = native_class(base)()

    class Fallback:
        owner: Any = thing

        def __call__(self, *args: Any) -> Any:
            return self.owner

    bind(thing, doubling(fallback=Fallback()))
    gc.collect()
    assert thing(2.0) == 4.0
    assert thing(None) is thing
    reference = weakref.ref(thing)
    del thing, Fallback
    gc.collect()
    assert reference() is None


def test_binding_again_inside_the_fallback_and_inside_a_run() -> None:
    thing: Any = native_class(WithSlots)()
    dropped: list[weakref.ref[Any]] = []

    class Fallback:
        def __call__(self, x: Any) -> str:
            bind(thing, doubling())
            gc.collect()
            return f"bound again for {x}, {self.__class__.__name__}"

    def body(slots: Slots) -> None:
        bind(thing, doubling())
        gc.collect()
        # What runs is kept until it returns.
        assert dropped[0]() is not None
        view(slots, 1)[()] = 10 * view(slots, 0)[()]

    for release in (False, True):
        program = Program(body)
        spec = program.spec(
            [FloatLeaf(0)], Scalar(float, 1), 2, fallback=Fallback(), release_gil=release
        )
        dropped[:] = [weakref.ref(program)]
        bind(thing, entry.make_entry(spec))
        del program, spec
        assert thing(2.0) == 20.0
        assert thing(2.0) == 4.0
    bind(thing, entry.make_entry(add_all(1).spec([], Static(5), 2, fallback=Fallback())))
    assert thing("y") == "bound again for y, Fallback"
    assert thing(1.0) == 2.0


def test_many_instances_leave_nothing_behind() -> None:
    made, target = native_class(WithSlots), doubling()
    owned = target.function.__self__  # type: ignore[attr-defined]
    references = []
    for _ in range(100):
        thing = made()
        bind(thing, target)
        bind(thing, target)
        references.append(weakref.ref(thing))
    del thing
    gc.collect()
    assert [r() for r in references] == [None] * 100
    referrers = [r for r in gc.get_referrers(owned) if isinstance(r, WithSlots)]
    assert referrers == []


def test_arrays_pass_through_an_instance() -> None:
    function = doubled((3,))
    thing: Any = native_class(WithDict)()
    bind(thing, entry.Entry(function, 0))
    np.testing.assert_array_equal(thing(np.arange(3.0)), [0.0, 2.0, 4.0])


class Asked:
    """Calls that reach its own method say so."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("fail"):
            raise Refused("asked to fail")
        return "own", args, kwargs


def test_calls_go_to_the_class_until_an_entry_is_bound() -> None:
    thing: Any = native_class(Asked)()
    for _ in range(2):
        assert thing(1.5, key=2) == ("own", (1.5,), {"key": 2})
        assert thing(*[1.5]) == ("own", (1.5,), {})
        assert list(map(thing, [1.0])) == [("own", (1.0,), {})]
        with pytest.raises(Refused, match="asked to fail"):
            thing(fail=True)
        bind(native_class(Asked)(), doubling())
    bind(thing, doubling())
    assert thing(1.5) == 3.0
    assert thing(*[1.5]) == 3.0
    with pytest.raises(Refused):
        thing(1.5, key=2)


def test_unfit_bases_and_strangers_are_refused() -> None:
    with pytest.raises(TypeError, match="native_class: the base must"):
        native_class(tuple)
    for stranger in (WithSlots(), object(), 5):
        with pytest.raises(TypeError, match="is no native class"):
            bind(stranger, doubling())
