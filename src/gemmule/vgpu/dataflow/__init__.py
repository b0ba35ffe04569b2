"""Passes over a parsed kernel: control flow, effects and uses of registers, and what the checks derive from them."""
