// Light, dark, or what the system has: a button that goes through them, and remembers.
import { make } from "./dom.js";
import { setting, setSetting } from "./settings.js";

const THEMES = ["system", "light", "dark"];

function apply(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function themeButton() {
  const button = make("button", { class: "quiet", onclick: () => show(THEMES[(THEMES.indexOf(current) + 1) % THEMES.length]) });
  let current = "system";
  function show(theme) {
    current = THEMES.includes(theme) ? theme : "system";
    apply(current);
    setSetting("theme", current);
    button.textContent = { system: "◐", light: "☀", dark: "☾" }[current];
    button.setAttribute("aria-label", `Colours: ${current}`);
    button.title = `Colours: ${current}`;
  }
  show(setting("theme", "system"));
  return button;
}
