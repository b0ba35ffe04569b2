"""Products whose matrices pass through a device with less memory than they take: planned, predicted, streamed."""
