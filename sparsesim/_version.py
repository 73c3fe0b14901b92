"""Version of the package; part of every result's provenance."""

__version__ = "0.1.0"
