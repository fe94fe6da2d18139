"""The explorer: the accountant's own answers, copies that give the same run, and a server for this machine alone."""

import http.client
import json
import subprocess
import sys
import threading

import pytest

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.report import explore, explorer

from . import browser as browsers


@pytest.mark.parametrize("batching", list(explore.KINDS))
def test_answers_are_the_accountants(batching):
    fields = explore.DEFAULT | {"batching": batching, "n": 600, "batch": 60, "passes": 2}
    asked, found = explore.read(fields), explore.answer(fields, rows="all")
    certificate = li.account(asked.run)
    assert found["epsilon"] == certificate.epsilon(1e-5) and found["lower"] == certificate.lower(1e-5)
    assert found["theorem"] == certificate.best(1e-5).theorem.name and found["final"]
    assert asked.run.steps == 2 * (1 if batching == "full" else 10) and found["multiplier"] == 3.0
    closed = explore.answer(fields, rows="closed")
    assert closed["epsilon"] is None or closed["epsilon"] >= found["epsilon"]
    if closed["final"]:
        assert closed["epsilon"] == found["epsilon"], "a final answer does not change"


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "huber-ridge"},
        {"batching": "poisson", "adjacency": "add-remove"},
        {"clip": 0},
        {"loss": "softmax of 10 classes", "batching": "full"},
    ],
)
def test_copies_give_the_same_run(change, tmp_path):
    fields = explore.DEFAULT | change
    asked, copies = explore.read(fields), explore.answer(fields, rows="closed")["copies"]
    seen = {}
    exec(copies["python"].replace("print(", "str("), seen)
    assert seen["run"] == asked.run == li.Run.from_json(copies["json"])
    assert li.Run.from_json(copies["cli"].split("<<'END'\n")[1].split("\nEND\n")[0]) == asked.run
    assert copies["cli"].endswith("lastiterate account run.json --delta 1e-05\n")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"n": "6000"}, "n must be a number"),
        ({"n": 2.5}, "whole number"),
        ({"batch": 0}, "whole number"),
        ({"noise": True}, "number"),
        ({"delta": 2.0}, "delta"),
        ({"batching": "x"}, "batching must be one of"),
        ({"loss": []}, "loss must be one of"),
        ({"adjacency": "x"}, "adjacency must be one of"),
        ({"step": 1e400}, "number"),
        ({"more": 1}, "those of the page"),
    ],
)
def test_questions_of_another_form_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        explore.answer(explore.DEFAULT | change, rows="closed")


def test_a_run_that_nothing_certifies_says_why():
    found = explore.answer(
        explore.DEFAULT | {"clip": 0, "noise": 1e-6, "adjacency": "zero-out", "n": 100}, rows="closed"
    )
    assert found["epsilon"] is None or found["epsilon"] > 1e3
    assert "error" not in found


@pytest.fixture(scope="module")
def server():
    opened = explorer.serve()
    threading.Thread(target=opened.serve_forever, daemon=True).start()
    yield opened
    opened.shutdown()
    opened.server_close()


def ask(server, method="POST", path="/answer?rows=closed", body=None, host=None, **headers):
    port = server.server_address[1]
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = json.dumps(explore.DEFAULT) if body is None else body
    link.request(method, path, text if method == "POST" else None, {
        "Content-Type": "application/json", "Host": host or f"127.0.0.1:{port}", **headers})
    reply = link.getresponse()
    return reply.status, reply.read(), reply.headers


def test_the_server_listens_on_the_loopback_and_answers_its_own_page(server):
    assert server.server_address[0] == "127.0.0.1"
    status, body, headers = ask(server, "GET", "/")
    assert status == 200 and b"<script>" in body and "default-src 'none'" in headers["Content-Security-Policy"]
    status, body, _ = ask(server)
    assert status == 200 and json.loads(body)["epsilon"] == explore.answer(explore.DEFAULT, rows="closed")["epsilon"]
    status, body, _ = ask(server, body=json.dumps(explore.DEFAULT | {"n": -1}))
    assert status == 200 and "n must be" in json.loads(body)["error"]
    assert "no JSON" in json.loads(ask(server, body="{")[1])["error"]
    assert "error" in json.loads(ask(server, body="[" * 3000)[1])
    with pytest.raises(InputError, match="port must be free"):
        explorer.serve(server.server_address[1])


@pytest.mark.parametrize("wrong", [
    {"host": "evil.example:80"}, {"Origin": "http://evil.example"}, {"path": "/etc/passwd"}, {"path": "/answer?rows=x"},
    {"Content-Type": "text/plain"}, {"body": " " * 5000}, {"method": "GET", "path": "/page.css"},
    {"method": "GET", "path": "/", "host": "evil.example"}])
def test_other_pages_cannot_ask(server, wrong):
    assert ask(server, **wrong)[0] in (400, 404)


@pytest.mark.skipif(browsers.installed() is None, reason="no Chromium is installed: the explorer's page is not tested")
def test_sliders_ask_the_accountant(server, tmp_path):
    browser = browsers.Browser(tmp_path / "profile")
    try:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        browser.until(
            "document.getElementById('answer').className === '' && document.getElementById('epsilon').innerText"
        )
        before = browser.value("document.getElementById('epsilon').dataset.value")
        assert float(before) == explore.answer(explore.DEFAULT, rows="all")["epsilon"]
        script = ("(() => { const s = document.querySelector('input[data-mirror=noise]'); s.value = 1; s.dispatchEvent("
                  "new Event('input', {bubbles: true})); return document.getElementById('answer').className; })()")
        assert browser.value(script) == "stale", "old values are greyed at once"
        browser.until(f"document.getElementById('answer').className === '' && "
                      f"document.getElementById('epsilon').dataset.value !== '{before}'")
        moved = explore.DEFAULT | {"noise": 10.0}
        wanted = explore.answer(moved, rows="all")
        assert float(browser.value("document.getElementById('epsilon').dataset.value")) == wanted["epsilon"]
        assert browser.value("document.getElementById('theorem').innerText") == wanted["theorem"]
        assert float(browser.value("document.getElementById('lower').dataset.value")) == wanted["lower"]
        browser.until("document.querySelectorAll('#curves svg[role=img]').length === 2")
        browser.value("document.querySelector('button[data-copy=json]').click()")
        assert li.Run.from_json(browser.value("document.getElementById('copied').value")) == explore.read(moved).run
        assert browser.complaints() == []
    finally:
        browser.close()


def test_the_command_prints_its_address_and_ends():
    made = subprocess.Popen(
        [sys.executable, "-m", "lastiterate", "explore", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert made.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        made.terminate()
        made.wait()
        made.stdout.close()
