"""Cadences: due every so many steps, and always at the last one."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cadence:
    """Due after steps `every_steps`, `2 * every_steps`, ... and after `total_steps`.

    `every_steps` 0 or None: only after the last step.
    """

    every_steps: int | None
    total_steps: int

    def __call__(self, step: int) -> bool:
        """Whether it is due after `step` updates; step 0 (before any update) never is."""
        if step == self.total_steps:
            return True
        if not self.every_steps:
            return False
        return step > 0 and step % self.every_steps == 0
