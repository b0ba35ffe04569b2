"""``python -m gemmule``: the command, where its script is not on the path."""

from gemmule_command import script

if __name__ == "__main__":
    script()
