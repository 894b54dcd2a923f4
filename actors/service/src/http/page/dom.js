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

/** Whether Enter was pressed to send. What ends an input method's composition is not: Safari says of that Enter nothing but the code 229. */
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
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

/** How a column's cells are set, by the mark before its name: numbers, or what may be long and without a space. */
const CELLS = { "#": "number", "~": "long" };

/**
 * A table whose cells may be elements. On a narrow screen each row is a block of its own, and still a row for who hears it. Where the heading
 * over it has the same words (`isTitled`), they are not written again.
 */
export function table(caption, columns, rows, isTitled = false) {
  const kinds = columns.map(([mark]) => CELLS[mark]);
  const names = columns.map((column, at) => (kinds[at] ? column.slice(1) : column));
  const head = names.map((name, at) => h("th", { scope: "col", role: "columnheader", class: kinds[at] }, name));
  const cells = (row) => row.map((cell, at) => h("td", { role: "cell", class: kinds[at], "data-label": names[at] }, cell));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { role: "table", "aria-label": isTitled && caption }, !isTitled && h("caption", {}, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, cells(row))))));
}

/** What is known of one thing: names and what they have. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Text that may be broken after what parts a path or a name, rather than anywhere. */
export function parted(text) {
  return text.split(/(?<=[/_,])/).flatMap((part, at) => (at ? [h("wbr"), part] : part));
}

const called = (element) => element.getAttribute("aria-label") ?? element.textContent;

/** Puts `children` into `place`. Who had the focus there has it afterwards on what is called the same, or else on what begins there. */
export function swap(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  if (!focused) return;
  const able = [...place.querySelectorAll("a, button, input, select, [tabindex]")];
  const next = able.find((element) => called(element) === called(focused)) ?? able[0] ?? document.getElementById("main");
  next.focus({ preventScroll: true });
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

/** Asks before something is changed for good: true for `verb`, false for `keep`. The question is the view's: it closes, unanswered, where that is left. */
export function confirmed(question, verb, signal, keep = "Cancel") {
  if (signal.aborted) return false;
  return new Promise((resolve) => {
    const end = (isYes) => { dialog.remove(); resolve(isYes); };
    const dialog = h("dialog", { "aria-label": verb, "aria-describedby": "question", onclose: () => end(dialog.returnValue === "yes") },
      h("form", { method: "dialog" },
        h("p", { id: "question" }, question),
        h("div", { class: "row" },
          h("button", { value: "no", autofocus: true }, keep),
          h("button", { value: "yes", class: "danger" }, verb))));
    signal.addEventListener("abort", () => end(false));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks for a name; null where none was given. As with `confirmed`, the question is the view's. */
export function named(question, name, verb, signal) {
  if (signal.aborted) return null;
  return new Promise((resolve) => {
    const end = (answer) => { dialog.remove(); resolve(answer); };
    const input = h("input", { value: name, required: true, maxlength: 200, dir: "auto", autofocus: true });
    const dialog = h("dialog", { "aria-label": verb, onclose: () => end(dialog.returnValue === "yes" ? input.value.trim() || null : null) },
      h("form", { method: "dialog" }, field(question, input),
        h("div", { class: "row" },
          h("button", { value: "yes", class: "main" }, verb),
          h("button", { value: "no", formnovalidate: true }, "Cancel"))));
    signal.addEventListener("abort", () => end(null));
    document.body.append(dialog);
    dialog.showModal();
    input.select();
  });
}

/** Copies text. Whether the browser lets the page do so: over plain HTTP from another machine some do it the old way alone. */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const [place, focused] = [h("textarea", { value: text, readonly: true, class: "away", "aria-label": "Text to copy" }), document.activeElement];
    document.body.append(place);
    place.select();
    const isDone = document.execCommand("copy");
    place.remove();
    focused?.focus();
    return isDone;
  }
}

/** How long something still takes, as people say it. */
export function left(seconds) {
  if (seconds < 120) return `about ${count(Math.round(seconds))} s left`;
  return seconds < 7200 ? `about ${Math.round(seconds / 60)} min left` : `about ${Math.round(seconds / 3600)} h left`;
}

export function failure(error, again) {
  return h("div", { class: "failure", role: "alert" },
    h("p", {}, error.message),
    again && h("button", { onclick: again }, "Try again"));
}
