"""patched(), install() and uninstall() of kullback.torch and kullback.jax; those of kullback.keras are in keras_patching.py."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

import kullback.torch
from patching import CHECKS, Surface

TORCH_ORIGINAL = F.kl_div


def _who_torch():
    if F.kl_div is kullback.torch.kl_div:
        return "ours"
    return "theirs" if F.kl_div is TORCH_ORIGINAL else "nobody's"


def _jax():
    import jax.scipy.special as special
    import optax

    import kullback.jax
    from jax_pairs import LOSSES, THEIRS

    reached = [
        (special, "rel_entr"),
        (special, "kl_div"),
        (optax, "kl_divergence"),
        (optax, "generalized_kl_divergence"),
        *((optax.losses, name) for name in LOSSES),
    ]

    def who():
        """Of every name the same, or this fails."""
        mine = {getattr(module, name) is getattr(kullback.jax, name) for module, name in reached}
        theirs = {getattr(module, name) is THEIRS[name] for module, name in reached}
        assert len(mine) == len(theirs) == 1
        assert mine != theirs
        return "ours" if mine == {True} else "theirs"

    return Surface(kullback.jax, who, (optax, "kl_divergence"))


SURFACES = {
    "torch": lambda: Surface(kullback.torch, _who_torch, (F, "kl_div")),
    "jax": _jax,
}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_promise(surface, check):
    check(SURFACES[surface]())
