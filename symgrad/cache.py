"""Object files kept on disk between processes, each behind a checksum.

Two structures:

* an *entry*: one file named by its key, holding a magic line, the SHA-256 of all that follows,
  a text header (versions, key, fingerprint, length of the data) and the object file itself;
* the *directory*: private to the user. It is refused when it belongs to somebody else or when
  others can write it, since machine code is run from it.

Nothing here raises: an entry that is damaged, stale or odd in any way is a miss, a directory
that cannot be used means no cache. Start reading at `load` and `store`.

Environment: ``SYMGRAD_CACHE_DIR`` names another directory, ``SYMGRAD_CACHE=0`` turns the cache
off. The fingerprint of the compiler (LLVM version, CPU, features) is the caller's to give:
this module knows bytes only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from symgrad.version import __version__

MAX_BYTES = 512 * 2**20
_MAGIC = b"symgrad object file 1\n"
_DIGEST_BYTES = 64
_BLOCK_BYTES = 4096
_STALE_S = 3600.0
_REFRESH_S = 86400.0


def key_of(text: str, level: int, passes: Iterable[str], fingerprint: str = "") -> str:
    """The name of the entry for one compilation.

    Parameters
    ----------
    text : str
        What is compiled (LLVM IR).
    level : int
        Optimisation level.
    passes : iterable of str
        Names of the passes, in order.
    fingerprint : str
        All else that decides the machine code: compiler version, CPU, features.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for part in (__version__, fingerprint, str(level), ",".join(passes), text):
        data = part.encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def directory() -> Path | None:
    """The directory in use, made if need be; None when the cache is off or unusable."""
    if os.environ.get("SYMGRAD_CACHE", "") == "0":
        return None
    try:
        path = _chosen_directory()
        try:
            info = path.stat()
        except FileNotFoundError:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = path.stat()
    except (OSError, RuntimeError):
        return None
    return path if stat.S_ISDIR(info.st_mode) and _is_private(info) else None


def load(key: str, fingerprint: str = "") -> bytes | None:
    """The object file stored under `key`, or None.

    Parameters
    ----------
    key : str
        From `key_of`.
    fingerprint : str
        As given to `key_of`.
    """
    folder = directory()
    if folder is None:
        return None
    path = folder / key
    content = _read_private(path)
    if content is None:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    digest = content[len(_MAGIC) : start]
    rest = memoryview(content)[start:]
    intact = content.startswith(_MAGIC) and hashlib.sha256(rest).hexdigest().encode() == digest
    if not intact:
        return None
    end_of_header = content.find(b"\n\n", start)
    data = content[end_of_header + 2 :]
    if content[start:end_of_header] != _header(key, fingerprint, len(data)):
        return None
    return data


def store(key: str, data: bytes, fingerprint: str = "") -> None:
    """Keep an object file under `key`; does nothing when the directory cannot be used.

    Parameters
    ----------
    key : str
        From `key_of`.
    data : bytes
        The object file.
    fingerprint : str
        As given to `key_of`.
    """
    folder = directory()
    if folder is None:
        return
    body = _header(key, fingerprint, len(data)) + b"\n\n" + data
    content = _MAGIC + hashlib.sha256(body).hexdigest().encode() + body
    try:
        _write_atomically(folder, key, content)
    except OSError:
        return
    # Keys are uniform, so one store in 256 pays for the look at all entries.
    if key.startswith("00"):
        evict(folder)


def evict(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Remove the oldest entries until the directory takes at most 3/4 of `max_bytes`.

    Nothing is removed as long as it takes no more than `max_bytes`.

    Parameters
    ----------
    folder : Path
        The cache directory.
    max_bytes : int
        The cap, in bytes of whole disk blocks.
    """
    entries = []
    total = 0
    now = time.time()
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for item in listing:
            info = item.stat(follow_symlinks=False)
            if item.name.startswith(".new-") and now - info.st_mtime > _STALE_S:
                _remove(item.path)
                continue
            size = -(-info.st_size // _BLOCK_BYTES) * _BLOCK_BYTES
            entries.append((info.st_mtime, size, item.path))
            total += size
    if total <= max_bytes:
        return
    for _, size, path in sorted(entries):
        if total <= max_bytes * 3 // 4:
            return
        _remove(path)
        total -= size


def _chosen_directory() -> Path:
    chosen = os.environ.get("SYMGRAD_CACHE_DIR", "")
    return Path(chosen) if chosen else _default_directory()


@cache
def _default_directory() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("symgrad", appauthor=False)


def _is_private(info: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    return info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _header(key: str, fingerprint: str, length: int) -> bytes:
    one_line = " ".join(fingerprint.split())
    lines = (f"symgrad {__version__}", f"compiler {one_line}", f"key {key}", f"bytes {length}")
    return "\n".join(lines).encode()


def _read_private(path: Path) -> bytes | None:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        # Non-blocking, so that a pipe of that name is seen for what it is and not waited for.
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode) or not _is_private(info):
                return None
            content = file.read()
            if time.time() - info.st_mtime > _REFRESH_S:
                with contextlib.suppress(OSError):
                    os.utime(path)
            return content
    except OSError:
        return None


def _write_atomically(folder: Path, name: str, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, folder / name)
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
