"""How far predictions are from what was measured: recorded runs, measured rows, profiles, calibration."""
