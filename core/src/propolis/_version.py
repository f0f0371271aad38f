"""The version of core, which all distributions share."""

__version__ = "0.1.0"
