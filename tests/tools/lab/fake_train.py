"""A stand-in for vit_jax.train: writes the same work directory, and ends as prescribed.

FATE in the environment is a folder, whose file named after the work directory has one word per
start: a status, "kill", or "sleep" (until SIGTERM). Without one it finishes. Every start adds a
line to FATE/starts.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS, EVERY = 40, 10


def main():
    given = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    fields = dict(a.removeprefix("--config.").split("=", 1) for a in sys.argv if "=" in a)
    folder, fate = Path(given["--workdir"]), Path(os.environ["FATE"])
    with (fate / "starts").open("a") as starts:
        print(folder.name, os.environ.get("SLOT", ""), file=starts)
    words = (fate / folder.name).read_text().split() if (fate / folder.name).exists() else []
    count = (fate / "starts").read_text().split().count(folder.name)
    word = words[count - 1] if count <= len(words) else "0"
    lock = (folder / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if word == "sleep":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print("asleep", flush=True)
        time.sleep(60)
    named = [f.split(".")[1] for f in fields if f.startswith("evals.") and f.endswith(".split")]
    write(
        folder,
        named[-1] if named else "test",
        float(fields["optim.lr"]),
        int(fields.get("seed", 0)),
        finished=word == "0",
    )
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "1":
        print("error: the images are bad:\n  all of them", file=sys.stderr)
    sys.exit(int(word))


def write(folder, evaluation, lr, seed, *, finished):
    config = {"optim": {"lr": lr}, "seed": seed, "total": {"steps": STEPS}}
    config |= {"evals": {evaluation: {"split": evaluation}}, "input": {"batch_size": 100}}
    document = {"config": config, "fingerprint": {}, "runs": [{"total_steps": STEPS}]}
    (folder / "config.json").write_text(json.dumps(document))
    # Resumes from the folder's last checkpoint.
    saved = [int(child.name) for child in (folder / "checkpoints").glob("*")]
    end = STEPS if finished else max(saved, default=0)
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(max(saved, default=0) + EVERY, end + 1, EVERY):
            row = {"step": step, "train/loss": 2 / step, "speed/images_per_second": 1000.0}
            if step == STEPS:
                row |= {f"{evaluation}/accuracy": 0.9 + lr + seed / 1000, f"{evaluation}/loss": 0.1}
            file.write(json.dumps(row) + "\n")
    (folder / "checkpoints" / str(end)).mkdir(parents=True, exist_ok=True)


main()
