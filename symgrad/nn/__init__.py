"""torch.nn's namespace; its functions are in `symgrad.nn.functional`."""

from symgrad.nn import functional

__all__ = ["functional"]
