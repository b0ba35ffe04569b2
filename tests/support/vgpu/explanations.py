"""Explanations that several tests look at, each made once."""

from __future__ import annotations

import functools

from gemmule.commands.explain import explanation


@functools.cache
def explained(kernel, shape="4096,4096,4096", chip="h100", **options):
    return explanation(kernel, shape, chip, **options)
