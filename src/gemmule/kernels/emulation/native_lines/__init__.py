"""Listed rows and columns of an emulated product, computed in float64."""
