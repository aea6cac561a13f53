"""Training losses, with keyword-only names for the two sides instead of an order to remember."""

from .distillation import kl_loss

__all__ = ["kl_loss"]
