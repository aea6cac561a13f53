"""Keras 3's names with the right answers, on whatever backend Keras runs: `losses`, `metrics`, and a patch for code that stays as it is.

Laid out as Keras itself is, so that changing an import is enough. The loss and the function are also here at the top.

>>> import kullback.keras
>>> loss = kullback.keras.KLDivergence()
>>> round(float(loss([[0.5, 0.5, 0.0]], [[0.25, 0.25, 0.5]])), 6)
0.693147
>>> metric = kullback.keras.metrics.KLDivergence()
>>> metric.update_state([[1.0, 0.0]], [[0.5, 0.5]])
>>> round(float(metric.result()), 6)
0.693147
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

import keras

from .._patching import Patch, Replacement
from . import losses, metrics
from .losses import KLDivergence, kl_divergence

__all__ = ["KLDivergence", "install", "kl_divergence", "losses", "metrics", "patched", "uninstall"]


def _ours_for(theirs: Any, original: Any) -> Any:
    @wraps(theirs)
    def find(*args: Any, **kwargs: Any) -> Any:
        found = theirs(*args, **kwargs)
        return kl_divergence if found is original else found

    return find


def _replacements() -> list[Replacement]:
    original = keras.losses.kl_divergence
    ours = {id(original): kl_divergence}
    # What strings ("kl_divergence", "kld") stand for.
    for find in (keras.losses.get, keras.losses.deserialize):
        ours[id(find)] = _ours_for(find, original)
    # By every name that Keras' own modules, `tf.keras` among them, have for these. Its classes look the function up by such a name when
    # an instance is made, so they need no replacement of their own.
    found: list[Replacement] = [
        (module, name, ours[id(value)])
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == "keras" and module is not None
        for name, value in list(vars(module).items())
        if id(value) in ours
    ]
    # The set by which a metric knows that less is better.
    losses_of_keras = sys.modules[keras.losses.get.__module__]
    return [*found, (losses_of_keras, "ALL_OBJECTS", {*losses_of_keras.ALL_OBJECTS, kl_divergence})]


_patch = Patch(_replacements())
install, uninstall = _patch.install, _patch.uninstall


def patched() -> Any:
    """`with kullback.keras.patched():` makes Keras' KL divergence ours: the functions, and the losses and metrics made inside the block.

    That is `keras.losses.kl_divergence` and `keras.metrics.kl_divergence`, `keras.losses.KLDivergence()` and
    `keras.metrics.KLDivergence()`, the strings ("kl_divergence", "kld", ...) given to `compile`, and the same by way of `tf.keras`.
    For the whole process, until the last such block is left, by an exception or not, on whichever thread. `install()` does it for good,
    `uninstall()` undoes that.

    Out of reach: losses and metrics made before the block (those made inside stay ours after it), the function where it was imported
    by name, a model loaded whose loss was saved as that function, graphs already traced, and Keras 2 (`tf_keras`).
    A model saved with a loss or metric made inside the block is loaded with Keras' own, unless that happens inside another.

    Examples
    --------
    >>> import keras
    >>> with patched():
    ...     loss = keras.losses.KLDivergence()
    >>> float(loss([[0.5, 0.5]], [[1.0, 0.0]]))  # Keras, which clips: 7.37
    inf
    """
    return _patch.patched()
