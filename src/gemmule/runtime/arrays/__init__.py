"""Arrays of other libraries, as gemmule sees them."""

from .libraries import call_arrays_of, library_of
from .overlap import check_output, overlaps
from .view import ArrayLibrary, ArrayView

__all__ = ["ArrayLibrary", "ArrayView", "call_arrays_of", "check_output", "library_of", "overlaps"]
