"""The disk cache: what is stored comes back, and anything odd is a miss."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from symgrad import cache

KEY = cache.key_of("define void @f()", 2, ["sroa"], "LLVM 22 cpu a")
DATA = bytes(range(256)) * 9 + b"\n\n\x00"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(place))
    monkeypatch.delenv("SYMGRAD_CACHE", raising=False)
    return place


def stored(folder: Path) -> Path:
    cache.store(KEY, DATA, "LLVM 22 cpu a")
    assert cache.load(KEY, "LLVM 22 cpu a") == DATA
    return folder / KEY


def test_entry_comes_back_and_directory_is_private(folder: Path) -> None:
    path = stored(folder)
    assert [p.name for p in folder.iterdir()] == [KEY]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o077 == 0


def test_empty_data_comes_back(folder: Path) -> None:
    cache.store(KEY, b"")
    assert cache.load(KEY) == b""


def test_unknown_key_is_a_miss(folder: Path) -> None:
    assert cache.load(KEY) is None


def test_flipped_bit_is_a_miss_wherever_it_is(folder: Path) -> None:
    path = stored(folder)
    good = path.read_bytes()
    for position in {*range(0, len(good), 37), len(good) - 1}:
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        assert cache.load(KEY, "LLVM 22 cpu a") is None
    path.write_bytes(good)
    assert cache.load(KEY, "LLVM 22 cpu a") == DATA


def test_truncated_or_extended_file_is_a_miss(folder: Path) -> None:
    path = stored(folder)
    good = path.read_bytes()
    for length in (0, 1, 21, 22, 60, 86, 100, 200, len(good) - 1):
        path.write_bytes(good[:length])
        assert cache.load(KEY, "LLVM 22 cpu a") is None
    path.write_bytes(good + b"\x00")
    assert cache.load(KEY, "LLVM 22 cpu a") is None


def test_entry_of_another_version_is_a_miss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder)
    monkeypatch.setattr(cache, "__version__", "another")
    assert cache.load(KEY, "LLVM 22 cpu a") is None


def test_entry_of_another_compiler_or_key_is_a_miss(folder: Path) -> None:
    path = stored(folder)
    assert cache.load(KEY, "LLVM 22 cpu b") is None
    other = cache.key_of("other", 2, [])
    path.rename(folder / other)
    assert cache.load(other, "LLVM 22 cpu a") is None


def test_key_depends_on_every_part() -> None:
    parts = [
        ("t", 1, ["a", "b"], "f"),
        ("u", 1, ["a", "b"], "f"),
        ("t", 2, ["a", "b"], "f"),
        ("t", 1, ["b", "a"], "f"),
        ("t", 1, ["a", "b"], "g"),
        ("ft", 1, ["a", "b"], ""),
    ]
    assert len({cache.key_of(*p) for p in parts}) == len(parts)


def test_directory_that_others_can_write_is_refused(folder: Path) -> None:
    stored(folder)
    for mode in (0o777, 0o702, 0o720):
        folder.chmod(mode)
        assert cache.directory() is None
        assert cache.load(KEY, "LLVM 22 cpu a") is None
        cache.store("1" * 64, DATA)
    folder.chmod(0o700)
    assert [p.name for p in folder.iterdir()] == [KEY]


def test_file_that_others_can_write_is_a_miss(folder: Path) -> None:
    path = stored(folder)
    path.chmod(0o622)
    assert cache.load(KEY, "LLVM 22 cpu a") is None


def test_link_in_place_of_an_entry_is_a_miss(folder: Path) -> None:
    path = stored(folder)
    moved = path.rename(folder / "elsewhere")
    path.symlink_to(moved)
    assert cache.load(KEY, "LLVM 22 cpu a") is None


def test_pipe_or_directory_in_place_of_an_entry_is_a_miss(folder: Path) -> None:
    stored(folder).unlink()
    os.mkfifo(folder / KEY)
    assert cache.load(KEY, "LLVM 22 cpu a") is None
    (folder / KEY).unlink()
    (folder / KEY).mkdir()
    assert cache.load(KEY, "LLVM 22 cpu a") is None
    cache.store(KEY, DATA)
    assert [p.name for p in folder.iterdir()] == [KEY]


def test_directory_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert cache.load(KEY, "LLVM 22 cpu a") is None


def test_directory_that_cannot_be_made_or_written_means_no_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = folder.parent / "file"
    blocker.write_text("")
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(blocker / "below"))
    cache.store(KEY, DATA)
    assert cache.load(KEY) is None
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(blocker))
    cache.store(KEY, DATA)
    assert cache.load(KEY) is None
    monkeypatch.setenv("SYMGRAD_CACHE_DIR", str(folder))

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    cache.store(KEY, DATA)
    assert cache.load(KEY) is None


def test_failed_write_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    cache.store(KEY, DATA)
    assert list(folder.iterdir()) == []


def test_switch_turns_the_cache_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder)
    monkeypatch.setenv("SYMGRAD_CACHE", "0")
    assert cache.load(KEY, "LLVM 22 cpu a") is None
    cache.store("2" * 64, DATA)
    assert [p.name for p in folder.iterdir()] == [KEY]


def test_eviction_takes_the_oldest_and_stale_temporaries(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for age in range(8):
        path = folder / f"{age:064d}"
        path.write_bytes(bytes(4096))
        os.utime(path, (2e9 - age, 2e9 - age))
    for name, when in ((".new-old", 1e9), (".new-young", 4e9)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (when, when))
    cache.evict(folder, 9 * 4096)
    assert len(list(folder.iterdir())) == 9
    cache.evict(folder, 8 * 4096)
    names = {p.name for p in folder.iterdir()}
    assert names == {f"{age:064d}" for age in range(5)} | {".new-young"}


def test_one_store_in_256_looks_at_all_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(cache, "evict", looks.append)
    for first_byte in range(256):
        cache.store(f"{first_byte:02x}" + "5" * 62, b"d")
    assert looks == [folder]


def test_threads_that_store_and_load_one_key_see_whole_entries(folder: Path) -> None:
    wrong: list[object] = []

    def work() -> None:
        for _ in range(100):
            cache.store(KEY, DATA)
            if cache.load(KEY) != DATA:
                wrong.append(KEY)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [p.name for p in folder.iterdir()] == [KEY]


COMPILE = """
import ctypes
from symgrad.codegen import emission, ir, jit
module = ir.Module()
body = ir.Function(module, "twice", [("x", "double", 1)], ("double", 1))
body.ret(body.fadd(body.arguments[0], body.arguments[0]))
body.finish()
library = jit.compile_module(module, ["twice"], ["instruction_combine"])
function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library["twice"])
print(emission.compile_count(), function(21.0))
"""


def run_compile() -> str:
    command = [sys.executable, "-W", "error", "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_second_process_compiles_nothing_and_damage_makes_it_compile(folder: Path) -> None:
    assert run_compile() == "1 42.0"
    assert run_compile() == "0 42.0"
    (path,) = folder.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[-40] ^= 4
    path.write_bytes(damaged)
    assert run_compile() == "1 42.0"
    assert run_compile() == "0 42.0"


def test_import_loads_no_compiler() -> None:
    command = [sys.executable, "-c", "import symgrad.cache, sys; print('llvmlite' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
