// Small things that the browser remembers for both pages. Where it may not (private windows), they last as long as the page.

const PREFIX = "jaxserve.";
const unsaved = new Map();

export function setting(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? unsaved.get(name) ?? otherwise : JSON.parse(text);
  } catch {
    return unsaved.get(name) ?? otherwise;
  }
}

export function setSetting(name, value) {
  unsaved.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch { /* it stays in `unsaved` */ }
}
