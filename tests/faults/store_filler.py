"""A process whose disk is full for a while: its files may not grow, then they may again.

python store_filler.py FOLDER: exits 0 if only the calls of the full time failed, each with a StoreError.
"""

import asyncio
import resource
import sys
from pathlib import Path

from openforgerl.errors import StoreError
from openforgerl.records import MessagesDelta, RecordedCall, Session
from openforgerl.store import Store
from recorded_calls import recorded, user


def big(index: int) -> RecordedCall:
    text = f"{index} " + "x" * 300_000
    return recorded(index, (1, 2), messages=MessagesDelta(parent=None, cut=0, new=(user(text),)))


def limit_growth(folder: Path) -> None:
    used = max(file.stat().st_size for file in folder.iterdir())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (used + 100_000, hard))


async def main(folder: Path) -> None:
    store = Store.open(folder)
    await store.open_session(Session(session_id="s1"))
    await store.commit(big(0))
    limit_growth(folder)
    refused = await asyncio.gather(*(store.commit(big(index)) for index in (1, 2, 3)), return_exceptions=True)
    assert all(isinstance(outcome, StoreError) for outcome in refused), refused
    assert [call.index for call in store.calls("s1")] == [0]
    resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    await store.commit(big(4))
    await store.commit(big(1))
    assert store.calls("s1") == (big(0), big(1), big(4))
    assert store.counters["failed_writes"] == 3
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
