"""The version of symgrad, in the one place that packaging, the cache and users read it from."""

__version__ = "0.1.0"
