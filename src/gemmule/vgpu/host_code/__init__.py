"""The host part of a compiled ``@cute.jit`` function: an interpreter that reads its launches from the compiler's IR."""
