// Elements without a framework: make("button", {class: "primary", onclick: send}, "Send").

/** An element with attributes (`on...` are listeners, null and false are left out, true is the bare name) and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Text that a screen reader says, politely, when it has finished what it says now. */
export function announcer() {
  const region = make("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
  document.body.append(region);
  return (text) => { region.textContent = text; };
}
