"""The engine of products that pass through a device: buffers, streams, staging and progress."""
