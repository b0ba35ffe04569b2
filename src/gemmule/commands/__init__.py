"""The subcommands of ``gemmule``, one file each."""
