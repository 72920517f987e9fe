"""Options of a preparation, checked before images are read."""

import dataclasses
import re

from vit_jax.core.errors import UserError
from vit_jax.prepare.copies.duplicates import NEAR_BITS
from vit_jax.prepare.copies.near_pairs import MOST_BITS

VERSION = r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}"  # what TFDS can read
LEAST_SHARD_MIB, MOST_SHARD_MIB = 0.001, 2**20


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """All that the data set depends on besides the collection.

    Attributes:
      version: three numbers, which end the path of the data set's folder.
      splits: see splits.Splits; "": those of the collection.
      stratify: see splits.stratified; of several labels the first one counts.
      policy: see faults.policy.
      duplicates: images with exactly the bytes of an earlier one: "keep", "drop", or "merge", which
        gives their labels to the first one.
      near_duplicates: "report" or "drop" images that look like an earlier one.
      mirrored_duplicates: the same for images that look like the mirror image of an earlier one.
      near_bits: see duplicates.find.
      drop_duplicates_of: evaluation sets, see evaluation_sets.load.
      max_image_pixels: larger images are set aside.
      shard_mib: approximate size of a file.
    """

    version: str = "1.0.0"
    splits: str = ""
    stratify: bool = False
    policy: tuple[str, ...] = ()
    duplicates: str = "keep"
    near_duplicates: str = "report"
    mirrored_duplicates: str = "report"
    near_bits: int = NEAR_BITS
    drop_duplicates_of: tuple[str, ...] = ()
    max_image_pixels: int = 100_000_000
    shard_mib: float = 256

    def refuse_impossible(self) -> None:
        """UserError for values out of range; splits and policy are checked where they are read."""
        if not re.fullmatch(VERSION, self.version):
            raise UserError(f"--version={self.version}: three numbers, as in 1.0.0.")
        if not LEAST_SHARD_MIB <= self.shard_mib <= MOST_SHARD_MIB:  # nor NaN
            raise UserError(
                f"--shard_mib={self.shard_mib:g}: from {LEAST_SHARD_MIB:g} to {MOST_SHARD_MIB:,} "
                "are possible; 256 is usual."
            )
        if not 0 <= self.near_bits <= MOST_BITS:
            raise UserError(f"--near_bits={self.near_bits}: from 0 to {MOST_BITS} are possible.")
        if self.max_image_pixels < 1:
            raise UserError(f"--max_image_pixels={self.max_image_pixels}: at least 1.")
