// Panels of the moment that is looked at: queue, pages, pace, guesses.
import { make } from "../shared/dom.js";
import { count, duration, percent, words } from "./format.js";
import { lately } from "./figures.js";
import { gaps, quantile } from "./turns.js";

function panel(name, ...children) {
  const id = `panel-${name.replaceAll(/\W+/g, "-").toLowerCase()}`;
  return make("section", { class: "panel", "aria-labelledby": id }, make("h2", { id }, name), ...children);
}

/** Replaces the rows of a table, or says that there are none. */
function fillTable(body, rows, none, columns) {
  body.replaceChildren(...(rows.length ? rows.map((cells) => make("tr", {}, cells.map((cell, place) => (place ? make("td", {}, cell) : make("th", { scope: "row" }, cell))))) : [make("tr", {}, make("td", { colspan: columns, class: "quiet-text" }, none))]));
}

function table(...heads) {
  const body = make("tbody");
  return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who waits" }, make("table", {}, make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))), body)), body];
}

/** Who waits, by class and tenant. */
export class QueuePanel {
  constructor() {
    [this.table, this.body] = table("class", "tenant", "waiting");
    this.rest = make("p", { class: "quiet-text" });
    this.element = panel("Queue", this.table, this.rest);
  }

  show(sample) {
    fillTable(this.body, sample.queues.map((one) => [words(one.service_class), one.tenant || "(none)", count(one.waiting)]), "Nothing waits.", 3);
    this.rest.textContent = sample.more_waiting ? `${count(sample.more_waiting)} more wait that are not listed.` : "";
  }
}

const OWNERS = [["running", "sequences"], ["cached", "cached prefixes"], ["free", "free"]];

/** Whose the pages are, and what the prefix cache finds. */
export class PagesPanel {
  constructor() {
    this.parts = Object.fromEntries(OWNERS.map(([name]) => [name, make("div", { class: `part ${name}` })]));
    this.bar = make("div", { class: "bar", role: "img" }, Object.values(this.parts));
    this.values = Object.fromEntries([...OWNERS.map(([name]) => name), "swapped", "hits"].map((name) => [name, make("dd", { "data-pages": name })]));
    const rows = [...OWNERS, ["swapped", "swapped out"], ["hits", "prefix hits"]];
    this.element = panel("Pages", this.bar, make("dl", { class: "list" }, rows.map(([name, label]) => make("div", {}, make("dt", { class: `key ${name}` }, label), this.values[name]))));
  }

  show({ pages, prefix_queries: queries, prefix_hits: hits }) {
    for (const [name] of OWNERS) {
      this.parts[name].style.setProperty("flex-grow", String(pages[name]));
      this.values[name].textContent = `${count(pages[name])} (${percent(pages.total ? pages[name] / pages.total : 0)})`;
    }
    this.values.swapped.textContent = pages.swap_total ? `${count(pages.swapped)} of ${count(pages.swap_total)}` : "no swap space";
    this.values.hits.textContent = `${percent(queries ? hits / queries : null)} of ${count(queries)} tokens`;
    this.bar.setAttribute("aria-label", OWNERS.map(([name, label]) => `${label} ${count(pages[name])}`).join(", ") + ` of ${count(pages.total)} pages`);
  }
}

/** The time between tokens that was promised, and what it was. */
export class PacePanel {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    const rows = [["promised", "promised"], ["kept", "can be kept"], ["median", "measured, median"], ["slow", "measured, 95 of 100"], ["broken", "promises broken lately"]];
    this.values = Object.fromEntries(rows.map(([name]) => [name, make("dd", { "data-pace": name })]));
    this.element = panel("Time between tokens", make("dl", { class: "list" }, rows.map(([name, label]) => make("div", {}, make("dt", {}, label), this.values[name]))));
  }

  show({ pace }) {
    const sorted = gaps(lately(this.record, this.view));
    const slow = quantile(sorted, 0.95);
    this.values.promised.textContent = pace.itl_target ? duration(pace.itl_target) : "nothing";
    this.values.kept.textContent = pace.itl_target ? duration(pace.itl_kept) : "–";
    this.values.median.textContent = duration(quantile(sorted, 0.5));
    this.values.slow.textContent = duration(slow);
    this.values.slow.classList.toggle("error", Boolean(pace.itl_target) && slow > pace.itl_target);
    this.values.broken.textContent = pace.due >= 0.5 ? percent(pace.broken / pace.due) : "none due";
  }
}

/** Programs and guesses. */
export class ProgramsPanel {
  constructor() {
    const rows = [["compiled_programs", "programs"], ["late_compiles", "compiled late"], ["bucket_misses", "bucket misses"], ["padding_tokens", "padding tokens"], ["guesses", "guesses right"]];
    this.values = Object.fromEntries(rows.map(([name]) => [name, make("dd", { "data-programs": name })]));
    this.element = panel("Programs and guesses", make("dl", { class: "list" }, rows.map(([name, label]) => make("div", {}, make("dt", {}, label), this.values[name]))));
  }

  show({ programs, speculation }) {
    for (const [name, value] of Object.entries(programs)) this.values[name].textContent = count(value);
    this.values.late_compiles.classList.toggle("error", programs.late_compiles > 0);
    const { method, draft_tokens: drafts, accepted_tokens: right } = speculation;
    this.values.guesses.textContent = method === "none" ? "no speculation" : `${percent(drafts ? right / drafts : null)} of ${count(drafts)} (${method})`;
  }
}

/** Preemptions by reason, and what happened last. */
export class EventsPanel {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.counts = make("p", { class: "quiet-text" });
    this.list = make("ol", { class: "events" });
    this.element = panel("Events", this.counts, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What happened" }, this.list));
    this.shown = "";
  }

  show(sample) {
    const reasons = Object.entries(sample.preemptions);
    this.counts.textContent = reasons.length ? `Since the start: ${reasons.map(([name, number]) => `${words(name)} ${count(number)}`).join(", ")}.` : "Nothing was preempted since the start.";
    const marks = this.record.marks.filter((mark) => mark.clock <= this.view.moment()).slice(-20).reverse();
    const key = marks.map((mark) => `${mark.clock} ${mark.text}`).join("\n");
    if (key === this.shown) return;
    this.shown = key;
    this.list.replaceChildren(...marks.map((mark) => make("li", { class: mark.kind }, make("time", {}, at(this.record, mark.clock)), " ", mark.text)));
  }
}

/** The time of day of a moment of the engine's clock. */
export function at(record, clock) {
  const sample = record.sampleAt(clock);
  if (!sample || !Number.isFinite(sample.unix)) return "–";
  return new Date(1000 * (sample.unix + clock - sample.clock)).toLocaleTimeString("en-GB");
}
