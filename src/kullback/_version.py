"""The version of kullback, for records that name it. Imports nothing."""

__version__ = "0.1.0"
