"""The record of the estimators. Pickles that users have saved name this module."""

from .._estimate import Estimate

__all__ = ["Estimate"]
