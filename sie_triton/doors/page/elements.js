// Make and change elements. Text from the server stays text: nothing here reads markup.

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Change the text only if it differs, so that a selection survives.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Return a table with these column titles; each row is a list of cells, and the first one names it.
export function table(titles, rows, attributes = {}) {
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
  const body = rows.map(([name, ...cells]) =>
    element("tr", {}, element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", {}, cell))),
  );
  const made = element("table", attributes, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "scrolled" }, made);
}

const SVG = "http://www.w3.org/2000/svg";

export function emptyLine() {
  const svg = document.createElementNS(SVG, "svg");
  const attributes = { class: "line", viewBox: "0 0 60 20", preserveAspectRatio: "none", "aria-hidden": "true" };
  for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
  svg.append(document.createElementNS(SVG, "path"));
  return svg;
}

// The last values of a figure, of which unknown ones are null.
export class Series {
  static LENGTH = 60;

  constructor() {
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > Series.LENGTH) this.values.shift();
  }

  // Draw the values into an SVG of 60 × 20 units, the newest at its right end.
  draw(svg) {
    const highest = Math.max(1e-9, ...this.values);
    const start = Series.LENGTH - this.values.length;
    let path = "";
    this.values.forEach((value, i) => {
      if (value === null) return;
      const isFirst = i === 0 || this.values[i - 1] === null;
      path += `${isFirst ? "M" : "L"}${start + i + 0.5} ${(18.5 - (17 * value) / highest).toFixed(2)}`;
    });
    svg.firstElementChild.setAttribute("d", path);
  }
}
