"""What the calls of a session share from the beginning on: ids in a radix tree, messages in a tree.

Memory and the work of a call grow with what is new; what is shared is stored once and never walked again.
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
        self.prompt_lengths: list[int] = []
        """Of each call, in the order in which they came."""

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._ends

    def insert(self, owner: Owner, parent: str | None, cut: int, prompt: Ids, sampled: Ids) -> None:
        """A call whose prompt is the first `cut` ids of an earlier call, then `prompt`. Raises KeyError.

        The places above are the earlier call's, and stay so.
        """
        edge, stop = self.edge(parent, cut), cut + len(prompt) + len(sampled)
        sequence = joined((prompt, sampled))
        if cut < edge.stop:
            edge = self._passed(edge, cut - edge.start, sequence)
            edge.owner = min(edge.owner, owner)
        while edge.stop < stop:
            rest = sequence[edge.stop - cut :]
            child = edge.children.get(int(rest[0]))
            if child is None:
                child = edge.children[int(rest[0])] = _Edge(edge.stop, rest.copy(), edge, owner)
            edge = self._passed(child, 0, rest)
            edge.owner = min(edge.owner, owner)
        self._ends[owner[1]] = (edge, cut + len(prompt))
        self._by_prompt_length.setdefault(cut + len(prompt), []).append(owner[1])
        self.prompt_lengths.append(cut + len(prompt))

    def _passed(self, edge: _Edge, count: int, sequence: Ids) -> _Edge:
        """The edge that ends where `sequence`, which begins behind its first `count` ids, leaves it."""
        count += common_length(edge.ids[count:], sequence)
        return edge if count == len(edge.ids) else edge.split(count)

    def edge(self, call_id: str | None, depth: int) -> _Edge:
        """The edge of a call in which its first `depth` ids end. Raises KeyError."""
        edge = self._root if call_id is None else self._ends[call_id][0]
        while edge.start >= depth and edge.parent is not None:
            edge = edge.parent
        return edge

    def end(self, call_id: str) -> tuple[_Edge, int]:
        """The last edge of a call, and the length of its prompt."""
        return self._ends[call_id]

    def with_prompt_length(self, length: int) -> Sequence[str]:
        return self._by_prompt_length.get(length, ())

    def cursor(self, call_id: str | None = None, depth: int = 0) -> IdCursor:
        """Behind the first `depth` ids of a call."""
        return IdCursor(self, self.edge(call_id, depth), depth, depth)


class IdCursor:
    """A growing sequence of ids on its way down the tree, as far as the tree goes with it."""

    def __init__(self, tree: IdTree, last: _Edge, depth: int, length: int) -> None:
        self._tree = tree
        self._last = last
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
                self._last = child
            shared = common_length(self._last.ids[self.depth - self._last.start :], ids[at:])
            if not shared:
                break
            self.depth, at = self.depth + shared, at + shared
        self.length += len(ids)

    def fork(self) -> IdCursor:
        return IdCursor(self._tree, self._last, self.depth, self.length)

    def parent(self) -> tuple[str | None, int]:
        """The earliest call that shares the most leading ids, and their number."""
        return (self._last.owner[1], self.depth) if self.depth else (None, 0)

    def shared_with(self, call_id: str) -> int:
        """Leading ids that this sequence has in common with the prompt of a call."""
        edge, limit = self._tree.end(call_id)
        mine: _Edge = self._last
        while edge is not mine:
            stop, other = edge.stop, mine.stop
            if stop >= other and edge.parent is not None:
                edge = edge.parent
            if other >= stop and mine.parent is not None:
                mine = mine.parent
        return min(limit, edge.stop, self.depth)

    def is_prompt_of(self, call_id: str) -> bool:
        """Whether a call was sampled behind exactly these ids."""
        return self._tree.end(call_id)[1] == self.length == self.shared_with(call_id)

    def is_a_prompt(self) -> bool:
        """Whether any call was."""
        return any(map(self.is_prompt_of, self._tree.with_prompt_length(self.length)))


@dataclass(slots=True, eq=False)
class Node:
    """A message behind those of its parents."""

    message: Message | None
    depth: int
    parent: Node | None
    owner: Owner
    children: dict[Message, Node] = field(default_factory=dict)

    def at(self, depth: int) -> Node:
        """The node of the first `depth` messages at most."""
        node = self
        while node.depth > depth and node.parent is not None:
            node = node.parent
        return node


class MessageTree:
    """The message list of each call, as sent."""

    def __init__(self) -> None:
        self.root = Node(None, 0, None, (0, ""))
        self._ends: dict[str, Node] = {}

    def insert(self, owner: Owner, parent: str | None, cut: int, new: Sequence[Message]) -> None:
        """A call whose list is the first `cut` messages of an earlier call, then `new`. Raises KeyError."""
        node = self.root if parent is None else self._ends[parent].at(cut)
        for message in new:
            child = node.children.get(message)
            if child is None:
                child = node.children[message] = Node(message, node.depth + 1, node, owner)
            child.owner = min(child.owner, owner)
            node = child
        self._ends[owner[1]] = node

    def path(self, messages: Sequence[Message], known: Node | None = None) -> MessagePath:
        """`known`: the node of some of its leading messages."""
        last = known or self.root
        for message in messages[last.depth :]:
            child = last.children.get(message)
            if child is None:
                break
            last = child
        return MessagePath(self._ends, last)


class MessagePath:
    """A message list in the tree, as far as the tree goes with it."""

    def __init__(self, ends: dict[str, Node], last: Node) -> None:
        self._ends = ends
        self.last = last

    def parent(self) -> tuple[str | None, int]:
        """The earliest call that shares the most leading messages, and their number."""
        return (self.last.owner[1], self.last.depth) if self.last.depth else (None, 0)

    def shared_with(self, call_id: str, limit: int) -> int:
        """Leading messages, at most `limit`, in common with those of a call."""
        node, mine = self._ends[call_id], self.last
        node, mine = node.at(mine.depth), mine.at(node.depth)
        while node is not mine and node.parent is not None and mine.parent is not None:
            node, mine = node.parent, mine.parent
        return min(node.depth, limit)
