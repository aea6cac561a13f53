"""A Spark session that is the caller's: its log, its jobs and its answer to Ctrl-C stay as they are."""

import json
import subprocess
import sys

import pytest

from processes import ENVIRONMENT

SCRIPT = """
import json, os, signal, threading, time
from pyspark.sql import SparkSession
from kullback._compare.tables import profile

pressed, found, job = [], {}, []
def mine(number, frame):
    pressed.append(number)

signal.signal(signal.SIGINT, mine)
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("ERROR")
level = lambda: session._jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString()
press = lambda: os.kill(os.getpid(), signal.SIGINT)

import pyarrow
thread = threading.Thread(target=lambda: found.update(rows=profile(pyarrow.table({"x": [1, 2]}), engine="spark").rows))
thread.start()
thread.join()
found["level"] = level()

signal.signal(signal.SIGINT, mine)  # PySpark has set its own
threading.Timer(1.0, press).start()
many = session.range(0, 3 * 10**8, 1, 1).selectExpr("id % 7 = 0 as x")
found["counted"] = profile(many).rows
while not pressed:
    time.sleep(0.1)
found["pressed"], found["kept"] = len(pressed), signal.getsignal(signal.SIGINT) is mine

signal.signal(signal.SIGINT, signal.default_int_handler)
other = threading.Thread(target=lambda: job.append(session.range(0, 10**9, 1, 1).selectExpr("sum(sqrt(id))").first()[0]), daemon=True)
other.start()
time.sleep(1.0)
threading.Timer(1.0, press).start()
try:
    profile(session.range(0, 10**12, 1, 1).selectExpr("sqrt(id) as x"))
except KeyboardInterrupt:
    found["interrupted"] = True
found["still at work"] = other.is_alive()
other.join(100)
found["job"] = job
found["left"] = len(session.sparkContext.statusTracker().getActiveJobsIds())
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.compiler
def test_a_session_of_the_caller(tmp_path):
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    (total,) = found.pop("job")
    assert total == pytest.approx(2 / 3 * 1e9**1.5, rel=1e-6)  # the integral, from which the sum differs by 1e-9
    assert found == {
        "rows": 2, "level": "ERROR", "counted": 3 * 10**8, "pressed": 1, "kept": True,
        "interrupted": True, "still at work": True, "left": 0,
    }  # fmt: skip
    assert "Traceback" not in done.stderr
