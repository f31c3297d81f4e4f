// Buttons: live or paused, step back and on, narrower and wider, which engine.
import { make } from "../shared/dom.js";
import { duration, plural } from "./format.js";

export class Toolbar {
  constructor(view, feed) {
    this.view = view;
    this.pause = make("button", { type: "button", class: "primary", onclick: () => (view.live ? view.pause() : view.resume()) }, "Pause");
    const button = (label, text, does) => make("button", { type: "button", "aria-label": label, title: label, onclick: does }, text);
    this.state = make("span", { class: "badge" });
    this.window = make("span", { class: "window" });
    this.engines = make("select", { "aria-label": "Engine", hidden: true, onchange: () => feed.choose(this.engines.value) });
    this.listed = "";
    this.element = make("div", { class: "toolbar", role: "group", "aria-label": "Timeline" }, this.state, this.pause,
      make("span", { class: "group" }, button("Oldest turn", "|‹", () => view.oldest()), button("Ten turns back", "«", () => view.step(-10)), button("One turn back", "‹", () => view.step(-1)),
        button("One turn on", "›", () => view.step(1)), button("Ten turns on", "»", () => view.step(10)), button("Newest turn", "›|", () => view.newest())),
      make("span", { class: "group" }, button("Shorter time", "+", () => view.zoomBy(-1)), this.window, button("Longer time", "−", () => view.zoomBy(1))),
      this.engines);
  }

  show(frame, trouble) {
    const { view } = this;
    this.pause.textContent = view.live ? "Pause" : "Live";
    const state = trouble || frame?.failure ? "no engine" : !frame ? "waiting" : frame.stalled ? "stands still" : view.live ? "live" : "paused";
    this.state.textContent = state;
    this.state.dataset.state = state;
    this.window.textContent = duration(view.seconds);
    this.showEngines(frame);
  }

  showEngines(frame) {
    const engines = frame?.engines ?? [];
    const listed = engines.map((one) => `${one.life} ${one.running}`).join();
    if (listed === this.listed || document.activeElement === this.engines) return;
    this.listed = listed;
    this.engines.hidden = engines.length < 2;
    this.engines.replaceChildren(...engines.map((one) => make("option", { value: one.life, selected: one.life === frame.engine }, `${one.model} ${one.life}: ${plural(one.running, "request")}`)));
  }
}
