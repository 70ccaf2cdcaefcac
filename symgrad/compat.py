"""symgrad under the name `torch`, for scripts that were written for torch.

`install` puts symgrad's modules in `sys.modules` under torch's names; `run` runs a script so. Start
reading at `install`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import symgrad

NAME = "torch"


class device(str):  # noqa: N801
    """A name of a device. There is one, the CPU; making another is refused.

    The `device` arguments of functions are accepted and ignored.

    Examples
    --------
    >>> import symgrad as sg
    >>> sg.compat.device("cpu").type, sg.ones(1).device == sg.compat.device("cpu")
    ('cpu', True)
    """

    __slots__ = ()

    def __new__(cls, type: str = "cpu", index: int = 0) -> device:
        kind = str(type).partition(":")[0]
        if kind != "cpu":
            raise RuntimeError(
                f"device: there is no device {str(type)!r}; symgrad computes on 'cpu'"
            )
        return super().__new__(cls, kind)

    @property
    def type(self) -> str:
        return "cpu"

    def __repr__(self) -> str:
        return "device(type='cpu')"


class _Cuda(types.ModuleType):
    """torch.cuda where there is none: scripts ask for it before they use it."""

    def is_available(self) -> bool:
        """Whether there are CUDA devices."""
        return False

    def device_count(self) -> int:
        """How many CUDA devices there are."""
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed."""

    def empty_cache(self) -> None:
        """Give back the memory of dead results and of calls that is kept for the next ones."""
        from symgrad.codegen.entry import trim_arenas

        trim_arenas()


cuda = _Cuda("symgrad.cuda", _Cuda.__doc__)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives symgrad's modules under torch's names: one module, two names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module below `torch` that symgrad has."""
        if not fullname.startswith(NAME + "."):
            return None
        own = symgrad.__name__ + fullname[len(NAME) :]
        try:
            module = importlib.import_module(own)
        except ModuleNotFoundError as error:
            if error.name is None or not own.startswith(error.name):
                raise
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self)
        spec.loader_state = (module, module.__spec__)
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module itself."""
        module: types.ModuleType = spec.loader_state[0]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run again; the module keeps the spec of its own name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state[1]


_FINDER = _Finder()


def install() -> None:
    """Make ``import torch``, and imports of its submodules, give symgrad.

    Raises
    ------
    RuntimeError
        If another torch is imported already.
    """
    found = sys.modules.get(NAME)
    if found is not None and found is not symgrad:
        raise RuntimeError(
            f"compat.install: another torch is imported already (got {found!r}); install before any import of it"
        )
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    sys.modules[NAME] = symgrad
    sys.modules[f"{NAME}.cuda"] = cuda


def uninstall() -> None:
    """Take symgrad's modules out of torch's names again."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    if sys.modules.get(NAME) is symgrad:
        for name in [n for n in sys.modules if n == NAME or n.startswith(NAME + ".")]:
            del sys.modules[name]


def run(script: str, arguments: Sequence[str] = ()) -> None:
    """Run a script that was written for torch, as ``python script arguments...`` would.

    Raises
    ------
    FileNotFoundError
        If there is no such script.
    """
    if not Path(script).is_file():
        raise FileNotFoundError(f"run: there is no script {script!r}")
    install()
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
