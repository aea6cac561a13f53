"""Checks of kullback.keras on one Keras backend, which a process chooses once: run by test_keras_surface.py with KERAS_BACKEND set.

Every function `check_...` of the modules below is one test; those named `check_tensorflow_...` are for that backend alone. What happened
comes out as JSON, one entry a check: null, or the traceback.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from pathlib import Path

import keras_function
import keras_objects
import keras_patching
import keras_training
from keras_support import BACKEND

MODULES = (keras_function, keras_objects, keras_training, keras_patching)


def main(path):
    results = {}
    checks = {name: check for module in MODULES for name, check in vars(module).items() if name.startswith("check_")}
    for name, check in checks.items():
        if name.startswith("check_tensorflow_") and BACKEND != "tensorflow":
            continue
        results[name] = None
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check()
        except Exception:
            results[name] = traceback.format_exc()
        print(f"{time.perf_counter() - start:6.1f} s {name}")
    Path(path).write_text(json.dumps({"backend": BACKEND, "results": results}))


if __name__ == "__main__":
    main(sys.argv[1])
