"""What a kernel may change of the arithmetic, by name."""

__all__ = ["INTEGER", "NUMERICS"]

#: modes in which activations that meet narrow integers become integers themselves (``polyq.affine.quantize.MODES``)
INTEGER = ("i16", "i16x2", "i8")
NUMERICS = ("strict", "reassoc", *INTEGER)
