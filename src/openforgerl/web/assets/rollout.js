// The page of one rollout: its facts, its calls, each row as tokens, and what the agent printed.

// Of more than `above` context tokens in a row the first `head` and the last `tail` stay open; later rows of a session
// mostly repeat the context of the first.
const FOLDS = [{ above: 900, head: 120, tail: 240 }, { above: 200, head: 20, tail: 100 }];

function rolloutPage(data, session, walk) {
  return [
    walk,
    el("p", { class: "eyebrow", text: stepOf(session) }),
    el("h1", { tabindex: "-1", text: session.id }),
    facts(session),
    el("h2", { text: session.rows.length === 1 ? "Tokens" : `Tokens, in ${session.rows.length} rows` }),
    ...(session.rows.length ? session.rows.map((row) => rowView(data, session, row)) : [el("p", { class: "none", text: "Nothing was sampled." })]),
    el("h2", { text: "Calls" }),
    callTable(session),
    el("h2", { text: "Output of the agent" }),
    logView(session.log),
  ];
}

function facts(session) {
  const grade = session.reward === null ? session.grade : session.reward.toFixed(2);
  const trained = [...new Set(session.uses.filter(([, , reason]) => !reason).map(([phase, step]) => `${phase} ${step + 1}`))];
  const pairs = [
    ["reward", el("span", { class: "pill", text: grade }), session.grade_reason],
    ["ended by", [swatch(session.ended_by), session.ended_by], session.ended_reason],
    ["trained", session.unused_for ? `no: ${session.unused_for}` : trained.join(", ") || "yes"],
    ["sampled", `${grouped(session.sampled)} tokens`],
    ["task", session.task],
    ["group", session.group],
    ["attempt", String(session.attempt)],
    ["policy version", session.labels.policy_version === undefined ? "" : `v${session.labels.policy_version}`],
    ["calls lost", session.lost_calls ? String(session.lost_calls) : ""],
  ];
  const entries = pairs.filter(([, value]) => value !== "").map(([name, value, reason]) =>
    el("div", {}, el("dt", { text: name }), typeof value === "string" ? el("dd", { class: "hostile", text: value }) : el("dd", {}, value),
      reason ? el("dd", { class: "hostile dim", text: reason }) : []));
  return el("dl", { class: "meta" }, entries);
}

function callTable(session) {
  const cell = (value, number) => el("td", { class: number ? "n" : "hostile" }, ...shown(value));
  const rows = session.calls.map((call) =>
    el("tr", {}, cell(call.index, true), cell(call.kind), cell(call.finish || "–"), cell(call.completion),
      cell(call.delivered[0] === "prefix" ? `first ${call.delivered[1]} ids` : call.delivered[0]),
      cell(grouped(promptLength(call, session)), true), cell(grouped(call.sampled.length), true), cell(call.seconds.toFixed(2), true),
      cell(noted(call))));
  const names = ["call", "kind", "finish", "completion", "delivered", "prompt", "sampled", "seconds", "noted"];
  const numbers = new Set(["call", "prompt", "sampled", "seconds"]);
  const head = el("tr", {}, names.map((name) => el("th", { scope: "col", class: numbers.has(name) ? "n" : undefined, text: name })));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}

const promptLength = (call, session) => call.cut + session.poolLengths[call.new];

function noted(call) {
  const counters = Object.entries(call.counters).map(([name, count]) => `${name} ${count}`);
  const sampling = call.temperature === 1 || call.temperature === null ? [] : [`temperature ${call.temperature}`];
  const choice = call.tool_choice === "auto" ? [] : [`tool choice ${call.tool_choice}`];
  const stop = call.stop_string ? [`stop string ${JSON.stringify(call.stop_string)}`] : [];
  return [...counters, ...sampling, ...choice, ...stop, call.error].filter(Boolean).join(", ");
}

function rowView(data, session, row) {
  const tokens = rowTokens(data, session, row);
  const block = el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": `Tokens of row ${row.branch}; arrow keys walk through them` });
  const inspect = el("div", { class: "inspect dim", role: "status", text: "Point at a token, or walk with the arrow keys." });
  for (const token of tokens) if (token.reason === "" && session.unused_for) token.unused = session.unused_for;
  const spans = tokens.map((token, place) => tokenSpan(data, token, place));
  block.append(...folded(tokens, spans, FOLDS[Math.min(row.branch, 1)]));
  walkTokens(block, spans, tokens, data, inspect);
  return el("section", { class: "row" }, rowHead(row, tokens), legend(tokens, block), block, inspect);
}

function rowHead(row, tokens) {
  const trained = tokens.filter((token) => token.reason === "").length;
  const told = [`${grouped(tokens.length)} tokens`, `${grouped(trained)} with loss mask 1`, `temperature ${row.temperature}`, `${row.logprob_kind} log-probs`];
  if (row.receipt) told.push(`largest gap ${row.receipt[2].toExponential(1)} over ${grouped(row.receipt[1])} tokens, at v${row.receipt[0]}`);
  else told.push("no receipt");
  return el("div", { class: "row-head" }, el("h3", { text: `Row ${row.branch}` }), told.map((text) => el("span", { text })));
}

function legend(tokens, block) {
  const states = new Map(tokens.map((token) => [stateClass(token), stateName(token)]));
  const keys = [...states].map(([state, text]) => el("span", { class: `t ${state}`, text }));
  const box = el("input", { type: "checkbox" });
  box.addEventListener("change", () => block.classList.toggle("probability", box.checked));
  return el("div", { class: "controls" }, keys, el("label", {}, box, " shade improbable tokens"));
}

function stateClass({ reason, unused }) {
  if (reason === "") return unused ? "unused" : "trained";
  return reason === "context" ? "context" : `masked ${colour(reason)}`;
}

function stateName({ reason, unused }) {
  if (reason === "") return unused ? `not trained: ${unused.replaceAll("_", " ")}` : "trained";
  return reason === "context" ? "context" : `masked: ${reason.replaceAll("_", " ")}`;
}

function tokenSpan(data, token, place) {
  const { text, kind } = data.tokens.get(token.id) ?? { text: String(token.id), kind: "id" };
  const span = el("span", { class: `t ${stateClass(token)} ${kind}`, title: described(data, token, place) });
  if (token.logprob !== undefined) span.style.setProperty("--doubt", `${Math.round(70 * (1 - Math.exp(token.logprob)))}%`);
  span.append(...(kind === "text" ? spaced(text) : shown(text)));
  return span;
}

function described(data, token, place) {
  const told = [`token ${place}`, `id ${token.id}`, JSON.stringify(data.tokens.get(token.id)?.text ?? "")];
  if (token.call) told.push(`log-prob ${token.logprob.toFixed(4)} (p ${Math.exp(token.logprob).toFixed(3)})`, `policy v${token.version}`, `call ${token.call.index}`);
  if (token.reason) told.push(`loss mask 0: ${token.reason}`);
  else told.push("loss mask 1", token.unused ? `not trained: ${token.unused}` : "trained");
  return told.join(" · ");
}

// Spaces, tabs and line ends as dim signs; a line end also ends the line.
function spaced(text) {
  return text.split(/( |\t|\r?\n)/).filter((part) => part !== "").flatMap((part) => {
    if (part === " ") return [el("span", { class: "w", text: "·" }), el("wbr")];
    if (part === "\t") return [el("span", { class: "w", text: "⇥" }), "\t"];
    if (part.endsWith("\n")) return [el("span", { class: "w", text: part === "\n" ? "⏎" : "^M⏎" }), "\n"];
    return shown(part);
  });
}

// The spans, with a mark where a call's answer begins; the middle of a very long context waits behind a button.
function folded(tokens, spans, { above, head, tail }) {
  const nodes = [];
  for (let place = 0; place < spans.length; ) {
    const length = tokens.slice(place).findIndex((token) => token.reason !== "context" || token.begins);
    const end = length < 0 ? spans.length : place + length;
    if (end - place > above) {
      nodes.push(...spans.slice(place, place + head), fold(spans.slice(place + head, end - tail)), ...spans.slice(end - tail, end));
      place = end;
    } else if (end > place) {
      nodes.push(...spans.slice(place, end));
      place = end;
    }
    if (place >= spans.length) break;
    const begins = tokens[place].begins;
    if (begins) nodes.push(el("span", { class: "call-mark", text: `call ${begins.call.index}${begins.owned ? "" : ", in another row"}` }));
    nodes.push(spans[place++]);
  }
  return nodes;
}

function fold(spans) {
  const button = el("button", { type: "button", text: `show ${grouped(spans.length)} more context tokens` });
  button.addEventListener("click", () => button.replaceWith(...spans));
  return button;
}

function walkTokens(block, spans, tokens, data, inspect) {
  let now = -1;
  const go = (place) => {
    if (place < 0 || place >= spans.length) return;
    spans[now]?.classList.remove("now");
    now = place;
    if (!spans[now].isConnected) for (const button of block.querySelectorAll("button")) button.click();
    spans[now].classList.add("now");
    spans[now].scrollIntoView({ block: "nearest" });
    inspect.replaceChildren(...shown(described(data, tokens[now], now)));
    inspect.classList.remove("dim");
  };
  const steps = { ArrowRight: () => now + 1, ArrowLeft: () => now - 1, Home: () => 0, End: () => spans.length - 1 };
  block.addEventListener("keydown", (event) => {
    if (!(event.key in steps) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(steps[event.key]());
  });
  const places = new Map(spans.map((span, place) => [span, place]));
  block.addEventListener("click", (event) => go(places.get(event.target.closest(".t")) ?? -1));
}

function logView(log) {
  if (!log) return el("p", { class: "none", text: "No output was kept." });
  const pre = el("pre", { tabindex: "0", class: "hostile" }, ...shown(log.head));
  if (log.left_out) pre.append(el("span", { class: "u", text: `\n${grouped(log.left_out)} bytes left out\n` }), ...shown(log.tail));
  return log.size ? pre : el("p", { class: "none", text: "It printed nothing." });
}
