"""Tensors on disk, in the safetensors format: data only, so loading a file runs no code.

A file is eight bytes with the length of the header (little-endian), a header in JSON, and the
tensors' bytes. The header maps names to dtype, shape and the range of bytes, and
``__metadata__`` to strings (https://github.com/huggingface/safetensors#format). Nested values, such
as an optimiser's state, are stored as an outline in the metadata whose tensors are named by their
path; a flat dict of tensors is an ordinary safetensors file. Start reading at `save`.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from symgrad import dtypes
from symgrad.tensor import Tensor, from_array

File = str | os.PathLike[str] | BinaryIO

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float32": "F32", "float64": "F64", "complex64": "C64", "complex128": "C128",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}
_OUTLINE = "symgrad.outline"
_MOST = 100_000_000
"""The longest header that is read, as in the reference implementation."""


class _Outline:
    """Values taken apart into JSON and tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def of(self, value: Any, path: str) -> Any:
        """The JSON form of a value."""
        if isinstance(value, Tensor):
            name = path or "tensor"
            while name in self.tensors or name == "__metadata__":
                name += "_"
            self.tensors[name] = value
            return {"tensor": name, "grad": value.requires_grad}
        if value is None or isinstance(value, bool | int | str):
            return {"plain": value}
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, Mapping):
            pairs = [[self.of(k, ""), self.of(v, _joined(path, k))] for k, v in value.items()]
            return {"dict": pairs, "ordered": isinstance(value, OrderedDict)}
        if isinstance(value, list | tuple):
            parts = [self.of(v, _joined(path, k)) for k, v in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": parts}
        raise TypeError(
            f"save: cannot save a value of type {type(value).__name__} (at {path or 'the top'}); save tensors, "
            "numbers, strings and containers of them, such as module.state_dict()"
        )

    def back(self, form: dict[str, Any]) -> Any:
        """The value of a JSON form."""
        if "tensor" in form:
            t = self.tensors[form["tensor"]]
            return t.requires_grad_() if form.get("grad") else t
        if "plain" in form:
            return form["plain"]
        if "float" in form:
            return float.fromhex(form["float"])
        if "dict" in form:
            pairs = [(self.back(k), self.back(v)) for k, v in form["dict"]]
            return OrderedDict(pairs) if form.get("ordered") else dict(pairs)
        if "tuple" in form:
            return tuple(self.back(v) for v in form["tuple"])
        return [self.back(v) for v in form["list"]]


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _is_flat(value: Any) -> bool:
    """Whether a value is what the format holds by itself: names with plain tensors."""
    return type(value) in (dict, OrderedDict, defaultdict) and all(
        isinstance(k, str)
        and k not in ("", "__metadata__")
        and isinstance(v, Tensor)
        and not v.requires_grad
        for k, v in value.items()
    )


def save(obj: Any, f: File) -> None:
    """Write tensors to a file.

    Parameters
    ----------
    obj : Tensor, dict of str to Tensor, or nesting of dicts, lists, tuples, numbers and strings
    f : path or binary file

    Raises
    ------
    TypeError
        For values of other types: no code is stored.

    Examples
    --------
    >>> import io
    >>> import symgrad as sg
    >>> place = io.BytesIO()
    >>> sg.save({"w": sg.tensor([1., 2.])}, place)
    >>> _ = place.seek(0)
    >>> sg.load(place)
    {'w': tensor([1., 2.])}
    """
    outline = _Outline()
    form = outline.of(obj, "")
    header: dict[str, Any] = {}
    if not _is_flat(obj):
        header["__metadata__"] = {_OUTLINE: json.dumps(form, separators=(",", ":"))}
    # Wide elements first, so that each tensor's bytes begin at a multiple of its element's size.
    order = sorted(outline.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    start = 0
    arrays = []
    for name, t in order:
        array = np.ascontiguousarray(t.look(), t.dtype.numpy.newbyteorder("<")).reshape(t.shape)
        header[name] = {
            "dtype": _CODES[t.dtype.name],
            "shape": list(t.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
        arrays.append(array)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in arrays)]
    if isinstance(f, str | os.PathLike):
        with open(f, "wb") as file:
            file.writelines(parts)
    else:
        for part in parts:
            f.write(part)


def load(f: File, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what `save` wrote, or any safetensors file.

    Parameters
    ----------
    f : path or binary file
    map_location, weights_only
        Accepted for torch's sake: there is one device, and no code is ever loaded.

    Raises
    ------
    RuntimeError
        If the file is not in the safetensors format.
    """
    data = Path(f).read_bytes() if isinstance(f, str | os.PathLike) else f.read()
    header, body = _parts(data)
    metadata = header.pop("__metadata__", {})
    outline = _Outline()
    for name, entry in header.items():
        outline.tensors[name] = _tensor(name, entry, body)
    if _OUTLINE not in metadata:
        return outline.tensors
    try:
        return outline.back(json.loads(metadata[_OUTLINE]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise RuntimeError(
            f"load: the outline of the file is damaged ({error!r}); save it anew"
        ) from error


def _parts(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header and the bytes after it."""
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else _MOST + 1
    if length > min(_MOST, len(data) - 8):
        raise RuntimeError(
            f"load: not a safetensors file (got {len(data)} bytes whose first eight are no length of a header); "
            "convert files of torch.save with safetensors.torch.save_file first"
        )
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as error:
        raise RuntimeError(
            f"load: the header of the file is no JSON ({error}); save it anew"
        ) from error
    if not isinstance(header, dict):
        raise RuntimeError(
            f"load: the header of the file is no object (got {type(header).__name__}); save it anew"
        )
    return header, memoryview(data)[8 + length :]


def _tensor(name: str, entry: Any, body: memoryview) -> Tensor:
    try:
        kind = dtypes.by_name(_NAMES[entry["dtype"]])
        shape = tuple(int(s) for s in entry["shape"])
        start, end = entry["data_offsets"]
        array = np.frombuffer(body[start:end], kind.numpy.newbyteorder("<")).reshape(shape)
        if not 0 <= start <= end <= len(body):
            raise ValueError(f"bytes {start} to {end} of {len(body)}")
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeError(
            f"load: tensor {name!r} of the file cannot be read ({error!r}); save it anew"
        ) from error
    return from_array(np.array(array, kind.numpy))
