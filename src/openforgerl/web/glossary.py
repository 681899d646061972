"""One sentence for each name that a run counts by; a name without one is shown as it is."""

from __future__ import annotations

MASKED = {
    "context": "prompt, template, tool output, or a token that another row owns",
    "side_call": "a call beside the conversation: a title, a probe",
    "client_aborted": "the harness left before the answer was whole",
    "engine_aborted": "the engine dropped the call",
    "call_error": "the call failed",
    "late": "finished after its session was closed",
    "changed_distribution": "top-p, a grammar, a forced tool, temperature 0: not the policy's own log-probs",
}
UNUSED = {
    "evaluation": "held-out rollouts are never trained on",
    "zero_variance": "every rollout of the group got the same reward: no advantage",
    "no_group": "the session belongs to no group",
    "incomplete_group": "too few rollouts of the group have a reward",
    "no_trained_tokens": "every token of the session is masked",
    "infra": "the session ended by an infrastructure failure, or was cancelled",
    "ungraded": "the session has no grade",
    "grader_error": "the grader failed",
    "superseded": "a later attempt of the same rollout counts",
    "not_solved": "a demonstration that did not solve its task",
    "not_drawn": "a demonstration that no step drew",
    "not_yet_used": "its step is not committed yet",
    "open": "the session is still open",
}
ENDED_BY = {
    "finished": "the agent ended by itself",
    "agent_timeout": "the deadline or the limit on calls was reached",
    "agent_crash": "the agent ended with an error",
    "context_full": "the conversation outgrew the context",
    "cancelled": "the run was stopped",
    "infra": "infrastructure failed; leaves loss and baseline",
    "open": "still running",
}
COUNTERS = {
    "reencoded_turns": "turns of ours that came back changed, encoded anew",
    "split_tokens": "tokens that a cut splits, encoded anew",
    "cut_turns": "turns that the harness kept in part",
    "foreign_turns": "assistant turns that we never sampled",
    "ambiguous_turns": "turns that several recorded answers could spell",
    "stripped_lines": "nonce lines removed from system prompts",
    "unparsed_calls": "tool calls that could not be parsed, returned as text",
    "shown_specials": "control tokens sampled inside an answer, shown as text",
    "cut_by_length": "answers that ended at the token limit",
    "delivered_in_part": "answers of which the harness got a part",
    "delivery_unknown": "answers that may not have arrived",
    "calls_client_aborted": "calls that the harness left",
    "calls_engine_aborted": "calls that the engine dropped",
    "calls_error": "calls that failed",
    "calls_late": "calls that ended after their session",
    "lost_calls": "calls begun and never committed",
    "retried_rollouts": "attempts after an infrastructure failure",
    "capped_logs": "agent outputs that reached the cap and lost their middle",
}
HELDOUT = {"base": "base", "after_sft": "after SFT", "after_rl": "after RL"}
