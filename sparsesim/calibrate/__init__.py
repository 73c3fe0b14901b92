"""Fit of hardware parameters to measured rows: which rows, which parameters, the fit, and the file it writes."""

from sparsesim.calibrate.fit import calibrate
from sparsesim.calibrate.parameters import DEFAULT_PARAMETERS, Parameter
from sparsesim.calibrate.result import Calibration, FittedParameter, check_target

__all__ = ["DEFAULT_PARAMETERS", "Calibration", "FittedParameter", "Parameter", "calibrate", "check_target"]
