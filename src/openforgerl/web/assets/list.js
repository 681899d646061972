// The filterable list of rollouts.

const FIRST_SHOWN = 500;
const COLUMNS = [
  { name: "rollout", value: null, cell: (s) => el("a", { href: `#/rollout/${encodeURIComponent(s.id)}`, text: s.id }) },
  { name: "step", value: stepOf, cell: stepOf, wide: true },
  { name: "task", value: (s) => s.task, cell: (s) => s.task, wide: true },
  { name: "reward", value: (s) => s.reward ?? -Infinity, cell: (s) => (s.reward === null ? s.grade : s.reward.toFixed(2)), number: true },
  { name: "ended by", value: (s) => s.ended_by, cell: (s) => [swatch(s.ended_by), s.ended_by] },
  { name: "sampled", value: (s) => s.sampled, cell: (s) => grouped(s.sampled), number: true, wide: true },
  { name: "trained", value: (s) => s.trained, cell: (s) => (s.unused_for ? s.unused_for : grouped(s.trained)), number: true, wide: true },
];
const REWARDS = { "1 or more": (r) => r !== null && r >= 1, "between 0 and 1": (r) => r > 0 && r < 1, "0 or less": (r) => r !== null && r <= 0, "no reward": (r) => r === null };

// Where a rollout belongs, in one word or two.
function stepOf(session) {
  return session.step || session.phase;
}

// Elements only ever get text, never markup: whatever a rollout says stays text.
function el(tag, properties = {}, ...children) {
  const { text, ...rest } = properties;
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) if (value !== undefined) element.setAttribute(name, value);
  if (text !== undefined) element.append(...shown(text));
  element.append(...children.flat());
  return element;
}

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u;

// Text as nodes, with a mark in place of every character that one would not see.
function shown(text) {
  const nodes = [];
  let plain = "";
  for (const char of String(text)) {
    if (!HIDDEN.test(char) || char === "\n" || char === "\t") plain += char;
    else nodes.push(plain, hiddenMark(char)), (plain = "");
  }
  return [...nodes, plain].filter((node) => node !== "");
}

function hiddenMark(char) {
  const mark = document.createElement("span");
  const code = char.codePointAt(0);
  mark.className = "u";
  mark.textContent = code < 0x20 ? `^${String.fromCharCode(code + 0x40)}` : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  return mark;
}

const swatch = (name) => el("i", { class: `swatch ${colour(name)}`, "aria-hidden": "true" });
const colour = (name) => `c-${String(name).toLowerCase().replace(/[^a-z0-9-]+/g, "-")}`;
const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

class SessionList {
  constructor(data) {
    this.data = data;
    this.form = document.getElementById("filters");
    this.body = document.querySelector("#sessions tbody");
    this.more = document.getElementById("more");
    this.limit = FIRST_SHOWN;
    this.sorted = { column: null, down: false };
    this.fillChoices();
    this.fillHead();
    this.form.addEventListener("input", () => this.draw());
    this.form.addEventListener("reset", () => setTimeout(() => this.draw()));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.more.addEventListener("click", () => { this.limit = Infinity; this.draw(); });
    this.draw();
  }

  fillChoices() {
    const choices = {
      phase: this.distinct((s) => [s.phase]),
      step: this.distinct((s) => [s.step]),
      task: this.distinct((s) => [s.task]).sort(),
      reward: Object.keys(REWARDS),
      ended_by: this.distinct((s) => [s.ended_by]),
      kind: this.distinct((s) => s.kinds),
      unused_for: ["trained", ...this.distinct((s) => [s.unused_for])],
    };
    for (const [name, values] of Object.entries(choices)) {
      this.form.elements[name].replaceChildren(el("option", { value: "", text: "all" }), ...values.map((value) => el("option", { value, text: value })));
    }
  }

  distinct(values) {
    return [...new Set(this.data.sessions.flatMap(values))].filter((value) => value !== "");
  }

  fillHead() {
    const cells = COLUMNS.map((column) => {
      const button = el("button", { type: "button", text: column.name });
      button.addEventListener("click", () => this.sortBy(column));
      column.head = el("th", { scope: "col", class: classes(column) }, column.value ? button : column.name);
      return column.head;
    });
    document.querySelector("#sessions thead tr").replaceChildren(...cells);
  }

  sortBy(column) {
    const same = this.sorted.column === column;
    this.sorted = same && this.sorted.down ? { column: null, down: false } : { column, down: same };
    for (const each of COLUMNS) each.head.removeAttribute("aria-sort");
    if (this.sorted.column) column.head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
    this.draw();
  }

  matching() {
    const wanted = Object.fromEntries([...new FormData(this.form)].filter(([, value]) => value));
    const found = this.data.sessions.filter((session) => fits(session, wanted));
    const { column, down } = this.sorted;
    return column ? found.sort((a, b) => (down ? -1 : 1) * compare(column.value(a), column.value(b))) : found;
  }

  draw() {
    this.found = this.matching();
    const rows = this.found.slice(0, this.limit).map((session) => el("tr", {}, COLUMNS.map((column) => el("td", { class: classes(column) }, column.cell(session)))));
    this.body.replaceChildren(...rows);
    this.more.hidden = this.found.length <= this.limit;
    this.more.textContent = `Show all ${grouped(this.found.length)}`;
    document.getElementById("shown").textContent = `${grouped(this.found.length)} of ${grouped(this.data.sessions.length)}`;
  }
}

const classes = (column) => [column.number && "n", column.wide && "wide-only"].filter(Boolean).join(" ") || undefined;
const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

function fits(session, wanted) {
  const { find, reward, kind, unused_for: unused, ...equal } = wanted;
  const text = [session.id, session.task, session.group, session.ended_reason, session.grade_reason].join(" ").toLowerCase();
  return (
    Object.entries(equal).every(([name, value]) => String(session[name]) === value) &&
    (!find || text.includes(find.toLowerCase())) &&
    (!reward || REWARDS[reward](session.reward)) &&
    (!kind || session.kinds.includes(kind)) &&
    (!unused || (session.unused_for || "trained") === unused)
  );
}
