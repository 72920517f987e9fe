"""What Gloo, through which JAX's processes on CPUs speak, prints when they connect."""

import re

# It writes a sentence piece by piece, and threads that connect at once mix their pieces.
PIECES = (
    r"\[Gloo\] Rank ",
    r" is connected to ",
    r" peer ranks\. ",
    r"Expected number of connected peer ranks is : ",
    r"\d+",
    r"\n",
)
SENTENCES = re.compile(rf"{PIECES[0]}(?:{'|'.join(PIECES)})*")


def without_gloo(said: str) -> str:
    """What a process said, without Gloo's sentences."""
    return SENTENCES.sub("", said)
