"""What the calls of a session share from the beginning on: ids in a radix tree, messages in a tree.

Memory grows with what is new; what is shared is stored once and compared by memory blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openforgerl.records import Message
from openforgerl.tokens.ids import Ids, as_ids, common_length, joined

Owner = tuple[int, str]
"""(index, id) of the earliest call that passes a place."""


@dataclass(slots=True, eq=False)
class _Edge:
    """Ids [start, stop) of every sequence that passes here."""

    start: int
    ids: Ids
    parent: _Edge | None
    owner: Owner
    children: dict[int, _Edge] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)

    def split(self, count: int) -> _Edge:
        """The first `count` ids become the parent of the rest."""
        upper = _Edge(self.start, self.ids[:count], self.parent, self.owner, {int(self.ids[count]): self})
        if self.parent is not None:
            self.parent.children[int(self.ids[0])] = upper
        self.start, self.ids, self.parent = self.start + count, self.ids[count:], upper
        return upper


class IdTree:
    """Prompt + sampled ids of each call."""

    def __init__(self) -> None:
        self._root = _Edge(0, as_ids(()), None, (0, ""))
        self._ends: dict[str, tuple[_Edge, int]] = {}
        self._by_prompt_length: dict[int, list[str]] = {}

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._ends

    def insert(self, call_id: str, index: int, prompt: Ids, sampled: Ids) -> None:
        sequence, owner = joined((prompt, sampled)), (index, call_id)
        edge = self._root
        while edge.stop < len(sequence):
            first = int(sequence[edge.stop])
            child = edge.children.get(first)
            if child is None:
                child = edge.children[first] = _Edge(edge.stop, sequence[edge.stop :].copy(), edge, owner)
            shared = common_length(child.ids, sequence[child.start :])
            edge = child if shared == len(child.ids) else child.split(shared)
            edge.owner = min(edge.owner, owner)
        self._ends[call_id] = (edge, len(prompt))
        self._by_prompt_length.setdefault(len(prompt), []).append(call_id)

    def sequence(self, call_id: str) -> Ids:
        """Prompt + sampled ids of a call. Raises KeyError."""
        edges: list[Ids] = []
        edge: _Edge | None = self._ends[call_id][0]
        while edge is not None:
            edges.append(edge.ids)
            edge = edge.parent
        return joined(edges[::-1])

    def end(self, call_id: str) -> tuple[_Edge, int]:
        """The last edge of a call, and the length of its prompt."""
        return self._ends[call_id]

    def with_prompt_length(self, length: int) -> Sequence[str]:
        return self._by_prompt_length.get(length, ())

    def cursor(self) -> IdCursor:
        return IdCursor(self, {self._root: None})


class IdCursor:
    """A growing sequence of ids on its way down the tree, as far as the tree goes with it."""

    def __init__(self, tree: IdTree, path: dict[_Edge, None], depth: int = 0, length: int = 0) -> None:
        self._tree = tree
        self._path = path
        self._last = next(reversed(path))
        self.depth = depth
        """Leading ids that some call shares."""
        self.length = length

    def advance(self, ids: Ids) -> None:
        at = 0
        while self.depth == self.length + at and at < len(ids):
            if self.depth == self._last.stop:
                child = self._last.children.get(int(ids[at]))
                if child is None:
                    break
                self._path[child] = None
                self._last = child
            shared = common_length(self._last.ids[self.depth - self._last.start :], ids[at:])
            if not shared:
                break
            self.depth, at = self.depth + shared, at + shared
        self.length += len(ids)

    def fork(self) -> IdCursor:
        return IdCursor(self._tree, dict(self._path), self.depth, self.length)

    def parent(self) -> tuple[str | None, int]:
        """The earliest call that shares the most leading ids, and their number."""
        return (self._last.owner[1], self.depth) if self.depth else (None, 0)

    def shared_with(self, call_id: str) -> int:
        """Leading ids that this sequence has in common with the prompt of a call."""
        edge, limit = self._tree.end(call_id)
        while edge not in self._path and edge.parent is not None:
            edge = edge.parent
        return min(limit, edge.stop, self.depth)

    def is_prompt_of(self, call_id: str) -> bool:
        """Whether a call was sampled behind exactly these ids."""
        return self._tree.end(call_id)[1] == self.length == self.shared_with(call_id)

    def is_a_prompt(self) -> bool:
        """Whether any call was."""
        return any(map(self.is_prompt_of, self._tree.with_prompt_length(self.length)))


@dataclass(slots=True, eq=False)
class _Node:
    message: Message | None
    depth: int
    parent: _Node | None
    owner: Owner
    children: dict[Message, _Node] = field(default_factory=dict)


class MessageTree:
    """The message list of each call, as sent."""

    def __init__(self) -> None:
        self._root = _Node(None, 0, None, (0, ""))
        self._ends: dict[str, _Node] = {}

    def insert(self, call_id: str, index: int, messages: Sequence[Message]) -> None:
        node, owner = self._root, (index, call_id)
        for message in messages:
            child = node.children.get(message)
            if child is None:
                child = node.children[message] = _Node(message, node.depth + 1, node, owner)
            child.owner = min(child.owner, owner)
            node = child
        self._ends[call_id] = node

    def messages(self, call_id: str) -> tuple[Message, ...]:
        """The list of a call. Raises KeyError."""
        found: list[Message] = []
        node: _Node | None = self._ends[call_id]
        while node is not None and node.message is not None:
            found.append(node.message)
            node = node.parent
        return tuple(found[::-1])

    def path(self, messages: Sequence[Message]) -> MessagePath:
        nodes = {self._root: None}
        last = self._root
        for message in messages:
            child = last.children.get(message)
            if child is None:
                break
            nodes[child] = None
            last = child
        return MessagePath(self._ends, nodes, last)


class MessagePath:
    """A message list in the tree, as far as the tree goes with it."""

    def __init__(self, ends: dict[str, _Node], nodes: dict[_Node, None], last: _Node) -> None:
        self._ends = ends
        self._nodes = nodes
        self._last = last

    def parent(self) -> tuple[str | None, int]:
        """The earliest call that shares the most leading messages, and their number."""
        return (self._last.owner[1], self._last.depth) if self._last.depth else (None, 0)

    def shared_with(self, call_id: str, limit: int) -> int:
        """Leading messages, at most `limit`, in common with those of a call."""
        node = self._ends[call_id]
        while node not in self._nodes and node.parent is not None:
            node = node.parent
        return min(node.depth, limit)
