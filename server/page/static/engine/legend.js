// What the colours of the timeline mean.
import { make } from "../shared/dom.js";
import { PHASES } from "./turns.js";

export function legend() {
  const entry = (kind, text) => make("li", {}, make("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text);
  const lane = (name, ...entries) => make("li", {}, name, make("ul", {}, entries));
  return make("ul", { class: "legend", "aria-label": "Colours" }, lane("host", ...PHASES.map((name) => entry(`phase-${name}`, name))),
    lane("device", entry("decode", "decode"), entry("prefill", "prefill")), lane("marks", entry("mark bad", "preempted"), entry("mark warn", "compiled")));
}
