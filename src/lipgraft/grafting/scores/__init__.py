"""Scores of neurons: pure functions of bounds over a calibration set and of the network's weights."""
