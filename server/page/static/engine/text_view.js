// The same as text, for who cannot see the timeline or wants to copy it: changed when the view stands still, or every few seconds.
import { make } from "../shared/dom.js";
import { count, duration } from "./format.js";
import { phasesOf } from "./turns.js";
import { lately } from "./figures.js";

const ROWS = 20, EVERY_MS = 3000;
const HEADS = ["turn", "step", "rows", "tokens", "of prompts", "drafts", "plan", "launch", "wait", "apply", "emit", "device", "running", "waiting", "free pages"];

export class TextView {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.body = make("tbody");
    this.shownAt = -Infinity;
    this.summary = make("p");
    this.element = make("details", { class: "panel wide", ontoggle: () => this.show(true) }, make("summary", {}, "The last turns as a table"), this.summary,
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Turns" },
        make("table", {}, make("thead", {}, make("tr", {}, HEADS.map((head) => make("th", { scope: "col" }, head)))), this.body)));
  }

  show(now = false) {
    if (!this.element.open || (!now && this.view.live && performance.now() - this.shownAt < EVERY_MS)) return;
    this.shownAt = performance.now();
    const turns = lately(this.record, this.view, 60).slice(-ROWS).reverse();
    this.summary.textContent = turns.length ? `${count(this.record.turns.length)} turns are kept; these are the last ${count(turns.length)} of ${this.view.live ? "them, renewed every few seconds" : "those before the moment that is looked at"}.` : "No turn was seen yet.";
    this.body.replaceChildren(...turns.map((turn) => {
      const phases = Object.fromEntries(phasesOf(turn).map(([name, from, to]) => [name, duration(to - from)]));
      const launched = turn.step >= 0;
      const cells = [launched ? turn.step : "–", ...[turn.rows, turn.tokens, turn.prefill, turn.drafts].map((value) => (launched ? count(value) : "–")),
        phases.plan, phases.launch, phases.wait, phases.apply, phases.emit, turn.collected >= 0 ? duration(turn.waited - turn.stepBegan) : "–",
        count(turn.running), count(turn.waiting), count(turn.pagesFree)];
      return make("tr", {}, make("th", { scope: "row" }, String(turn.number)), cells.map((cell) => make("td", {}, String(cell))));
    }));
  }
}
