// The engine page: a feed fills a record, a view looks at a part of it, and everything shows the view.
import { announcer, make } from "../shared/dom.js";
import { askKey } from "../shared/key.js";
import { themeButton } from "../shared/theme.js";
import { Failure } from "./failure.js";
import { Feed } from "./feed.js";
import { Figures } from "./figures.js";
import { legend } from "./legend.js";
import { forgetColours } from "./paint.js";
import { EventsPanel, PacePanel, PagesPanel, ProgramsPanel, QueuePanel } from "./panels.js";
import { Record } from "./record.js";
import { Requests } from "./requests.js";
import { Strips } from "./strips.js";
import { TextView } from "./text_view.js";
import { Timeline } from "./timeline.js";
import { Toolbar } from "./toolbar.js";
import { describe } from "./turns.js";
import { View } from "./view.js";

const HINT = "Point at a step, or focus the timeline and use the arrow keys.";

class Page {
  constructor() {
    this.record = new Record();
    this.view = new View(this.record, () => this.changed());
    this.pointed = null;
    this.trouble = "";
    this.drawing = 0;
    this.dirty = { panels: true };
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.feed = new Feed((frame) => this.took(frame), (text) => { this.trouble = text; this.changed(); });
    this.timeline = new Timeline(this.record, this.view, (turn) => { this.pointed = turn; this.tellTurn(); });
    this.strips = new Strips(this.record, this.view);
    this.figures = new Figures(this.record, this.view);
    this.requests = new Requests(this.record, this.view);
    this.text = new TextView(this.record, this.view);
    this.toolbar = new Toolbar(this.view, this.feed);
    this.failure = new Failure(announcer());
    this.detail = make("p", { class: "detail" }, HINT);
    this.moment = [new QueuePanel(), new PagesPanel(), new PacePanel(this.record, this.view), new EventsPanel(this.record, this.view), new ProgramsPanel()];
    this.build();
    this.watchStyle();
    this.feed.open();
  }

  build() {
    const links = [make("a", { href: "./" }, "Chat"), make("a", { href: "engine", "aria-current": "page" }, "Engine")];
    const key = make("button", { type: "button", class: "quiet", onclick: async () => { if (await askKey("Watching the engine takes an admin key, where the server has keys.")) this.feed.choose(""); } }, "Key");
    document.querySelector("#engine").append(
      make("header", { class: "top" }, make("h1", {}, "jaxserve"), make("nav", { "aria-label": "Pages" }, links), make("span", { class: "space" }), key, themeButton()),
      make("main", {}, this.failure.element, this.figures.element,
        make("section", { class: "panel wide", "aria-labelledby": "timeline-title" },
          make("div", { class: "panel-head" }, make("h2", { id: "timeline-title" }, "Timeline"), this.toolbar.element),
          this.timeline.element, legend(), this.detail, this.strips.element),
        make("div", { class: "panels" }, this.moment.map((panel) => panel.element)), this.requests.element, this.text.element));
  }

  watchStyle() {
    const again = () => { forgetColours(); this.changed(); };
    new MutationObserver(again).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    new ResizeObserver(() => this.changed()).observe(this.timeline.element);
    document.addEventListener("visibilitychange", () => this.changed());
  }

  took(frame) {
    const known = this.record.turns.at(-1)?.ended ?? 0;
    this.record.take(frame);
    this.view.heard = performance.now();
    if (this.view.chosen !== null && !this.record.spans.has(this.view.chosen)) this.view.chosen = null;
    // While it is paused the list of requests and the state of the feed still change, and what was not over when it was paused.
    this.changed(this.view.live || known < this.view.end);
  }

  /** Something else is to be seen: draw it with the next frame of the screen. */
  changed(canvases = true) {
    this.dirty.canvases ||= canvases;
    this.dirty.panels = true;
    if (!this.drawing && !document.hidden) this.drawing = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.drawing = 0;
    if (this.dirty.canvases) {
      this.timeline.draw();
      this.strips.draw();
    }
    if (this.dirty.panels) this.showPanels();
    this.dirty = { panels: false, canvases: false };
    if (this.moves()) {
      this.dirty.canvases = true;
      this.drawing = requestAnimationFrame(() => this.draw());
    }
  }

  /** Whether the timeline goes on between two frames of the feed. */
  moves() {
    const { latest } = this.record;
    if (!this.view.live || this.still.matches || document.hidden || !latest?.now || latest.stalled) return false;
    const busy = latest.turns.length > 0 || this.record.turns.at(-1)?.ended > latest.clock - this.view.seconds;
    return busy && performance.now() - this.view.heard < 1000 * latest.interval;
  }

  showPanels() {
    const { latest } = this.record;
    this.failure.show(latest, this.trouble);
    this.toolbar.show(latest, this.trouble);
    this.figures.show();
    const sample = this.record.sampleAt(this.view.moment());
    if (sample) for (const panel of this.moment) panel.show(sample);
    this.requests.show();
    this.text.show(!this.view.live);
    this.timeline.tell();
    this.tellTurn();
  }

  tellTurn() {
    const turn = this.pointed ?? this.view.turn;
    const text = turn ? describe(turn) : HINT;
    if (this.detail.textContent !== text) this.detail.textContent = text;
  }
}

new Page();
