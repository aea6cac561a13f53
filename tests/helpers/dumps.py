"""Outputs of models for the tests, files of them as their makers write them, and what their comparison must be."""

import struct

import numpy as np

# Of llama.cpp's files: tokens of a chunk, chunks, categories; and rows.
CONTEXT, CHUNKS, VOCABULARY = 32, 4, 101
ROWS = CHUNKS * (CONTEXT - 1 - CONTEXT // 2)
# What a row's figures promise, whatever the form and the size.
PROMISE = 1e-5


def write_llama(path, logits, tokens, *, window=16.0):
    """As llama.cpp's perplexity tool does with `--kl-divergence-base`: logits [chunks·rows, vocabulary], tokens [chunks, context]."""
    chunks, context = tokens.shape
    vocabulary = logits.shape[1]
    assert len(logits) == chunks * (context - 1 - context // 2)
    with open(path, "wb") as file:
        file.write(b"_logits_" + struct.pack("<3i", context, vocabulary, chunks) + tokens.astype("<i4").tobytes())
        for row in logits.astype(np.float32):
            top = row.max()
            low = max(row.min(), top - np.float32(window))
            log_sum = np.float32(np.log(np.exp((row - top).astype(np.float64)).sum()))
            scale = np.float32((top - low) / np.float32(65535.0))
            codes = np.where(row > low, np.rint((row - low) / scale), 0).astype("<u2") if scale else np.zeros(vocabulary, "<u2")
            file.write(struct.pack("<2f", scale, low - top - log_sum) + codes.tobytes() + b"\0\0" * (vocabulary % 2))


def softmax(logits):
    """In extended precision, whatever comes in."""
    x = np.asarray(logits).astype(np.longdouble)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def truth(p, q):
    """KL(P‖Q), KL(Q‖P) and JS of probabilities, term by term in extended precision: good to 1e-17 or so, absolutely."""

    def kl(a, b):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(a > 0, a * np.log(a / b), 0).sum(-1)

    m = (p + q) / 2
    return [np.asarray(x, dtype=np.float64) for x in (kl(p, q), kl(q, p), (kl(p, m) + kl(q, m)) / 2)]


def pair(rng, rows, categories, noise, spread=2.0, dtype=np.float32):
    p = spread * rng.normal(size=(rows, categories))
    return p.astype(dtype), (p + noise * rng.normal(size=p.shape)).astype(dtype)


def close(found, expected, floor=0.0):
    # Extended precision, summed by hand, is itself good to about 1e-17: `floor` is what that leaves of the smallest.
    np.testing.assert_allclose(found, expected, rtol=PROMISE, atol=floor)
