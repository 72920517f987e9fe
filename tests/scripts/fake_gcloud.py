"""A fake gcloud for the tests of cloud_tpu.sh: a project with one slice of two workers.

Runs in the folder $WORLD, which holds its state:

  calls           every call, one per line
  request         the request's upcoming states, one per line; no file: no request; ABSENT: another
                  terminal has deleted it; ERROR: gcloud cannot say
  fail, cut       part of a call: the first call containing it fails, or kills the launcher
  ctrl_c          likewise, as Ctrl-C at the terminal
  after           if it exists, that call does its work before the launcher dies
  stopped         likewise, but before it another terminal stops the training
  shut_down       likewise, all machines are told to end
  w-0, w-1        the workers' home folders, where their commands really run
  python          the Python of the workers' virtual environments
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

WORLD = Path(os.environ["WORLD"])
REQUEST = WORLD / "request"
HOMES = [WORLD / "w-0", WORLD / "w-1"]
COMING = ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")


def told_to(what, call):
    """Whether this call is the first to contain the text in that file, which is then deleted."""
    file = WORLD / what
    if not file.exists() or file.read_text() not in call:
        return False
    file.unlink()
    return True


def flag(name):
    given = [word for word in sys.argv if word.startswith(f"--{name}=")]
    return given[0].partition("=")[2] if given else None


def workers():
    which = flag("worker")
    return HOMES if which == "all" else [HOMES[int(which or 0)]]


def describe():
    if not REQUEST.exists():
        print("ERROR: NOT_FOUND: Resource was not found", file=sys.stderr)
        return 1
    now, *coming = REQUEST.read_text().split()
    if now == "ABSENT":
        delete()
        return describe()
    if now == "ERROR":
        REQUEST.write_text("\n".join(coming))
        print("ERROR: UNAVAILABLE", file=sys.stderr)
        return 1
    if "failedData" in (flag("format") or ""):
        print("no quota for 16 chips")
    else:
        file = WORLD / "type"
        print(now, file.read_text() if file.exists() else "", sep="\t")
        REQUEST.write_text("\n".join(coming or [now]))
    return 0


def create():
    if REQUEST.exists():
        print("ERROR: ALREADY_EXISTS", file=sys.stderr)
        return 1
    REQUEST.write_text("\n".join(COMING))
    (WORLD / "type").write_text(flag("accelerator-type") or "")
    for home in HOMES:
        shutil.rmtree(home, ignore_errors=True)
        python = home / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        shutil.copy(WORLD / "python", python)
        python.chmod(0o755)
    return 0


def delete():
    REQUEST.unlink()
    return 0


def scp(*words):
    for home in workers():
        for file in words[: words.index("l16:")]:
            shutil.copy(file, home)
    return 0


def ssh(*_):
    return on(workers(), flag("command") or "")


def on(homes, command):
    status = 0
    for home in homes:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=home,
            env=os.environ | {"HOME": str(home), "VENV": str(home / "venv")},
            check=False,
        )
        status = done.returncode or status
    return status


def main():
    group, verb, *words = sys.argv[3:]
    call = " ".join(sys.argv[1:])
    with (WORLD / "calls").open("a") as calls:
        calls.write(call + "\n")
    if told_to("fail", call):
        print("ERROR: told_to_fail", file=sys.stderr)
        return 1
    if told_to("ctrl_c", call):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(0, signal.SIGINT)
        return 130
    if told_to("stopped", call):
        on(HOMES, "bash vit_jax/scripts/tpu_worker.sh stop")
    if told_to("shut_down", call):
        on(HOMES, "kill -TERM -- -$(cat launched/pid)")
    cut = told_to("cut", call)
    status = 0
    if not cut or (WORLD / "after").exists():
        if group == "queued-resources":
            status = {"describe": describe, "create": create, "delete": delete}[verb]()
        else:
            status = {"scp": scp, "ssh": ssh}[verb](*words)
    if cut:
        os.killpg(0, signal.SIGKILL)
    return status


sys.exit(main())
