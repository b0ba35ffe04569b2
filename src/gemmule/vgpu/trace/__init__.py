"""Traces: the steps of one CTA as data, and a page that plays them."""

from .recorder import Trace, check_path

__all__ = ["Trace", "check_path"]
