"""`openforgerl serve` as a person runs it, with an engine of the user's own beside the config: no torch in sight."""

import json
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_process import COMMAND, Serving, environment, start, write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


@pytest.fixture
def serving(config: Path) -> Iterator[Serving]:
    running = start(config)
    yield running
    running.process.kill()
    running.process.wait(timeout=30)


def post(url: str, key: str, body: object) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.loads(answer.read()))


def test_the_admin_token_opens_a_session_and_its_key_gets_an_answer(serving: Serving) -> None:
    token = (serving.folder / "runs/serve/store/admin-token").read_text()
    session = post(f"{serving.url}/sessions", token, {})
    urls = session["base_urls"]
    assert isinstance(urls, dict)
    call = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
    answer = post(f"{urls['openai']}/chat/completions", str(session["key"]), call)
    assert "'content': 'hello'" in str(answer)


def test_the_session_command_that_is_printed_works(serving: Serving) -> None:
    command = serving.said[3].removeprefix("a session: ")
    done = subprocess.run(["bash", "-c", command], cwd=serving.folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["key"].startswith("sk-")


def test_the_admin_token_is_for_this_user_only_and_nowhere_else(serving: Serving) -> None:
    file = serving.folder / "runs/serve/store/admin-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text()
    assert len(token) >= 43
    assert token not in "".join(serving.said)
    assert token.encode() not in Path(f"/proc/{serving.process.pid}/cmdline").read_bytes()


def test_a_token_of_the_environment_is_not_written_down(config: Path) -> None:
    running = start(config, OPENFORGERL_ADMIN_TOKEN="a-token-of-my-own")
    try:
        assert "key" in post(f"{running.url}/sessions", "a-token-of-my-own", {})
        assert not (running.folder / "runs/serve/store/admin-token").exists()
        assert "a-token-of-my-own" not in "".join(running.said)
    finally:
        running.stop(signal.SIGTERM)


def test_a_session_that_was_open_when_serve_ended_is_sealed_and_its_key_is_gone(serving: Serving, config: Path) -> None:
    token = (serving.folder / "runs/serve/store/admin-token").read_text()
    made = post(f"{serving.url}/sessions", token, {"rollout_id": "r1"})
    serving.stop(signal.SIGTERM)
    again = start(config, OPENFORGERL_ADMIN_TOKEN="mine")
    try:
        call = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(f"{again.url}/s/{made['session_id']}/v1/chat/completions", str(made["key"]), call)
        assert refused.value.code == 410
        request = urllib.request.Request(f"{again.url}/sessions/r1-a0", headers={"Authorization": "Bearer mine"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            ending = json.loads(answer.read())["session"]["ending"]
        assert ending == {"ended_by": "infra", "reason": "the proxy was restarted", "counters": {}}
    finally:
        again.stop(signal.SIGTERM)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_without_noise(serving: Serving, number: signal.Signals, code: int) -> None:
    assert serving.stop(number) == code
    assert serving.process.stdout
    assert serving.process.stdout.read() == ""
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(serving.url, timeout=5)


def test_a_port_in_use_is_one_line_that_names_it(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        argv = [*COMMAND, "serve", str(config), "--set", f"proxy.port={port}"]
        done = subprocess.run(argv, cwd=config.parent, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "port" in done.stderr
    assert str(port) in done.stderr


def test_a_second_server_on_the_same_store_is_refused(serving: Serving) -> None:
    argv = [*COMMAND, "serve", "serve.toml"]
    done = subprocess.run(argv, cwd=serving.folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "runs/serve/store" in done.stderr
    assert "key" in post(
        f"{serving.url}/sessions", (serving.folder / "runs/serve/store/admin-token").read_text(), {}
    ), "the running server keeps its token"
