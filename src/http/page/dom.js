// Elements without markup in strings: what a document says is text here, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** An HTML element: `h("a", { href }, "text")`. Attributes that begin with `on` are listeners. */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element. Sizes and colours are attributes or classes: the content security policy allows no inline styles. */
export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

export function ms(time) {
  if (time >= 1000) return `${(time / 1000).toFixed(2)} s`;
  return time >= 10 ? `${Math.round(time)} ms` : `${time.toFixed(1)} ms`;
}

export function count(number) {
  return number.toLocaleString("en");
}

/** `counted(2, "file")`: 2 files */
export function counted(number, what) {
  const many = what.endsWith("y") ? `${what.slice(0, -1)}ies` : `${what}s`;
  return `${count(number)} ${number === 1 ? what : many}`;
}

export function share(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function when(unixMs) {
  return new Date(unixMs).toLocaleString();
}

/** A table whose cells may be elements. Columns that begin with `#` hold numbers. */
export function table(caption, columns, rows) {
  const isNumber = columns.map((column) => column.startsWith("#"));
  const head = columns.map((column, at) => h("th", { scope: "col", class: isNumber[at] && "number" }, column.replace("#", "")));
  const body = rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: isNumber[at] && "number" }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** A label around its control. */
export function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** Says something for a few seconds. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.replaceChildren(h("p", {}, text));
  clearTimeout(place.timer);
  place.timer = setTimeout(() => place.replaceChildren(), 6000);
}

/** Asks before something is changed for good: true for yes. */
export function confirmed(question, verb) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": verb, onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); } },
      h("form", { method: "dialog" },
        h("p", {}, question),
        h("div", { class: "row" },
          h("button", { value: "no", autofocus: true }, "Cancel"),
          h("button", { value: "yes", class: "danger" }, verb))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function failure(error, again) {
  return h("div", { class: "failure", role: "alert" },
    h("p", {}, error.message),
    again && h("button", { onclick: again }, "Try again"));
}
