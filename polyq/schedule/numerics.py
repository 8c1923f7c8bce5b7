"""What a kernel may change of the arithmetic, by name."""

__all__ = ["NUMERICS"]

NUMERICS = ("strict", "reassoc")
