"""Outputs: plain text, a terminal, Markdown, HTML for notebooks, pages, pictures and JSON, one file each.

They lay out grids, sheets and words. Beside each record, `report.py` decides what a report says. Nothing here
imports a record, not even for types. Only `terminal` imports rich.
"""
