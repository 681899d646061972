"""The control API as another machine uses it, and what each wrong request is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from openforgerl.store.sqlite import Store
from proxy_world import BASH, World, call_text, in_turn, odd, proxy

USER: Any = {"role": "user", "content": "hi"}


async def send(world: World, method: str, path: str, body: object = None, **options: Any) -> tuple[int, Any]:
    async with world.control(method, path, body, **options) as response:
        return response.status, await response.json()


async def opened(world: World, body: object) -> dict[str, Any]:
    status, made = await send(world, "POST", "/sessions", body)
    assert status == 201, made
    return dict(made)


async def test_a_rollout_from_outside(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd(call_text()))) as world:
        wanted = {"task_id": "t1", "group_id": "g1", "rollout_id": "r1", "attempt": 2, "harness": "pi",
                  "sampling": {"temperature": 0.5}, "labels": {"split": "train"}}  # fmt: skip
        made = await opened(world, wanted)
        ident = made["session_id"]
        base = f"{world.server.url}/s/{ident}"
        assert ident == "r1-a2"
        assert made["base_urls"] == {"openai": f"{base}/v1", "anthropic": base, "gemini": base}
        client = AsyncOpenAI(base_url=made["base_urls"]["openai"], api_key=made["key"])
        await client.chat.completions.create(model="m", messages=[USER], tools=[BASH])  # type: ignore[list-item]
        await client.close()
        status, rows = await send(world, "GET", f"/sessions/{ident}/rows")
        assert (status, rows["error"]["code"]) == (409, "open")
        status, closed = await send(world, "POST", f"/sessions/{ident}/close", {"ended_by": "finished"})
        assert (status, closed["session"]["ending"]["ended_by"]) == (200, "finished")
        assert closed["counters"]["calls"] == closed["counters"]["complete"] == 1
        status, graded = await send(world, "POST", f"/sessions/{ident}/grade", {"reward": 0.5})
        assert (status, graded["session"]["grade"]["reward"]) == (200, 0.5)
        _, shown = await send(world, "GET", f"/sessions/{ident}")
        assert shown == graded
        assert (shown["session"]["task_id"], shown["session"]["labels"]) == ("t1", {"split": "train"})
        _, calls = await send(world, "GET", f"/sessions/{ident}/calls")
        assert calls["uncommitted"] == []
        assert calls["calls"][0]["sampling_used"]["temperature"] == 0.5
        _, rows = await send(world, "GET", f"/sessions/{ident}/rows")
        (row,) = rows["rows"]
        assert sum(row["loss_mask"]) == len(calls["calls"][0]["sampled_ids"])


async def test_a_session_needs_nothing_said(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        one, two = await opened(world, {}), await opened(world, None)
        assert one["session_id"] != two["session_id"]


@pytest.mark.parametrize(
    ("grade", "stored"),
    [
        ({"reward": -1}, {"kind": "reward", "reward": -1.0, "reason": ""}),
        ({"ungraded": "timeout"}, {"kind": "ungraded", "reward": None, "reason": "timeout"}),
        ({"grader_error": "exit 2"}, {"kind": "grader_error", "reward": None, "reason": "exit 2"}),
    ],
)
async def test_the_three_kinds_of_grades(tmp_path: Path, grade: object, stored: object) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        ident = (await opened(world, {}))["session_id"]
        status, early = await send(world, "POST", f"/sessions/{ident}/grade", grade)
        assert (status, early["error"]["code"]) == (409, "open")
        await send(world, "POST", f"/sessions/{ident}/close", {"ended_by": "infra", "reason": "node lost"})
        _, shown = await send(world, "POST", f"/sessions/{ident}/grade", grade)
        assert shown["session"]["grade"] == stored


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("", {"tsak_id": "x"}, "tsak_id: "),
        ("", {"sampling": {"temperature": "hot"}}, "sampling.temperature: "),
        ("", {"sampling": {"stop": ["x"]}}, "sampling.stop: "),
        ("", {"rollout_id": "Has_Underscore"}, "rollout_id 'Has_Underscore'"),
        ("", {"attempt": -1}, "attempt: "),
        ("", {"attempt": 10**23}, "attempt: "),
        ("", {"sampling": {"seed": 2**63}}, "sampling.seed: "),
        ("", {"sampling": {"seed": -(2**63) - 1}}, "sampling.seed: "),
        ("", {"sampling": {"top_k": 2**63}}, "sampling.top_k: "),
        ("", {"sampling": {"max_tokens": 2**63}}, "sampling.max_tokens: "),
        ("", [], "body: "),
        ("/ID/close", {}, "ended_by: "),
        ("/ID/close", {"ended_by": "bored"}, "ended_by: "),
        ("/ID/close", {"ended_by": "infra"}, "reason"),
        ("/SEALED/grade", {}, "exactly one of reward, ungraded, grader_error"),
        ("/SEALED/grade", {"reward": 1, "ungraded": "x"}, "exactly one"),
        ("/SEALED/grade", {"reward": "1"}, "reward: "),
        ("/SEALED/grade", {"ungraded": ""}, "reason"),
        ("/SEALED/grade", {"reward": True}, "reward: "),
    ],
)
async def test_a_wrong_body_is_one_line_that_names_the_field(
    tmp_path: Path, path: str, body: object, said: str
) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        ident, sealed = (await opened(world, {}))["session_id"], (await opened(world, {}))["session_id"]
        await send(world, "POST", f"/sessions/{sealed}/close", {"ended_by": "finished"})
        path = path.replace("ID", ident).replace("SEALED", sealed)
        status, answer = await send(world, "POST", f"/sessions{path}", body)
        assert status == 400
        assert said in answer["error"]["message"]
        assert "\n" not in answer["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_a_reward_is_a_finite_number(tmp_path: Path, number: str) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        ident = (await opened(world, {}))["session_id"]
        await send(world, "POST", f"/sessions/{ident}/close", {"ended_by": "finished"})
        headers = {"Authorization": "Bearer admin-secret"}
        url = f"{world.server.url}/sessions/{ident}/grade"
        async with world.http.post(url, data=f'{{"reward": {number}}}', headers=headers) as response:
            assert response.status == 400
        assert world.store.session(ident).grade is None


async def test_a_used_rollout_attempt_and_another_ending_are_conflicts(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        await opened(world, {"rollout_id": "r1"})
        status, answer = await send(world, "POST", "/sessions", {"rollout_id": "r1"})
        assert (status, answer["error"]["code"]) == (409, "session_exists")
        assert "attempt" in answer["error"]["message"]
        for ended_by, expected in (("finished", 200), ("finished", 200), ("cancelled", 409)):
            status, _ = await send(world, "POST", "/sessions/r1-a0/close", {"ended_by": ended_by})
            assert status == expected


@pytest.mark.parametrize("path", ["", "/calls", "/rows"])
async def test_an_unknown_session_is_a_404(tmp_path: Path, path: str) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        status, answer = await send(world, "GET", f"/sessions/nowhere{path}")
        assert (status, answer["error"]["code"]) == (404, "unknown_session")


async def test_only_the_admin_token_opens_the_control_api(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        made = await opened(world, {})
        ident = made["session_id"]
        for method, path in (
            ("POST", "/sessions"), ("GET", f"/sessions/{ident}"), ("GET", f"/sessions/{ident}/calls"),
            ("GET", f"/sessions/{ident}/rows"), ("POST", f"/sessions/{ident}/close"),
            ("POST", f"/sessions/{ident}/grade"), ("POST", "/weights"), ("GET", "/metrics"),
        ):  # fmt: skip
            assert (await send(world, method, path, {}, token=made["key"]))[0] == 403, path
            async with world.http.request(method, world.server.url + path) as response:
                assert response.status == 401, path
        assert world.store.session(ident).ending is None


async def test_health_is_open_and_says_nothing_else(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x")) as world, world.http.get(f"{world.server.url}/healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_weights_and_metrics(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn(odd("hello"))) as world:
        access = await world.open()
        await world.client(access).chat.completions.create(model="m", messages=[USER])
        status, answer = await send(world, "POST", "/weights", {"folder": str(tmp_path), "policy_version": 3})
        assert (status, answer) == (200, {"policy_version": 3})
        assert (await send(world, "POST", "/weights", {"folder": str(tmp_path)}))[0] == 400
        async with world.control("GET", "/metrics") as response:
            assert response.content_type == "text/plain"
            lines = (await response.text()).splitlines()
        (call,) = world.store.calls(access.session_id)
        for line in (
            "openforgerl_policy_version 3", "openforgerl_sessions_open 1", "openforgerl_calls_total 1",
            "openforgerl_complete_total 1", f"openforgerl_sampled_tokens_total {len(call.sampled_ids)}",
            "openforgerl_weight_updates_total 1",
        ):  # fmt: skip
            assert line in lines


async def test_the_largest_integers_can_be_read_back(tmp_path: Path) -> None:
    most = 2**63 - 1
    async with proxy(tmp_path, in_turn("x")) as world:
        sampling = {"seed": -most - 1, "top_k": most, "max_tokens": most}
        made = await opened(world, {"rollout_id": "r", "attempt": most, "sampling": sampling})
        status, shown = await send(world, "GET", f"/sessions/{made['session_id']}")
        assert status == 200
        assert {name: shown["session"]["sampling"][name] for name in sampling} == sampling


@pytest.mark.parametrize(
    ("body", "expected", "said"),
    [
        ({"folder": ".", "policy_version": 3}, 409, "3 is not greater than 3"),
        ({"folder": ".", "policy_version": 2}, 409, "2 is not greater than 3"),
        ({"folder": ".", "policy_version": 2**63}, 400, "policy_version: "),
        ({"folder": "/no/such/folder", "policy_version": 4}, 400, "/no/such/folder is no folder"),
    ],
)
async def test_weights_that_are_old_or_nowhere_are_refused_before_they_are_loaded(
    tmp_path: Path, body: dict[str, object], expected: int, said: str
) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        await world.gateway.load_weights(tmp_path, 3)
        status, answer = await send(world, "POST", "/weights", body)
        assert status == expected
        assert said in answer["error"]["message"]
        assert (world.engine.loaded, world.engine.policy_version) == ([tmp_path], 3)


@pytest.mark.parametrize(
    ("method", "path", "expected", "code"),
    [("GET", "/nothing", 404, "unknown_path"), ("DELETE", "/sessions/s1", 405, "wrong_method")],
)
async def test_an_unknown_route_is_answered_in_json(
    tmp_path: Path, method: str, path: str, expected: int, code: str
) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        status, answer = await send(world, method, path)
        assert (status, answer["error"]["code"]) == (expected, code)
        assert path in answer["error"]["message"]


class BrokenStore(Store):
    """Fails in a way that nobody foresaw."""

    def intents(self, session_id: str) -> tuple[str, ...]:
        raise ZeroDivisionError("a secret")


async def test_an_unforeseen_error_is_json_without_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with proxy(tmp_path, in_turn("x"), store_class=BrokenStore) as world:
        made = await opened(world, {})
        status, answer = await send(world, "GET", f"/sessions/{made['session_id']}/calls")
        assert (status, answer["error"]["code"]) == (500, "internal_error")
        assert "secret" not in str(answer)
        assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "seed", "top_k"])
async def test_an_integer_beyond_64_bits_in_a_call_is_a_400_that_names_it(tmp_path: Path, field: str) -> None:
    async with proxy(tmp_path, in_turn("x")) as world:
        access = await world.open()
        for value, expected in ((10**23 - 1, 400), (2**63, 400), (2**63 - 1, 200)):
            async with world.post(access, {"model": "m", "messages": [USER], field: value}) as response:
                assert response.status == expected, await response.text()
                if expected == 400:
                    assert (await response.json())["error"]["param"] == field


async def test_probes_are_answered_and_unknown_paths_are_not(tmp_path: Path) -> None:
    async with proxy(tmp_path, in_turn("x"), model_name="tiny") as world:
        access = await world.open()
        base, headers = f"{world.server.url}/s/{access.session_id}", {"Authorization": f"Bearer {access.key}"}
        for method, path, expected in (
            ("HEAD", "", 200), ("HEAD", "/v1/models", 200), ("GET", "/v1/models", 200), ("GET", "/models/gpt-5", 200),
            ("GET", "/v1/chat/completions", 405), ("POST", "/v1/embeddings", 404), ("POST", "/x/../sessions", 404),
        ):  # fmt: skip
            async with world.http.request(method, base + path, headers=headers) as response:
                assert response.status == expected, path
                if method != "HEAD":
                    assert "data" in (body := await response.json()) or "id" in body or "error" in body
        assert world.gateway.status(access.session_id).counters.get("calls") is None
        assert (await world.client(access).models.list()).data[0].id == "tiny"
