"""Traces: the steps of one CTA as data, and a page that plays them."""

from .recorder import Trace

__all__ = ["Trace"]
