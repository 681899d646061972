"""Retained keys and values of one policy version: a radix tree over ids, least recently used leaves leave first.

A node holds the part of a sequence behind its parent's, so a prefix that many sequences share is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

Copy = Callable[[int, int], Tensor]
"""Keys and values of the positions [start, stop) as a tensor of its own; positions are its dimension -2."""


class _Node:
    __slots__ = ("children", "ids", "kv", "parent", "used")

    def __init__(self, ids: tuple[int, ...], kv: Tensor | None, parent: _Node | None, used: int) -> None:
        self.ids = ids
        self.kv = kv
        self.parent = parent
        self.used = used
        self.children: dict[int, _Node] = {}


class PrefixTree:
    """Not safe for threads: the worker owns it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._root = _Node((), None, None, 0)
        self._clock = 0
        self.tokens = 0
        """Positions held."""

    def match(self, ids: Sequence[int]) -> list[Tensor]:
        """Keys and values of the longest retained prefix of `ids`, in pieces. Views: copy before the next insert."""
        pieces: list[Tensor] = []
        for node, shared in self._walk(tuple(ids)):
            if node.kv is not None:
                pieces.append(node.kv if shared == len(node.ids) else node.kv[..., :shared, :])
        return pieces

    def insert(self, ids: Sequence[int], copy: Copy) -> None:
        """Retain `ids`; only the positions that are not held yet are copied."""
        wanted = tuple(ids)
        path = self._walk(wanted)
        node, shared = path[-1]
        held = sum(count for _, count in path)
        if held == len(wanted):
            return
        if shared < len(node.ids):
            node = self._split(node, shared)
        child = _Node(wanted[held:], copy(held, len(wanted)), node, self._clock)
        node.children[wanted[held]] = child
        self.tokens += len(child.ids)

    def shrink(self, tokens: int) -> int:
        """Drop the ends of leaves until at most `tokens` positions are held; returns how many were dropped."""
        before, allowed = self.tokens, max(tokens, 0)
        while self.tokens > allowed:
            for leaf in sorted(self._leaves(), key=lambda node: node.used):
                if self.tokens > allowed:
                    self._trim(leaf, self.tokens - allowed)
        return before - self.tokens

    def _walk(self, ids: tuple[int, ...]) -> list[tuple[_Node, int]]:
        """The root, then each node on the way with the number of its ids that agree; only the last may be partial."""
        self._clock += 1
        node, at, path = self._root, 0, [(self._root, 0)]
        while (child := node.children.get(ids[at]) if at < len(ids) else None) is not None:
            shared = common(child.ids, ids[at : at + len(child.ids)])
            child.used = self._clock
            path.append((child, shared))
            at += shared
            if shared < len(child.ids):
                break
            node = child
        return path

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two; both get memory of their own, so that dropping one frees it."""
        parent = node.parent
        if parent is None or node.kv is None:
            raise ValueError("the root has nothing to split")
        upper = _Node(node.ids[:at], node.kv[..., :at, :].clone(), parent, self._clock)
        parent.children[upper.ids[0]] = upper
        node.ids, node.kv, node.parent = node.ids[at:], node.kv[..., at:, :].clone(), upper
        upper.children[node.ids[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        leaves, open_nodes = [], list(self._root.children.values())
        while open_nodes:
            node = open_nodes.pop()
            open_nodes.extend(node.children.values())
            if not node.children:
                leaves.append(node)
        return leaves

    def _trim(self, leaf: _Node, excess: int) -> None:
        if leaf.parent is None or leaf.kv is None:
            raise ValueError("the root holds nothing")
        kept = max(len(leaf.ids) - excess, 0)
        self.tokens -= len(leaf.ids) - kept
        if kept == 0:
            del leaf.parent.children[leaf.ids[0]]
        else:
            leaf.ids, leaf.kv = leaf.ids[:kept], leaf.kv[..., :kept, :].clone()


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    if left == right:
        return len(left)
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
