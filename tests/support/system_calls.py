"""Calls of the operating system that are written down, do less than they are asked, or fail."""

from __future__ import annotations

import os


def replaced(monkeypatch, name, call):
    """Let the system's call of that name be another."""
    monkeypatch.setattr(os, name, call, raising=False)


def recorded(monkeypatch, name):
    """Return the list of arguments that the call gets from now on."""
    found, call = [], getattr(os, name)

    def noted(*arguments):
        found.append(arguments)
        return call(*arguments)

    replaced(monkeypatch, name, noted)
    return found


def shortened(monkeypatch, name, most):
    """Let preadv or pwrite move at most so many bytes at a time."""
    call = getattr(os, name)

    def short(descriptor, data, offset):
        less = [memoryview(data[0])[:most]] if name == "preadv" else memoryview(data)[:most]
        return call(descriptor, less, offset)

    replaced(monkeypatch, name, short)


def failing(monkeypatch, name, number):
    """Let the call fail with an error of that number."""

    def fails(*arguments, **options):
        raise OSError(number, os.strerror(number))

    replaced(monkeypatch, name, fails)
