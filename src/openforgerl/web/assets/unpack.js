// The embedded rollouts: unpacked once, read by the list and by the pages. The format is written by rollouts.py.

async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  if (data.format !== 1) throw new Error(`format ${data.format} of the rollouts is unknown to this page`);
  const { ids, texts, kinds } = data.vocabulary;
  data.tokens = new Map(ids.map((id, at) => [id, { text: texts[at], kind: kinds[at] }]));
  data.sessions.forEach(summarize);
  data.byId = new Map(data.sessions.map((session) => [session.id, session]));
  return data;
}

// Adds what the list shows and filters by.
function summarize(session) {
  session.sampled = session.calls.reduce((sum, call) => sum + call.sampled.length, 0);
  session.kinds = [...new Set(session.calls.map((call) => call.kind))];
  const admitted = session.rows.flatMap((row) => row.reasons).filter(([reason]) => reason === "");
  session.admitted = admitted.reduce((sum, [, count]) => sum + count, 0);
  session.trained = session.unused_for ? 0 : session.admitted;
}

// All ids of a call, prompt and answer, from the deltas.
function wholeIds(data, session, at, known = new Map()) {
  if (!known.has(at)) {
    const call = session.calls[at];
    const before = call.parent < 0 ? [] : wholeIds(data, session, call.parent, known).slice(0, call.cut);
    known.set(at, [...before, ...data.pool[call.new], ...call.sampled]);
  }
  return known.get(at);
}

// One entry for each token of a row: id, reason ("" is trained), and for owned ones call, log-prob, policy version.
function rowTokens(data, session, row) {
  const last = row.segments[row.segments.length - 1];
  const tokens = wholeIds(data, session, last[0]).slice(0, row.length).map((id) => ({ id, reason: "context" }));
  let place = 0;
  for (const [reason, count] of row.reasons) {
    for (const token of tokens.slice(place, place + count)) token.reason = reason;
    place += count;
  }
  for (const [at, start, stop, owned] of row.segments) {
    const call = session.calls[at];
    const versions = call.versions.flatMap(([version, count]) => Array(count).fill(version));
    if (tokens[start]) tokens[start].begins = { call, owned };
    for (let place = start; owned && place < stop; place++) {
      const unit = call.logprobs[place - start];
      Object.assign(tokens[place], { call, logprob: -unit * data.logprob_unit, version: versions[place - start] });
    }
  }
  return tokens;
}
