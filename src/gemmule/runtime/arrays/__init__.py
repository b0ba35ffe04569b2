"""Arrays of other libraries, as gemmule sees them."""

from .libraries import library_of
from .overlap import check_output, overlaps
from .view import ArrayLibrary, ArrayView

__all__ = ["ArrayLibrary", "ArrayView", "check_output", "library_of", "overlaps"]
