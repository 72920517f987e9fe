"""vit-jax demo"""

import http.client
import re
import signal
import socket

import pytest

from tests.processes import wait_for

COMMAND = ("-m", "vit_jax", "demo")
WAIT_SECS = 120


@pytest.fixture
def serve(start_python, tmp_path, digits_run):
    """`serve(flags)`: (the process, its address, what it says)."""

    def start(*flags):
        log = tmp_path / "log"
        process = start_python(log, *COMMAND, f"--checkpoint={digits_run}", "--port=0", *flags)
        opened = lambda: re.search(r"open +http://(\S+)/ ", log.read_text())
        said = wait_for(opened, WAIT_SECS, log.read_text)
        return process, said[1], log

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(serve, number):
    process, address, log = serve("--host=0.0.0.0", "--top_k=3", "--examples=docs/digits")
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/")
    page = connection.getresponse().read().decode()
    assert "ViT-Ti/2" in page and "10 classes" in page and 'alt="5_28"' in page
    assert "http://" not in page and "https://" not in page
    process.send_signal(number)
    assert process.wait(WAIT_SECS) == 0
    said = log.read_text()
    assert "Traceback" not in said and "error" not in said
    assert re.search("warning: --host=0.0.0.0 lets everybody use this model", said)


def refused(run_python, *flags):
    done = run_python(*COMMAND, *flags)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("error: ") == 1
    return done.stderr


def test_a_port_in_use_is_told_before_the_weights_are_read(run_python, digits_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(run_python, "--checkpoint=nowhere", f"--port={port}")
        assert f"--port={port}" in said and "in use" in said
    said = refused(run_python, f"--checkpoint={digits_run}", "--port=0", "--examples=nowhere")
    assert "No image or folder nowhere" in said
