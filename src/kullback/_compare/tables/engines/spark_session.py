"""Spark's session: how it starts, what it says when something is wrong, and what Ctrl-C does."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from ...._read import ReadError
from ..sources import Source

_MASTER = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


def started(master: str | None) -> Any:
    """The running session, or a new one on `master` (this machine by default)."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError:
        raise ReadError("--engine spark needs PySpark: pip install 'kullback[spark]'") from None
    if master is not None and not _MASTER.fullmatch(master):  # Java would end, and say so in a page of its own
        raise ReadError(f"Spark has no master {master!r}: it is local, local[4], yarn, spark://host:7077 or k8s://https://host:443")
    try:
        session = SparkSession.getActiveSession()
        if session is None and SparkContext._active_spark_context is not None:  # a caller's, in whose other threads none is active
            session = SparkSession.builder.getOrCreate()
        if session is None:
            # Java that has not begun yet would write pages about Ctrl-C, and live on. A new context sets its own answer to it: so, twice.
            with _interrupts(wait=True):
                conf = SparkConf().setAppName("kullback").setMaster(master or "local[*]")
                SparkContext.getOrCreate(conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false"))
            with _interrupts(wait=True):
                session = SparkSession.builder.getOrCreate()
                session.sparkContext.setLogLevel("OFF")  # what goes wrong arrives here, and is said in a sentence
    except Exception as error:  # a gateway that does not start has no class of its own
        java = shutil.which("java") or "JAVA_HOME" in os.environ
        why = _first_line(error).rstrip(".")
        raise ReadError(f"Spark does not start: {why}{'' if java else '; it needs Java, which is not installed'}") from None
    return session


@contextmanager
def spoken(source: Source, side: str) -> Iterator[None]:
    """What Spark raises, as a sentence; and Ctrl-C without the pages that come with it, and without an end to jobs that are not ours."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    tag = f"kullback {uuid4()}"
    try:
        with _interrupts():
            context.addJobTag(tag)
            yield
    except KeyboardInterrupt:
        _cancel(context, tag)
        raise
    except _errors() as error:
        raise ReadError(f"{side}: {_sentence(error, source)}") from None
    finally:
        with suppress(Exception):
            context.removeJobTag(tag)


def _cancel(context: Any, tag: str) -> None:
    from py4j.protocol import Py4JNetworkError

    for _ in range(2):  # the talk with Java that was interrupted may be what the first answer is to
        try:
            context.cancelJobsWithTag(tag)
            return
        except Py4JNetworkError:
            continue
        except Exception:  # of a session that is gone, say: the interrupt is what the caller is to hear of
            return


@contextmanager
def _interrupts(wait: bool = False) -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt, with `wait` one at the end. PySpark's own answer to it talks to Java in the middle of another talk,
    and py4j logs either with its traceback. A caller's own answer stays, also where a new context sets PySpark's."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    if before is not signal.default_int_handler and not (getattr(before, "__module__", None) or "").startswith(("pyspark.", "kullback_command.")):
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        return
    disabled = logging.root.manager.disable
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        logging.disable(logging.CRITICAL)
        if not wait:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        logging.disable(disabled)
        if signal.getsignal(signal.SIGINT) is press:  # a new session has set its own
            signal.signal(signal.SIGINT, before)
    if pressed and wait:
        raise KeyboardInterrupt


def _errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JJavaError)


def _sentence(error: Exception, source: Source) -> str:
    text = _first_line(error)
    if doubled := re.match(r"\[COLUMN_ALREADY_EXISTS\] The column `(.*)` already exists", text):
        return f"{source.name} has two columns named {doubled[1]!r} (Spark reads no names that differ in case only): rename one"
    if damaged := re.match(r"\[FAILED_READ_FILE\.CANNOT_READ_FILE_FOOTER\] .* reading file (?:file:/*(?=/))?(.*)\. Could not", text):
        return f"{damaged[1]} is cut short or damaged: copy or write it again"
    return f"{source.name}: {text}"


def _first_line(error: Exception) -> str:
    """Of what Java says, without where in Java."""
    text = str(error).partition("\n: ")[2] or str(error)
    return re.sub(r"^([a-z]+[.])+[A-Za-z]+: ", "", text.strip().splitlines()[0])
