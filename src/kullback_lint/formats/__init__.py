"""Findings → text, JSON, SARIF, GitHub annotations. One module a format, each with `render`."""
