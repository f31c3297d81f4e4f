// Line drawings for buttons; their words are the buttons' own.

const PATHS = {
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  search: "M11 4a7 7 0 1 0 0 14a7 7 0 1 0 0-14M20 20l-4-4",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  send: "M12 19V5M6 11l6-6l6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 13l4 4L19 7",
  warn: "M12 4l9 16H3zM12 10v4M12 17v.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  left: "M14 6l-6 6l6 6",
  right: "M10 6l6 6l-6 6",
  down: "M12 5v14M6 13l6 6l6-6",
  tokens: "M4 6h7v5H4zM14 6h6v5h-6zM4 14h4v5H4zM11 14h9v5h-9z",
  export: "M12 15V4M8 8l4-4l4 4M5 13v7h14v-7",
  import: "M12 4v11M8 11l4 4l4-4M5 15v5h14v-5",
  help: "M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2M12 17.5v.5",
  close: "M6 6l12 12M18 6L6 18",
};
const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}
