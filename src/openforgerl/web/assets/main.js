// Unpacks, then shows the overview or the rollout that the address names.

async function main() {
  const status = document.getElementById("unpacking");
  if (typeof DecompressionStream === "undefined") {
    status.textContent = "This browser cannot unpack the rollouts (it lacks DecompressionStream); a newer one can. Everything above is complete.";
    return;
  }
  status.textContent = "Unpacking the rollouts…";
  try {
    const data = await unpack(document.getElementById("data"));
    const lengths = data.pool.map((ids) => ids.length);
    for (const session of data.sessions) session.poolLengths = lengths;
    document.getElementById("browser").hidden = false;
    status.hidden = true;
    new Pages(data, new SessionList(data));
  } catch (error) {
    status.textContent = `The rollouts of this page cannot be read: ${error.message}`;
  }
}

class Pages {
  constructor(data, list) {
    this.data = data;
    this.list = list;
    this.overview = document.getElementById("overview");
    this.page = document.getElementById("rollout");
    this.title = document.title;
    this.scroll = 0;
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => this.key(event));
    this.route();
  }

  named() {
    const found = /^#\/rollout\/(.+)$/.exec(location.hash);
    return found ? this.data.byId.get(decodeURIComponent(found[1])) : undefined;
  }

  route() {
    const session = this.named();
    if (session && this.page.hidden) this.scroll = window.scrollY;
    this.overview.hidden = Boolean(session);
    this.page.hidden = !session;
    if (session) this.show(session);
    else if (this.page.childElementCount) this.close();
  }

  show(session) {
    const found = this.list.found;
    const at = found.indexOf(session);
    this.beside = { before: found[at - 1], after: at < 0 ? found[0] : found[at + 1] };
    const place = at < 0 ? "" : `${at + 1} of ${found.length}`;
    const walk = el("nav", { class: "walk", "aria-label": "Rollouts" },
      el("a", { href: "#rollouts", "aria-keyshortcuts": "Escape", title: "Escape", text: "← all rollouts" }),
      link(this.beside.before, "previous", "ArrowLeft"), link(this.beside.after, "next", "ArrowRight"), el("span", { class: "dim end", text: place }));
    this.page.replaceChildren(...rolloutPage(this.data, session, walk).flat());
    document.title = `${session.id} · ${this.title}`;
    window.scrollTo({ top: 0, behavior: "instant" });
    this.page.querySelector("h1").focus({ preventScroll: true });
  }

  close() {
    this.page.replaceChildren();
    document.title = this.title;
    window.scrollTo({ top: this.scroll, behavior: "instant" });
  }

  key(event) {
    if (this.page.hidden || event.altKey || event.ctrlKey || event.metaKey || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    if (event.key === "Escape") location.hash = "#rollouts";
    if (event.key === "ArrowLeft" && this.beside.before) location.hash = address(this.beside.before);
    if (event.key === "ArrowRight" && this.beside.after) location.hash = address(this.beside.after);
  }
}

const address = (session) => `#/rollout/${encodeURIComponent(session.id)}`;
const link = (session, text, key) => (session ? el("a", { href: address(session), "aria-keyshortcuts": key, title: key, text }) : el("span", { class: "dim", text }));

main();
