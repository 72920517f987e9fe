"""Runs Python programs in forks of a process that has imported JAX, TensorFlow and vit_jax.

Importing them takes seconds, and dozens of tests need their own process. A fork has no JAX backend
yet, so devices, flags and working directory are the program's own. Programs that test imports or
set JAX's variables get a fresh interpreter.

    python preloaded.py serve SOCKET           until stdin ends; says "ready" first
    python preloaded.py run SOCKET ARGUMENT... as `python ARGUMENT...` here
"""

import array
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FORKS = sys.platform == "linux"  # elsewhere, every program gets a fresh interpreter
_FDS = 3  # stdin, stdout, stderr
EXECUTABLE = "PRELOADED_EXECUTABLE"  # variable: what programs call sys.executable


class Server:
    """The process that forks; it ends with the one that made it."""

    def __init__(self, folder, env):
        self.env, self.socket = env, str(folder / "preloaded")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", self.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        assert self._process.stdout.readline() == b"ready\n"

    def start(self, arguments, env, cwd, stdout, stderr):
        """Starts a program like subprocess.Popen, with files for the output."""
        with open(os.devnull, "rb") as null:
            fds = [null.fileno(), stdout.fileno(), stderr.fileno()]
            return Program(self.socket, list(arguments), env, str(cwd), fds)

    def run(self, arguments, env, cwd, timeout_secs):
        """Runs a program like subprocess.run with captured text."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            program = self.start(arguments, env, cwd, out, err)
            try:
                status = program.wait(timeout_secs)
            finally:
                program.kill()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(list(arguments), status, *texts)

    def write_python(self, path, before=""):
        """Replacement for `python`: a script whose arguments run in a fork; `before` comes first.

        A program calls it sys.executable if EXECUTABLE names it.
        """
        command = shlex.join([sys.executable, "-S", "-I", __file__, "run", self.socket])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/usr/bin/env bash\n{before}exec {command} "$@"\n')
        path.chmod(0o755)
        return path

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Program:
    """A program in a fork, with the methods of Popen that tests use."""

    def __init__(self, path, arguments, env, cwd, fds):
        self.args, self.returncode = arguments, None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        request = json.dumps({"arguments": arguments, "env": dict(env), "cwd": cwd}).encode()
        socket.send_fds(self._connection, [len(request).to_bytes(8, "little")], fds)
        self._connection.sendall(request)
        self.pid = int(self._connection.recv(16))

    def poll(self):
        """The exit status, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout=None):
        """Waits for the exit status."""
        if self.returncode is None:
            if timeout is not None and not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._connection.recv(16))
            self._connection.close()
        return self.returncode

    def send_signal(self, number):
        """Sends a signal to the program itself."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Kills the program at once."""
        self.send_signal(signal.SIGKILL)


def can_fork(arguments, env, server_env):
    """Whether a fork of the server would behave like a fresh interpreter."""
    kept = ("JAX_", "TF_", "PYTHON")
    read_early = lambda e: {
        k: v for k, v in e.items() if k.startswith(kept) and k != "PYTHONUNBUFFERED"
    }
    same = read_early(env) == read_early(server_env)
    return FORKS and same and not _needs_interpreter(arguments)


def _needs_interpreter(arguments):
    """Whether it has options for an interpreter, or is a child of multiprocessing.

    Such a child gets open files from its parent, which a fork of the server has not.
    """
    option, *rest = arguments or ["-"]
    is_child = option == "-c" and rest[0].startswith("from multiprocessing")
    return is_child or (option.startswith("-") and option not in ("-", "-c", "-m"))


def _serve(path):
    from vit_jax.data import host_tf

    host_tf.load()  # first, and so TensorFlow as training imports it
    import vit_jax.convert
    import vit_jax.evaluate.page
    import vit_jax.predict
    import vit_jax.tools.export.onnx_file
    import vit_jax.tools.look.preview
    import vit_jax.train  # noqa: F401, so that forks have them
    from tests import program_cache
    from vit_jax.core import compilation_cache

    program_cache.use()
    compilation_cache._usable = lambda folder: True  # which would look at every program
    gc.collect()
    gc.freeze()  # forks would copy the pages of all objects that a collection looks at

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([listener, 0], [], [], 1)
            while True:  # reaped
                try:
                    if os.waitpid(-1, os.WNOHANG) == (0, 0):
                        break
                except ChildProcessError:
                    break
            if 0 in ready:
                os._exit(0)  # TensorFlow takes seconds to shut down
            if listener in ready:
                connection, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    try:
                        _supervise(connection)
                    finally:
                        os._exit(0)
                connection.close()


def _supervise(connection):
    """Forks the program, and kills it when its client has gone."""
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(_FDS * 4))
    fds = array.array("i", ancillary[0][2])
    request = b""
    while len(request) < int.from_bytes(size, "little"):
        request += connection.recv(2**16)
    child = os.fork()
    if child == 0:
        connection.close()
        os._exit(_run(**json.loads(request), fds=fds))
    connection.sendall(str(child).encode())
    end = os.pidfd_open(child)
    ready, _, _ = select.select([end, connection], [], [])
    if end not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _run_by(arguments):
    """The modules that `-m ARGUMENTS` runs, which runpy wants not to have been imported."""
    from vit_jax.__main__ import COMMANDS

    module, *rest = arguments
    if module != "vit_jax":
        return [module]
    names = ["__main__", *(COMMANDS[name][0] for name in rest[:1] if name in COMMANDS)]
    return [f"vit_jax.{name}" for name in names]


def _run(arguments, env, cwd, fds):
    """Runs `arguments` as the interpreter does; returns the exit status."""
    import atexit
    import runpy
    import threading
    import traceback

    for i, fd in enumerate(fds):
        os.dup2(fd, i)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "PYTHONUNBUFFERED" in env:
        sys.stdout.reconfigure(line_buffering=True)
    sys.executable = env.get(EXECUTABLE, sys.executable)
    sys.orig_argv = [sys.executable, *arguments]
    sys.path[0] = ""
    kind, *rest = arguments
    status = 0
    try:
        if kind == "-m":
            sys.argv = rest
            for module in _run_by(rest):
                sys.modules.pop(module, None)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            code = {"-c": lambda: rest[0], "-": sys.stdin.read}.get(kind, Path(kind).read_text)()
            sys.argv = [kind, *(rest[1:] if kind == "-c" else rest)]
            main = type(sys)("__main__")
            sys.modules["__main__"] = main
            exec(compile(code, "<string>" if kind.startswith("-") else kind, "exec"), vars(main))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path]:
            _serve(path)
        case ["run", path, *arguments]:
            if _needs_interpreter(arguments):
                os.execv(sys.executable, [sys.executable, *arguments])
            status = Program(path, arguments, os.environ, os.getcwd(), range(_FDS)).wait()
            sys.exit(status if status >= 0 else 128 - status)
