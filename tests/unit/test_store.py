"""The store's promises, one by one, on a real file."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from openforgerl.errors import StoreError
from openforgerl.records import (
    Completion,
    Delivered,
    EndedBy,
    Ending,
    Grade,
    MessagesDelta,
    PromptDelta,
    Receipt,
    Session,
    Use,
)
from openforgerl.store import Store
from openforgerl.store.schema import MIGRATIONS, SCHEMA_VERSION, migrate, read_version
from recorded_calls import BASH, assistant, intent, recorded, user

FINISHED = Ending(ended_by=EndedBy.FINISHED)
SESSION = Session(session_id="s1", task_id="t", group_id="g-1", labels={"split": "train"}, created_at=5.0)


@asynccontextmanager
async def opened(folder: Path, *sessions: Session) -> AsyncIterator[Store]:
    store = Store.open(folder)
    try:
        for session in sessions:
            await store.open_session(session)
        yield store
    finally:
        await store.aclose()


async def test_a_session_and_its_calls_read_back_as_they_were(tmp_path: Path) -> None:
    first = recorded(0, (1, 2, 3), (4, 5), tools=(BASH,), labels={"x": "y"}, counters={"cut_tokens": 1})
    second = recorded(
        1,
        PromptDelta(parent="c0", cut=5, new_ids=(6,)),
        (7,),
        messages=MessagesDelta(parent="c0", cut=1, new=(assistant("answer 0"), user("and?"))),
    )
    async with opened(tmp_path / "store", SESSION) as store:
        await store.commit(first)
        await store.commit(second)
        assert store.calls("s1") == (first, second)
        assert store.sessions() == (SESSION,)
        assert store.session("s1") == SESSION
    async with opened(tmp_path / "store") as store:
        assert store.calls("s1") == (first, second)


async def test_calls_come_in_index_order_whatever_the_order_of_commits(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        for index in (2, 0, 1):
            await store.commit(recorded(index, (index,)))
        assert [call.index for call in store.calls("s1")] == [0, 1, 2]


async def test_many_waiting_commits_become_few_synced_transactions(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        before = store.counters["synced_transactions"]
        await asyncio.gather(*(store.commit(recorded(index, (index,))) for index in range(300)))
        assert len(store.calls("s1")) == 300
        assert store.counters["synced_transactions"] - before < 100


async def test_intents_and_deliveries_do_not_sync(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,)))
        before = store.counters["synced_transactions"]
        await store.intent(intent("c1"))
        await store.deliver("s1", "c0", Delivered(state="full"))
        assert store.counters["synced_transactions"] == before
        assert store.counters["transactions"] == before + 2


async def test_the_last_fact_about_a_delivery_counts(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,), (2, 3)))
        await store.deliver("s1", "c0", Delivered(state="prefix", count=1))
        await store.deliver("s1", "c0", Delivered(state="full"))
        assert store.calls("s1")[0].delivered == Delivered(state="full")


async def test_a_delivery_of_what_was_not_sampled_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,), (2, 3)))
        with pytest.raises(StoreError, match="call c0 has 2 ids, 3 cannot"):
            await store.deliver("s1", "c0", Delivered(state="prefix", count=3))
        with pytest.raises(StoreError, match="call c9 of session s1"):
            await store.deliver("s1", "c9", Delivered(state="full"))


async def test_intents_without_a_commit_are_named_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        for name in ("c2", "c0", "c1"):
            await store.intent(intent(name))
        await store.commit(recorded(0, (1,)))
        assert store.intents("s1") == ("c2", "c1")


async def test_a_sealed_session_takes_late_calls_only(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,)))
        await store.seal("s1", FINISHED)
        with pytest.raises(StoreError, match="call c1: session s1 is sealed"):
            await store.commit(recorded(1, (1,)))
        await store.commit(recorded(2, (1,), completion=Completion.LATE, finish=None))
        assert [call.call_id for call in store.calls("s1")] == ["c0", "c2"]
        assert store.session("s1").ending == FINISHED


async def test_a_session_ends_once(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.seal("s1", FINISHED)
        await store.seal("s1", FINISHED)
        with pytest.raises(StoreError, match=r"session s1 ended as .*finished.*, not as .*AGENT_CRASH"):
            await store.seal("s1", Ending(ended_by=EndedBy.AGENT_CRASH))
        assert store.session("s1").ending == FINISHED


async def test_the_last_grade_counts(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.grade("s1", Grade(kind="grader_error", reason="no reward file"))
        await store.grade("s1", Grade(kind="reward", reward=0.25))
        assert store.session("s1").grade == Grade(kind="reward", reward=0.25)


async def test_receipts_and_uses_are_written_all_or_none(tmp_path: Path) -> None:
    receipt = Receipt(session_id="s1", branch=0, policy_version=1, tokens=9, max_gap=1e-5, mean_gap=1e-6)
    use = Use(session_id="s1", phase="rl", step=2, trained=True)
    async with opened(tmp_path, SESSION, Session(session_id="s2")) as store:
        await store.receipts([receipt])
        await store.uses([use, replace(use, session_id="s2", trained=False, reason="zero_variance")])
        with pytest.raises(StoreError, match="session s9"):
            await store.uses([use, replace(use, session_id="s9")])
        assert store.read_receipts() == store.read_receipts("s1") == (receipt,)
        assert store.read_receipts("s2") == ()
        assert [row.session_id for row in store.read_uses()] == ["s1", "s2"]
        assert store.read_uses("s1") == (use,)


async def test_what_leans_on_nothing_is_refused_and_the_rest_of_the_batch_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1, 2), (3,)))
        outcomes = await asyncio.gather(
            store.commit(recorded(1, PromptDelta(parent="c7", cut=1, new_ids=()))),
            store.commit(recorded(2, PromptDelta(parent="c0", cut=4, new_ids=()))),
            store.commit(recorded(3, (1,), messages=MessagesDelta(parent="c0", cut=2, new=()))),
            store.commit(recorded(0, (1,))),
            store.commit(recorded(5, (1,), call_id="c0")),
            store.commit(recorded(6, (2**31,))),
            store.commit(recorded(7, (1,), session_id="s9")),
            store.open_session(SESSION),
            store.commit(recorded(8, (1,))),
            return_exceptions=True,
        )
        assert [isinstance(outcome, StoreError) for outcome in outcomes] == [True] * 8 + [False]
        assert "call c1: the parent of its prompt, call c7" in str(outcomes[0])
        assert "call c2: its prompt take 4 from call c0, which has 3" in str(outcomes[1])
        assert "call c3: its messages take 2 from call c0, which has 1" in str(outcomes[2])
        assert "session s9 is not in the store" in str(outcomes[6])
        assert "session s1 exists" in str(outcomes[7])
        assert [call.index for call in store.calls("s1")] == [0, 8]
        assert store.counters["failed_writes"] == 8


async def test_a_write_whose_caller_is_cancelled_is_made_nevertheless(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        task = asyncio.ensure_future(store.commit(recorded(0, (1,))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.commit(recorded(1, (1,)))
        assert [call.index for call in store.calls("s1")] == [0, 1]


async def test_one_process_writes_and_any_number_reads(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        with pytest.raises(
            StoreError, match=r"open in another process \(pid \d+\): end it, or open the store read-only"
        ):
            Store.open(tmp_path)
        reader = Store.open(tmp_path, read_only=True)
        await store.commit(recorded(0, (1,)))
        assert [call.call_id for call in reader.calls("s1")] == ["c0"]
        with pytest.raises(StoreError, match="read-only"):
            await reader.commit(recorded(1, (1,)))
        reader.close()


async def test_a_closed_store_refuses_and_closes_again(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        waiting = [asyncio.ensure_future(store.commit(recorded(index, (1,)))) for index in range(20)]
        await asyncio.sleep(0)
        await store.aclose()
        await asyncio.gather(*waiting)
        with pytest.raises(StoreError, match="closed"):
            await store.commit(recorded(30, (1,)))
        with pytest.raises(StoreError, match="closed"):
            store.calls("s1")
        await store.aclose()
    reader = Store.open(tmp_path, read_only=True)
    assert len(reader.calls("s1")) == 20
    reader.close()


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(StoreError, match=r"no store in .*: calls\.sqlite is missing"):
            Store.open(tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()
    (tmp_path / "calls.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 99)
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreError, match="file is not a database"):
            Store.open(tmp_path, **options)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(tmp_path / "file")


async def test_a_store_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    connection = sqlite3.connect(tmp_path / "calls.sqlite")
    with connection:
        connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION + 1,))
    connection.close()
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreError, match=f"schema_version {SCHEMA_VERSION + 1}, this program knows up to"):
            Store.open(tmp_path, **options)


def test_a_migration_runs_once_and_a_failed_one_leaves_the_older_store(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "calls.sqlite", isolation_level=None)
    migrate(connection, "here")
    newer = (*MIGRATIONS, ("CREATE TABLE notes (text TEXT)",))
    migrate(connection, "here", newer)
    migrate(connection, "here", newer)
    assert read_version(connection) == SCHEMA_VERSION + 1
    with pytest.raises(sqlite3.Error):
        migrate(connection, "here", (*newer, ("CREATE TABLE more (text TEXT)", "NONSENSE")))
    assert read_version(connection) == SCHEMA_VERSION + 1
    assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchone() is None
    connection.close()


async def test_a_store_that_an_interrupted_creation_left_empty_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "calls.sqlite").touch()
    with pytest.raises(StoreError, match=f"schema_version 0, not {SCHEMA_VERSION}"):
        Store.open(tmp_path, read_only=True)
    async with opened(tmp_path, SESSION) as store:
        assert store.sessions() == (SESSION,)


async def test_facts_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,)))
        await store.grade("s1", Grade(kind="reward", reward=1.0))
    connection = sqlite3.connect(tmp_path / "calls.sqlite")
    for table, column in (("calls", "sampled_ids"), ("grades", "body"), ("sessions", "body"), ("contents", "body")):
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
            connection.execute(f"UPDATE {table} SET {column} = x'00'")
        with pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"):
            connection.execute(f"DELETE FROM {table}")
    connection.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE calls SET sampled_ids = x'0900000008000000'", "call c0 of session s1 is damaged.*checksum"),
        ("UPDATE calls SET logprobs = x'00'", "call c0 of session s1 is damaged.*checksum"),
        ("UPDATE contents SET body = '{}'", "call c0 of session s1 is damaged.*content"),
        ("DELETE FROM contents", "call c0 of session s1 is damaged.*content"),
        ("UPDATE sessions SET body = x'7b7d'", "session s1 is damaged"),
        ("UPDATE sessions SET body = x'ff'", "session s1 is damaged"),
        ('UPDATE grades SET body = cast(\'{"kind":"reward"}\' AS BLOB)', "session s1 is damaged"),
    ],
)
async def test_damage_is_named_never_repaired(tmp_path: Path, damage: str, named: str) -> None:
    async with opened(tmp_path, SESSION) as store:
        await store.commit(recorded(0, (1,), (7, 8)))
        await store.grade("s1", Grade(kind="reward", reward=1.0))
    connection = sqlite3.connect(tmp_path / "calls.sqlite")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    with connection:
        connection.execute(damage.replace("'{}'", "x'7b7d'"))
    connection.close()
    store = Store.open(tmp_path, read_only=True)
    with pytest.raises(StoreError, match=named):
        (store.session("s1"), store.calls("s1"))
    store.close()


async def test_a_growing_session_costs_its_new_tokens_only(tmp_path: Path) -> None:
    """Twice the calls is twice the bytes: 300 tool definitions and the history are not written again."""
    tools = tuple(replace(BASH, name=f"tool{number}", definition="x" * 100) for number in range(300))

    async def grow(folder: Path, calls: int) -> int:
        async with opened(folder, SESSION) as store:
            for index in range(calls):
                parent = f"c{index - 1}" if index else None
                prompt = PromptDelta(parent=parent, cut=index * 52, new_ids=tuple(range(50)))
                new = (user(f"step {index} " + "x" * 200),)
                await store.commit(
                    recorded(index, prompt, tools=tools, messages=MessagesDelta(parent=parent, cut=index, new=new))
                )
        return (folder / "calls.sqlite").stat().st_size

    empty = await grow(tmp_path / "0", 0)
    short, long = await grow(tmp_path / "20", 20) - empty, await grow(tmp_path / "40", 40) - empty
    assert long - short < 1.3 * (short - 300 * 110)
