"""File formats of matrices: .npy, Zarr and HDF5."""
