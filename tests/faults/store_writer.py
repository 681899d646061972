"""A process to be killed: commits calls from four tasks and prints an id after each acknowledged commit.

python store_writer.py FOLDER ROUND
"""

import asyncio
import sys
from pathlib import Path

from openforgerl.records import Delivered, MessagesDelta, PromptDelta, RecordedCall, Session
from openforgerl.store import Store
from recorded_calls import BASH, assistant, intent, recorded, user


def call_of(session_id: str, index: int) -> RecordedCall:
    """The same call, whoever asks: what is in the store can be compared with what was given."""
    parent = f"c{index - 1}" if index else None
    cut = index * 60
    return recorded(
        index,
        PromptDelta(parent=parent, cut=cut, new_ids=tuple(range(index, index + 40))),
        tuple(range(20)),
        session_id=session_id,
        tools=(BASH,),
        messages=MessagesDelta(parent=parent, cut=index, new=(user(f"{session_id} step {index} " + "x" * 500),)),
        answer=assistant(f"answer {index} of {session_id}"),
    )


async def record(store: Store, session_id: str) -> None:
    await store.open_session(Session(session_id=session_id))
    for index in range(100_000):
        call = call_of(session_id, index)
        await store.intent(intent(call.call_id, session_id))
        await store.commit(call)
        print(session_id, index, flush=True)
        await store.deliver(session_id, call.call_id, Delivered(state="full"))


async def main(folder: Path, number: str) -> None:
    store = Store.open(folder)
    print("open", flush=True)
    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(record(store, f"{name}-{number}"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
