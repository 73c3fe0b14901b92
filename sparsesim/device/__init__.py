"""The device model: one launch on one GPU → time and counters."""
