"""The agent program of `react`; runs alone inside the sandbox, on the standard library of any Python >= 3.8."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

MAX_TURNS = 20
COMMAND_TIMEOUT_S = 60
OUTPUT_CAP = 8_000
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command in the current directory. Returns stdout and stderr.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def ask(settings: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {
        "model": settings["model"],
        "messages": messages,
        "tools": [BASH],
        "max_tokens": settings["max_tokens"],
    }
    headers = {"content-type": "application/json", "authorization": f"Bearer {settings['key']}"}
    request = urllib.request.Request(settings["url"], json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


def run_bash(command: str) -> str:
    """stdout and stderr as one text; a failure is told in the text, as harnesses do."""
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"Command timed out after {COMMAND_TIMEOUT_S} seconds"
    text = done.stdout.decode("utf-8", "replace")[:OUTPUT_CAP] or "(no output)"
    return text if done.returncode == 0 else f"{text}\n\nCommand exited with code {done.returncode}"


def answer_call(call: dict[str, Any]) -> str:
    if call["function"]["name"] != "bash":
        return f"Tool {call['function']['name']} not found"
    try:
        arguments = json.loads(call["function"]["arguments"])
    except ValueError as error:
        return f"Arguments are not JSON: {error}"
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return run_bash(command) if isinstance(command, str) else 'bash needs {"command": "..."}'


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": settings["system"]},
        {"role": "user", "content": settings["task"]},
    ]
    for _ in range(MAX_TURNS):
        try:
            message = ask(settings, messages)
        except urllib.error.HTTPError as error:
            print(f"model call failed: {error.code} {error.read(500).decode('utf-8', 'replace')}")
            return 1
        messages.append(message)
        if not message.get("tool_calls"):
            print(message.get("content") or "")
            return 0
        for call in message["tool_calls"]:
            result = answer_call(call)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    print(f"stopped after {MAX_TURNS} turns")
    return 1


if __name__ == "__main__":
    sys.exit(main())
