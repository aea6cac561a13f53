"""Outputs: plain text, a terminal, Markdown, HTML for notebooks, pages, pictures and JSON, one file each.

They lay out what they are handed: grids, sheets and words. What a report says is decided beside each record, in its
`report.py`, and nothing here imports a record. Only `terminal` imports rich.
"""
