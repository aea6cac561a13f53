"""The words of the library's errors, as a user of the command knows them."""

from __future__ import annotations

import re

from kullback._read import ReadError


def of_error(error: Exception) -> str:
    """The sentence of an error. A ReadError is about a file, and stays as it is."""
    if isinstance(error, ReadError):
        return str(error)
    # The library calls the sides p and q, which here are P and Q.
    return re.sub(r"(?<![\w'])([pq])(?![\w'\[])", lambda side: side[1].upper(), as_options(str(error)))


def as_options(message: str) -> str:
    """The library speaks of arguments; the command has options."""
    message = re.sub(r"form=\('(\w+)', '(\w+)'\)", r"--form \1,\2", message)
    message = re.sub(r"form='(\w+)'", r"--form \1", message)
    for argument, option in (
        ("allow_partial=True", "--allow-partial"),
        ("name the columns to compare", "name the columns to compare with --columns"),
        ("common=True", "--common"),
        ("engine='spark'", "--engine spark"),
        ("pass prior= to", "pass --prior to"),
        ("labels was passed", "--labels was passed"),
        ("pass mappings or pandas Series", "give label,value files"),
        ("; give the row weight 0 to leave it out", ""),  # no command has weights
        (", or give the row weight 0", ""),
        ("None for nats", "e for nats"),
    ):
        message = message.replace(argument, option)
    return message
