"""The command line. One module for each group of commands; what they share is in `options` and `output`.

Modules here import only what ``--help`` needs; the commands import the simulator when they run.
"""

from sparsesim.cli.app import app

__all__ = ["app"]
