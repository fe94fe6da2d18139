"""The explorer: the accountant's own answers, copies that give the same run, and a server for this
machine alone."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest

import lastiterate as li
from lastiterate.analysis import block_positions
from lastiterate.errors import InputError
from lastiterate.report import charts, explore
from lastiterate.report.page import part
from lastiterate.theorems import witnesses

from . import browser as browsers


@pytest.mark.parametrize("batching", list(explore.KINDS))
def test_answers_are_the_accountants(batching):
    fields = explore.DEFAULT | {"batching": batching, "n": 600, "batch": 60, "passes": 2}
    asked, found = explore.read(fields), explore.answer(fields, rows="all")
    certificate = li.account(asked.run)
    assert found["epsilon"] == certificate.epsilon(1e-5) and found["lower"] == certificate.lower(
        1e-5
    )
    assert found["theorem"] == certificate.best(1e-5).theorem.name and found["final"]
    assert asked.run.steps == 2 * (1 if batching == "full" else 10) and found["multiplier"] == 3.0
    closed = explore.answer(fields, rows="closed")
    assert closed["epsilon"] is None or closed["epsilon"] >= found["epsilon"]
    if closed["final"]:
        assert closed["epsilon"] == found["epsilon"], "a final answer does not change"


def test_few_arrays_with_an_entry_of_every_block_are_kept():
    """With ten million blocks one has 80 MB."""
    for batching in ("cyclic", "allocation"):
        for passes in range(1, 7):
            fields = {"n": 1003, "batch": 1, "passes": passes, "batching": batching}
            explore.answer(explore.DEFAULT | fields, rows="closed")
    caches = (
        block_positions.place_mus,
        block_positions._unit_mus,
        block_positions._unit_by_block,
        witnesses._constant_sum,
    )
    assert max(cache.cache_info().currsize for cache in caches) <= 4


def test_an_answer_says_what_it_is_about():
    """At which delta, for whom, and that a lower bound is a limit of proofs; without a report's
    numbers of sections."""
    found = explore.answer(explore.DEFAULT | {"delta": 1e-6}, rows="curves")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", found["curves"])
    assert (
        found["delta"] == 1e-6
        and len(headings) == 2
        and not any(heading[0].isdigit() for heading in headings)
    )
    text = explore.page()
    assert "for one record, at delta" in text and "at-delta" in explore.part("explore.js")
    assert "no proof for this class of losses can go below" in text


def test_labels_of_axes_fit_a_narrow_page():
    """A label along the side is as long as the picture is high, at 6.8 of 14 pixels a letter."""
    found = explore.answer(explore.DEFAULT, rows="curves")["curves"]
    sides = re.findall(r'<text[^>]*class="label side"[^>]*>([^<]*)<', found)
    (size,) = re.findall(r"svg text\.side\{font-size:([0-9]+)px\}", explore.part("page.css"))
    room = 2 * min((charts.TOP + charts.HIGH - charts.BOTTOM) / 2, charts.HIGH / 2)
    assert len(sides) == 2 and all(len(side) * 0.52 * int(size) <= room for side in sides)


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
        ({"n": 2.5}, "integer"),
        ({"batch": 0}, "integer"),
        ({"noise": True}, "number"),
        ({"delta": 2.0}, "delta"),
        ({"batching": "x"}, "batching must be one of"),
        ({"loss": []}, "loss must be one of"),
        ({"adjacency": "x"}, "adjacency must be one of"),
        ({"step": 1e400}, "number"),
        ({"noise": 10**400}, "noise must be a number"),
        ({"n": 2**63}, "integer from 1 to 1e\\+12"),
        ({"delta": 5e-324}, "delta must be at least"),
        ({"batch": 6001}, "batch must be at most n, the number of records, got 6001; n is 6,000"),
        ({"more": 1}, "those of the page"),
        ({"clip": None}, "clip must be a number; fill in the field"),
        ({"step": 1e300}, "^step must lie between 1e-30 and 1e\\+30, got 1e\\+300"),
        (
            {"n": 10**12},
            "^passes times n / batch must be at most 1,000,000,000 steps, got 30; "
            "take a batch of at least 30,001, or fewer epochs",
        ),
    ],
)
def test_questions_of_another_form_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        explore.answer(explore.DEFAULT | change, rows="closed")


@pytest.mark.parametrize("batching", ["permuted", "poisson"])
def test_the_remedy_for_too_many_steps_works(batching):
    change = {"n": 10**12, "batch": 30_001, "batching": batching}
    assert explore.read(explore.DEFAULT | change).run.steps <= explore.MOST_STEPS


def test_a_run_that_nothing_certifies_says_why():
    found = explore.answer(
        explore.DEFAULT | {"clip": 0, "noise": 1e-6, "adjacency": "zero-out", "n": 400},
        rows="closed",
    )
    assert found["epsilon"] is None or found["epsilon"] > 1e3
    assert "error" not in found


def test_a_whole_number_may_be_written_as_a_power_of_ten():
    asked = explore.read(explore.DEFAULT | {"n": 1e12, "batch": 1e10})
    assert asked.run.n == 10**12 and type(asked.run.n) is int
    assert (
        explore.answer(explore.DEFAULT | {"n": 1e12, "batching": "full"}, rows="closed")["epsilon"]
        > 0
    )
    assert explore.read(explore.DEFAULT | {"batch": 6001, "batching": "full"}).run.n == 6000, (
        "which reads no batch"
    )


@pytest.mark.parametrize("batching", ["permuted", "full", "poisson"])
def test_answers_are_json_without_noise(batching):
    found = explore.answer(explore.DEFAULT | {"noise": 0, "batching": batching}, rows="all")
    assert found["epsilon"] is None and found["lower"] is None
    assert found["theorem"] is None
    assert found["why_not"] == "no theorem: without noise nothing hides a record"
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.fixture(scope="module")
def server():
    opened = explore.serve()
    threading.Thread(target=opened.serve_forever, daemon=True).start()
    yield opened
    opened.shutdown()
    opened.server_close()


def ask(server, method="POST", path="/answer?rows=closed", body=None, host=None, **headers):
    port = server.server_address[1]
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = json.dumps(explore.DEFAULT) if body is None else body
    link.request(
        method,
        path,
        text if method == "POST" else None,
        {"Content-Type": "application/json", "Host": host or f"127.0.0.1:{port}", **headers},
    )
    reply = link.getresponse()
    return reply.status, reply.read(), reply.headers


def test_the_server_listens_on_the_loopback_and_answers_its_own_page(server):
    assert server.server_address[0] == "127.0.0.1"
    status, body, headers = ask(server, "GET", "/")
    assert (
        status == 200
        and b"<script>" in body
        and "default-src 'none'" in headers["Content-Security-Policy"]
    )
    status, body, _ = ask(server)
    assert (
        status == 200
        and json.loads(body)["epsilon"] == explore.answer(explore.DEFAULT, rows="closed")["epsilon"]
    )
    status, body, _ = ask(server, body=json.dumps(explore.DEFAULT | {"n": -1}))
    assert status == 400 and "n must be" in json.loads(body)["error"]
    assert "complete JSON" in json.loads(ask(server, body="{")[1])["error"]
    assert "deeper" in json.loads(ask(server, body="[" * 3000)[1])["error"]
    assert b'<meta name="viewport"' in ask(server, "GET", "/")[1]
    with pytest.raises(InputError, match="port must be free"):
        explore.serve(server.server_address[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"path": "/etc/passwd"},
        {"path": "/answer?rows=x"},
        {"Content-Type": "text/plain"},
        {"body": " " * 5000},
        {"method": "GET", "path": "/page.css"},
        {"method": "GET", "path": "/", "host": "evil.example"},
    ],
)
def test_other_pages_cannot_ask(server, wrong):
    assert ask(server, **wrong)[0] in (400, 404)


def send(server, content):
    """What the server answers to these bytes, until it closes the connection."""
    with socket.create_connection(server.server_address[:2], timeout=60) as link:
        link.sendall(content)
        reply = b""
        while part := link.recv(2**16):
            reply += part
    return reply


def one_sentence(reply):
    head, _, body = reply.partition(b"\r\n\r\n")
    said = json.loads(body)
    assert list(said) == ["error"] and "\n" not in said["error"] and len(said["error"]) < 400
    return int(head.split()[1])


HEAD = "Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "first, more, body",
    [
        ("GET http://[ HTTP/1.1", "", ""),
        ("POST http://[ HTTP/1.1", "Content-Length: 2\r\n", "{}"),
        ("POST /answer?rows=closed HTTP/1.1", "Content-Length: \u00b2\r\n", "{}"),
        ("POST /answer?rows=closed HTTP/1.1", "Content-Length: -1\r\n", "{}"),
        ("POST /answer?rows=closed HTTP/1.1", "Content-Length: " + "9" * 5000 + "\r\n", "{}"),
        ("POST /answer?rows=closed HTTP/1.1", "", "{}"),
        ("NOTHING", "", ""),
        ("GET / HTTP/x", "", ""),
        ("POST /answer?rows=closed HTTP/1.1", "Content-Length: 4\r\n", "\u00ff\u00fe{}"),
    ],
)
def test_requests_of_another_form_are_answered_in_a_sentence(server, first, more, body, capfd):
    text = f"{first}\r\n{HEAD.format(port=server.server_address[1])}{more}\r\n{body}"
    assert one_sentence(send(server, text.encode("latin-1"))) == 400
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "change",
    [
        {"n": 10**400},
        {"noise": 10**300},
        {"step": 2**63},
        {"n": 2**63},
        {"passes": 2**64},
        {"delta": 5e-324},
        {"batch": 1e12},
    ],
    ids=range(7),
)
@pytest.mark.parametrize("rows", ["closed", "curves"])
def test_numbers_beyond_the_accountant_are_refused(server, change, rows, capfd):
    status, body, _ = ask(
        server, path=f"/answer?rows={rows}", body=json.dumps(explore.DEFAULT | change)
    )
    assert status == 400 and list(json.loads(body)) == ["error"] and capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "begun", [b"", b"POST /answer", b"POST /answer?rows=closed HTTP/1.1\r\nHost: ", None]
)
def test_connections_that_say_nothing_more_end(server, begun, monkeypatch, capfd):
    assert explore.Handler.timeout == explore.PATIENCE < 60
    monkeypatch.setattr(explore.Handler, "timeout", 0.2)
    head = HEAD.format(port=server.server_address[1]).encode()
    half = b"POST /answer?rows=closed HTTP/1.1\r\n" + head + b"Content-Length: 100\r\n\r\n{"
    reply = send(server, half if begun is None else begun)
    assert reply == b"" if begun is not None else one_sentence(reply) == 408
    assert capfd.readouterr().err == ""


SCRIPT = r"""
const listeners = {}, none = () => {};
const make = () => ({ dataset: {}, setAttribute: none, addEventListener: none, append: none, select: none });
const elements = {}, buttons = ["python", "cli", "json"].map(
  (key) => Object.assign(make(), { dataset: { copy: key } }));
const byId = (id) => elements[id] ||= Object.assign(make(), { elements: [] });
byId("fields").addEventListener = (kind, act) => { listeners[kind] = act; };
globalThis.document = {
  getElementById: byId, querySelectorAll: () => buttons, querySelector: () => null, createElement: make };
Object.defineProperty(globalThis, "navigator", { value: {} });
const good = {
  epsilon: 1, lower: null, theorem: "t", multiplier: 1, std: 1, steps: 1, others: [],
  copies: { json: "{}" }, final: true, curves: "" };
const replies = [good, good, { error: "n must be an integer" }, null, good, good], seen = [];
globalThis.fetch = async () => {
  const found = replies.shift();
  if (!found) throw new Error("gone");
  return { json: async () => found }; };
const wait = () => new Promise((done) => setTimeout(done, 80));
const note = () => seen.push([byId("error").textContent, buttons.map((button) => Boolean(button.disabled)),
  byId("lower").textContent, byId("copied").value]);
const move = () => listeners.input({ target: { type: "text" } });
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="Node.js is not installed: the page's script is not run"
)
def test_after_a_refusal_nothing_can_be_copied_until_the_next_answer(tmp_path):
    (tmp_path / "run.mjs").write_text(
        SCRIPT
        + part("explore.js")
        + """
byId("copied").value = "";
(async () => { await wait(); note(); byId("copied").value = "the run before";
for (let i = 0; i < 3; i++) { move(); await wait(); note(); }
console.log(JSON.stringify(seen)); })();"""
    )
    done = subprocess.run(
        ["node", str(tmp_path / "run.mjs")], capture_output=True, text=True, check=True
    )
    first, refused, gone, again = json.loads(done.stdout)
    assert first == again == ["", [False] * 3, "infinite", ""]
    assert refused == ["n must be an integer", [True] * 3, "infinite", ""], "nothing to copy"
    assert "does not answer" in gone[0] and gone[1] == [True] * 3


@pytest.mark.skipif(
    browsers.installed() is None,
    reason="no Chromium is installed: the explorer's page is not tested",
)
def test_sliders_ask_the_accountant(server, tmp_path):
    browser = browsers.Browser(tmp_path / "profile")
    try:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        browser.until(
            "document.getElementById('answer').className === '' && "
            "document.getElementById('epsilon').innerText"
        )
        before = browser.value("document.getElementById('epsilon').dataset.value")
        assert float(before) == explore.answer(explore.DEFAULT, rows="all")["epsilon"]
        script = (
            "(() => { const s = document.querySelector('input[data-mirror=noise]'); s.value = 1; "
            "s.dispatchEvent("
            "new Event('input', {bubbles: true})); return "
            "document.getElementById('answer').className; })()"
        )
        assert browser.value(script) == "stale", "old values are greyed at once"
        browser.until(
            f"document.getElementById('answer').className === '' && "
            f"document.getElementById('epsilon').dataset.value !== '{before}'"
        )
        moved = explore.DEFAULT | {"noise": 10.0}
        wanted = explore.answer(moved, rows="all")
        assert (
            float(browser.value("document.getElementById('epsilon').dataset.value"))
            == wanted["epsilon"]
        )
        assert browser.value("document.getElementById('theorem').innerText") == wanted["theorem"]
        assert (
            float(browser.value("document.getElementById('lower').dataset.value"))
            == wanted["lower"]
        )
        browser.until("document.querySelectorAll('#curves svg[role=img]').length === 2")
        browser.value("document.querySelector('button[data-copy=json]').click()")
        assert (
            li.Run.from_json(browser.value("document.getElementById('copied').value"))
            == explore.read(moved).run
        )
        assert browser.complaints() == []
        empty = script.replace("input[data-mirror=noise]", "#clip").replace(
            "s.value = 1;", "s.value = '';"
        )
        browser.value(empty)
        browser.until("document.getElementById('error').innerText")
        assert "clip must be a number; fill in the field" in browser.value(
            "document.getElementById('error').innerText"
        ), "an empty field is no 0"
        assert browser.value("document.getElementById('copied').value") == ""
    finally:
        browser.close()


def test_the_command_prints_its_address_and_ends():
    made = subprocess.Popen(
        [sys.executable, "-m", "lastiterate", "explore", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert made.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        made.terminate()
        made.wait()
        made.stdout.close()
