// The tokens of an answer, each with its probability and what else could have stood there; by mouse and by arrow keys.
import { make } from "../shared/dom.js";

const ROW = 200; // tokens laid out together
const KEYS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
const LEAST = 0.01; // percent that are told as a number
const visible = (token) => token.replace(/\n/g, "↵\n").replace(/\t/g, "→\t");
const named = (token) => token.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/ /g, "␣") || "(nothing)";

function percent(logprob) {
  const share = Math.exp(logprob) * 100;
  if (share > 100 - LEAST) return `> ${100 - LEAST} %`;
  return share < LEAST ? `< ${LEAST} %` : `${share.toFixed(2)} %`;
}

/** The view of a message's log-probabilities: [token, logprob, [[token, logprob], ...]] each. */
export function tokenView(logprobs) {
  const told = make("div", { class: "token-told", role: "status", hidden: true });
  const strip = make("div", { class: "tokens", role: "listbox", "aria-label": "Tokens: arrow keys go from one to the next", "aria-orientation": "horizontal" });
  for (let start = 0; start < logprobs.length; start += ROW) {
    const row = make("div", { class: "token-row", role: "presentation" });
    logprobs.slice(start, start + ROW).forEach(([token, logprob], offset) => row.append(tokenOf(token, logprob, start + offset)));
    strip.append(row);
  }
  const all = [...strip.querySelectorAll(".token")];
  let current = null;
  function show(element) {
    current?.setAttribute("tabindex", "-1");
    current?.setAttribute("aria-selected", "false");
    current = element;
    current.setAttribute("tabindex", "0");
    current.setAttribute("aria-selected", "true");
    told.replaceChildren(...detail(logprobs[Number(element.dataset.index)]));
    told.hidden = false;
  }
  strip.addEventListener("mouseover", (event) => event.target.classList.contains("token") && show(event.target));
  strip.addEventListener("focusin", (event) => event.target.classList.contains("token") && show(event.target));
  strip.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS) && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const to = { Home: 0, End: all.length - 1 }[event.key] ?? Number(current?.dataset.index ?? 0) + KEYS[event.key];
    all[Math.max(0, Math.min(all.length - 1, to))]?.focus();
  });
  all[0]?.setAttribute("tabindex", "0");
  return make("div", { class: "token-view" }, strip, told);
}

function tokenOf(token, logprob, index) {
  const label = `${named(token)}, ${percent(logprob)}`;
  const element = make("span", { class: "token", role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": label, "data-index": index }, visible(token));
  element.style.setProperty("--doubt", `${Math.round((1 - Math.exp(logprob)) * 70)}%`);
  return element;
}

function detail([token, logprob, top]) {
  const rows = top.some(([other]) => other === token) ? top : [[token, logprob], ...top];
  const list = make("ul", {});
  for (const [other, value] of rows) {
    const bar = make("span", { class: "bar" });
    bar.style.setProperty("--share", `${Math.exp(value) * 100}%`);
    list.append(make("li", { class: other === token ? "taken" : null }, make("code", {}, named(other)), bar, make("span", { class: "share" }, percent(value))));
  }
  return [make("div", { class: "token-head" }, make("code", {}, named(token)), ` ${percent(logprob)}`), list];
}
