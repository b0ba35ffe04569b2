"""``python -m gemmule``: the command, where its script is not on the path."""

from gemmule.cli import main

if __name__ == "__main__":
    main()
