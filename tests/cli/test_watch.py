"""A run is watched while it trains: on this machine alone, one page and nothing else, to the end."""

import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from http.client import HTTPConnection
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

import symbayes as sb
from symbayes.cli.app import app
from symbayes.cli.watch import look, serving
from symbayes.data.folders import is_locked, locked
from symbayes.report.live import live_page
from symbayes.report.runs import write_page
from symbayes.training import live as live_file
from symbayes.training.checkpoint import PROBLEM
from symbayes.training.live import LIVE, read_live
from tests.cli.refusals import say
from tests.small import load_few

invoke = partial(say, app)


@pytest.fixture(scope="module")
def task():
    return load_few("placed-digits")


def network(task):
    return sb.allconv(task, ("factored", "conv"), width=1, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def ended(task, tmp_path_factory):
    """The folder of a run, its result and what a browser was shown: before, while and after it trained."""
    folder, at, go_on = tmp_path_factory.mktemp("run"), threading.Event(), threading.Event()
    pages, found = {}, []

    def wait(record):
        if record.epoch == 3:
            at.set()
            assert go_on.wait(60)

    def train():
        sums = {"checkpoint": folder, "callbacks": [wait], "validation": task.test, "progress": False}
        found.append(sb.fit(network(task), task.train, epochs=4, **sums))

    live_file._EVERY, live_file._TIMES, kept = 0.0, 0.0, (live_file._EVERY, live_file._TIMES)
    thread = threading.Thread(target=train)
    with serving(folder) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        try:
            thread.start()
            assert at.wait(60)
            pages["while"] = urlopen(address, timeout=10).read().decode()
        finally:
            go_on.set()
            thread.join()
            live_file._EVERY, live_file._TIMES = kept
        pages["last"] = urlopen(address, timeout=10).read().decode()
        found[0].save(folder)
        write_page(folder)
        pages["after"] = urlopen(address, timeout=10).read().decode()
    return folder, found[0], pages


def test_the_page_of_a_run_says_how_far_it_is_and_what_is_not_known(ended):
    page = ended[2]["while"]
    for words in ("Epoch 2 of 4", "Training goes on.", 'http-equiv="refresh"', "whether it converges", "block1", "accuracy"):
        assert words in page
    for words in ("how far layers break symmetries, which is measured when training ends", "not what the data say"):
        assert words in page


def test_in_the_end_it_is_the_page_of_the_result(ended):
    folder, _, pages = ended
    assert "Training has ended. Its result was not saved in this folder" in pages["last"]
    assert "Epoch 4 of 4" in pages["last"]
    notice, rest = pages["after"].split("</p>\n", 1)
    assert "Training has ended. This page changes no more" in notice
    assert rest in (folder / "report.html").read_text()
    for words in ("refresh", "<script"):
        assert words not in pages["after"]


def test_what_is_watched_is_what_is_learned(ended):
    folder, result, _ = ended
    live = read_live(folder)
    assert live.history == result.history
    assert [(row.layer, row.path, row.effective) for row in live.symmetries] == [
        (row.layer, row.path, row.effective) for row in result.symmetries.rows
    ]


def asked(server, path="/", host=None, method="GET"):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_one_page_is_served_and_nothing_else(ended):
    with serving(ended[0]) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert asked(server)[0] == asked(server, "/?again")[0] == 200
        assert asked(server, method="HEAD") == (200, "")
        for path in ("/result.json", "/../result.json", "/%2e%2e/result.json", "/report.html", f"/{ended[0]}/live.json"):
            assert asked(server, path) == (404, "There is one page here: /\n")
        assert asked(server, method="POST")[0] == 501


def test_a_page_of_another_name_that_leads_here_gets_nothing(ended):
    with serving(ended[0]) as server:
        port = server.server_port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", "localhost:9", f"[::1]:{port}"):
            assert asked(server, host=host)[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "", "localhost.evil.example", "127.0.0.1.evil.example:80", "::1"):
            assert asked(server, host=host)[0] == 403


def test_folders_that_are_no_run_are_refused(tmp_path):
    for folder, words in ((tmp_path, "Nothing of a run is in it"), (tmp_path / "none", "There is no such folder")):
        code, said = invoke("watch", folder)
        assert code == 2
        assert "must be the folder of a run" in said
        assert words in said
    (tmp_path / LIVE).write_text("{}")
    code, said = invoke("watch", tmp_path)
    assert code == 2
    assert "has format None" in said


def test_what_is_damaged_meanwhile_is_said(ended, tmp_path):
    with serving(tmp_path) as server:
        with pytest.raises(HTTPError) as error:
            urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=10)
        assert "must be the folder of a run" in error.value.read().decode()


def test_a_run_that_was_interrupted_is_told_from_one_that_goes_on(ended, tmp_path):
    inner = tmp_path / "checkpoint"
    inner.mkdir()
    with locked(tmp_path / ".running"):
        assert "No epoch yet" in look(tmp_path).page()
    content = (ended[0] / LIVE).read_text().replace('"epochs": 4', '"epochs": 9')
    (inner / LIVE).write_text(content)
    assert "interrupted after epoch 4 of 9. There is no checkpoint of it to go on from." in look(tmp_path).words
    (inner / PROBLEM).write_text("{}")
    assert "interrupted after epoch 4 of 9. Go on by --resume" in look(tmp_path).words
    with locked(tmp_path / ".running"):
        assert is_locked(tmp_path / ".running")
        assert look(tmp_path).is_running
    assert not is_locked(tmp_path / ".running")


def test_before_the_first_hyper_step_that_is_said(ended):
    live = read_live(ended[0])
    first = live.history[0]
    bare = type(first)(1, 4, 1.0, 1e-3, 2.3)
    page = live_page(type(live)(**{**vars(live), "history": (bare,), "symmetries": ()}), "Training goes on.")
    assert "it was not estimated yet" in page
    assert "Log evidence: not estimated yet." in page


def test_a_port_that_is_taken_is_refused(ended):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, said = invoke("watch", ended[0], "--port", taken.getsockname()[1])
    assert code == 2
    assert "--port must be one that is free" in said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_ctrl_c_ends_it_cleanly(ended):
    command = [sys.executable, "-u", "-m", "symbayes", "watch", str(ended[0])]
    environment = {**os.environ, "COLUMNS": "400"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        assert "shows" in process.stdout.readline()
        assert "Training has ended" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said.endswith("No longer watched.\n")


def test_training_goes_on_where_nobody_can_watch(task, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_file, "write_whole", full)
    with pytest.warns(UserWarning, match="so that nobody can watch") as said:
        result = sb.fit(network(task), task.train, epochs=2, objective=sb.Map(), checkpoint=tmp_path, progress=False)
    assert len(result.history) == 2
    assert sum("nobody can watch" in str(one.message) for one in said) == 1


def test_what_an_earlier_training_left_is_not_shown(task, tmp_path):
    (tmp_path / LIVE).write_text("of an earlier one")
    seen = []
    callback = lambda record: seen.append((tmp_path / LIVE).exists())  # noqa: E731
    sb.fit(network(task), task.train, epochs=1, checkpoint=tmp_path, callbacks=callback, progress=False)
    assert seen == [False]


def test_a_result_that_was_stopped_is_said_to_be_one(task, tmp_path):
    def stop(record):
        if record.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="stopped"):
        result = sb.fit(network(task), task.train, epochs=9, checkpoint=tmp_path, callbacks=stop, progress=False)
    assert result.is_partial
    result.save(tmp_path)
    assert look(tmp_path).words.startswith("Training was stopped, and goes on by --resume.")


def test_text_that_is_no_text_is_refused_and_who_hangs_up_is_not_spoken_of(ended, tmp_path, capfd):
    text = (ended[0] / LIVE).read_text().replace('"prior": "', '"prior": "\\ud800')
    (tmp_path / LIVE).write_text(text)
    with serving(tmp_path) as server:
        with pytest.raises(HTTPError, match="500"):
            urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=10)
        with socket.create_connection(("127.0.0.1", server.server_port)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            one.sendall(b"GET / HTTP/1.1\r\n")
    assert capfd.readouterr().err == ""
