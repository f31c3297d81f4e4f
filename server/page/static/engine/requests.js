// The requests that were seen, the latest first, and the life of one.
import { make } from "../shared/dom.js";
import { count, duration, plural, shortened, words } from "./format.js";

const SHOWN = 100;
const HEADS = ["request", "class", "tenant", "state", "prompt", "output", "queued", "first token", "between tokens"];

/** Where a sequence is: queued, prefill, decode, or why it ended. */
export function stateOf(span) {
  if (span.ended !== null) return words(span.outcome);
  if (span.first_token !== null) return "decode";
  return span.started !== null ? "prefill" : "queued";
}

/** Seconds of its stages; null for what has not been. `now` ends what goes on. */
export function stagesOf(span, now) {
  const end = span.ended ?? now;
  const started = span.started ?? end, first = span.first_token ?? end;
  return {
    queued: started - span.arrival, prefill: span.started === null ? null : first - started,
    decode: span.first_token === null ? null : end - first, first: span.first_token === null ? null : span.first_token - span.arrival,
    between: span.first_token !== null && span.tokens > 1 ? (end - span.first_token) / (span.tokens - 1) : null, all: end - span.arrival,
  };
}

export class Requests {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.rows = new Map(); // id -> {row, cells, button}
    this.body = make("tbody");
    this.filter = make("input", { type: "search", id: "request-filter", placeholder: "id, class, tenant, state", oninput: () => this.show() });
    this.rest = make("p", { class: "quiet-text" });
    this.life = new Life(record, view);
    this.element = make("section", { class: "panel wide", "aria-labelledby": "requests-title" },
      make("div", { class: "panel-head" }, make("h2", { id: "requests-title" }, "Requests"), make("label", { for: "request-filter" }, "Filter"), this.filter),
      this.life.element,
      make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "List of requests" },
        make("table", { class: "requests" }, make("thead", {}, make("tr", {}, HEADS.map((head) => make("th", { scope: "col" }, head)))), this.body)),
      this.rest);
  }

  show() {
    const wanted = this.filter.value.trim().toLowerCase();
    const now = this.record.samples.at(-1)?.clock ?? 0;
    const all = [...this.record.spans.values()].reverse();
    const found = wanted ? all.filter((span) => [span.id, span.service_class, span.tenant, stateOf(span)].some((text) => text.toLowerCase().includes(wanted))) : all;
    const shown = this.held() ? found.filter((span) => this.rows.has(span.id)) : found.slice(0, SHOWN);
    const kept = new Set(shown.map((span) => span.id));
    for (const [id, { row }] of this.rows) if (!kept.has(id)) { row.remove(); this.rows.delete(id); }
    // Rows that are there stay where they are, or the focus in them would be lost: new ones are put between them.
    let next = this.body.firstChild;
    for (const span of shown) {
      const { row, cells, button } = this.rowOf(span.id);
      if (row === next) next = next.nextSibling;
      else this.body.insertBefore(row, next);
      const stages = stagesOf(span, now);
      const texts = [words(span.service_class), span.tenant || "–", stateOf(span), count(span.prompt_tokens), count(span.tokens), duration(stages.queued), duration(stages.first), duration(stages.between)];
      texts.forEach((text, place) => { if (cells[place].textContent !== text) cells[place].textContent = text; });
      const chosen = this.view.chosen === span.id;
      row.classList.toggle("chosen", chosen);
      button.setAttribute("aria-pressed", String(chosen));
    }
    const newer = shown.length ? found.indexOf(shown[0]) : 0;
    const more = found.length - shown.length - newer;
    this.rest.textContent = newer ? `${plural(newer, "newer one is", "newer ones are")} listed when you leave the list.` : !all.length ? "No request was seen yet." : !found.length ? "None of them is like that." : more ? `${count(more)} earlier ones are not listed.` : "";
    this.life.show(now);
  }

  /** Whether somebody is in the list: then no row comes or goes under the pointer. */
  held() {
    return this.rows.size > 0 && (this.body.matches(":hover") || this.body.contains(document.activeElement));
  }

  rowOf(id) {
    if (!this.rows.has(id)) {
      const button = make("button", { class: "quiet", type: "button", "aria-pressed": "false", title: id }, shortened(id));
      const cells = HEADS.slice(1).map(() => make("td"));
      const row = make("tr", { onclick: () => { this.view.choose(id); } }, make("th", { scope: "row" }, button), cells);
      this.rows.set(id, { row, cells, button });
    }
    return this.rows.get(id);
  }
}

/** One request from its arrival to its end. */
class Life {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.title = make("h3");
    this.parts = ["queued", "prefill", "decode"].map((name) => [name, make("div", { class: `part ${name}` }, make("span", {}, name))]);
    this.bar = make("div", { class: "bar life", role: "img" }, this.parts.map(([, part]) => part));
    this.facts = make("p", { class: "facts" });
    this.element = make("div", { class: "life-of", hidden: true },
      make("div", { class: "panel-head" }, this.title,
        make("button", { type: "button", onclick: () => this.look() }, "Show in the timeline"),
        make("button", { type: "button", onclick: () => view.choose(view.chosen) }, "Close")),
      this.bar, this.facts);
  }

  look() {
    const span = this.record.spans.get(this.view.chosen);
    if (!span) return;
    this.view.pause();
    this.view.turn = null;
    this.view.end = Math.min(this.record.samples.at(-1).clock, (span.started ?? span.arrival) + 0.9 * this.view.seconds);
    this.view.changed();
  }

  show(now) {
    const span = this.record.spans.get(this.view.chosen);
    this.element.hidden = !span;
    if (!span) return;
    const stages = stagesOf(span, now);
    this.title.textContent = span.id;
    for (const [name, part] of this.parts) {
      part.style.setProperty("flex-grow", String(Math.max(1, 1e6 * (stages[name] ?? 0)))); // below 1 in all they would not fill the bar
      part.hidden = stages[name] === null;
      part.title = `${name} ${duration(stages[name])}`;
    }
    const said = [`queued ${duration(stages.queued)}`, `prefill ${duration(stages.prefill)}`, `decode ${duration(stages.decode)}`];
    this.bar.setAttribute("aria-label", said.join(", "));
    const told = [
      `${words(span.service_class)}${span.tenant ? ` of ${span.tenant}` : ""}`, stateOf(span), `${count(span.prompt_tokens)} prompt and ${count(span.tokens)} output tokens`,
      ...said, `first token after ${duration(stages.first)}`, `${duration(stages.between)} between tokens`, `${duration(stages.all)} in all`,
    ];
    if (span.preemptions) told.push(`preempted ${count(span.preemptions)} times`);
    if (span.ended === null && span.pages) told.push(`${count(span.pages)} pages`);
    this.facts.textContent = told.join(" · ");
  }
}
