"""Profiles: where the time of a product goes, by kernel, by call and by copy."""
