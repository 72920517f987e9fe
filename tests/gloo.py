"""Messages that Gloo, which JAX's processes use on CPUs, prints when they connect."""

import re

# Gloo writes a sentence in pieces, and threads that connect at once interleave theirs.
PIECES = (
    r"\[Gloo\] Rank ",
    r" is connected to ",
    r" peer ranks\. ",
    r"Expected number of connected peer ranks is : ",
    r"\d+",
    r"\n",
)
SENTENCES = re.compile(rf"{PIECES[0]}(?:{'|'.join(PIECES)})*")


def without_gloo(output):
    """A process's output without Gloo's sentences."""
    return SENTENCES.sub("", output)
