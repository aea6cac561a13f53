"""Training losses, with keyword-only names for the two sides instead of an order to remember."""
