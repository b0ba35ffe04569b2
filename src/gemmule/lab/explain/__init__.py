"""Why a kernel is as fast as it is: counted on the virtual GPU, held against a chip's figures."""

from .explain import arch_for, explain
from .explanation import Explanation
from .page import page

__all__ = ["Explanation", "arch_for", "explain", "page"]
