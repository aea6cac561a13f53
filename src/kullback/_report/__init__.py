"""From a result record to something to read: plain text, a terminal, HTML.

Nothing is computed here but layout; `table` decides what is shown, the other modules how. Only `terminal` imports rich.
"""
