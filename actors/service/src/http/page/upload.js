// Files on their way into a collection: chosen or dropped, sent one after another, and what became of each.

import { ApiError, at, get, upload } from "./api.js";
import { bytes, count, counted, h, swap, toast } from "./dom.js";
import { change } from "./live.js";

/** Files that a short message names. */
const NAMED = 3;
/** How often a file that takes long says how far it is. */
const TELL_MS = 2000;

/** What became of the files, collection by collection. It outlives the views: uploads go on when they are left. */
const report = h("div", { class: "report", "aria-live": "polite" });

/**
 * Where files are chosen or dropped. `into` answers their `collection`, or what is `wrong` as long as it is not known: they wait then, until
 * "Upload" is pressed. `before` is what asks for it.
 */
export function uploads(into, before) {
  let waiting = [];
  const told = h("p", { class: "told", role: "status" });
  const input = h("input", { type: "file", multiple: true, onchange: () => take([...input.files]) });
  const list = () => `${counted(waiting.length, "file")} (${bytes(waiting.reduce((sum, { size }) => sum + size, 0))}): ${some(waiting.map((file) => file.name))}`;
  const tell = (...what) => swap(told, ...what);

  function send() {
    if (waiting.length === 0) {
      tell("No file is chosen yet: choose some above, or drop them there.");
      input.focus();
      return;
    }
    const { collection, wrong } = into();
    if (wrong) {
      tell(`Not uploaded yet: ${list()}. ${wrong} `, forget);
      return;
    }
    const files = waiting;
    waiting = [];
    tell();
    change(() => sendAll(files, collection));
  }

  const forget = h("button", { type: "button", class: "small", onclick: () => { waiting = []; tell(); input.focus(); } }, "Forget them");

  function take(files, others = []) {
    // The same file chosen again is to be sent once.
    const names = new Set(files.map((file) => file.name));
    waiting = [...waiting.filter((file) => !names.has(file.name)), ...files];
    input.value = "";
    if (others.length) end(begin("Not taken:", others.map((folder) => `${folder}: a folder. Drop the files in it, or read it by ragstone ingest on the machine that serves.`)).section);
    if (waiting.length) send();
    else if (!others.length) tell("What was dropped is no file.");
  }

  const zone = h("div", { class: "drop" }, h("p", {}, "Drop files here: text, Markdown, HTML, PDF, Office, e-mail, CSV, JSON, source code."),
    // The browser's own words beside its button would say that no file is chosen while some wait.
    h("label", { class: "choose" }, "Choose files …", input));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    const { files, folders } = dropped(event.dataTransfer);
    take(files, folders);
  });
  for (const section of [...report.children]) {
    if (section.isTold) section.remove();
    else section.isTold = section.isEnded;
  }
  const submit = (event) => { event.preventDefault(); send(); };
  return h("form", { class: "upload", novalidate: true, onsubmit: submit }, zone,
    before && h("div", { class: "row" }, before, h("button", { class: "main" }, "Upload")), told, report);
}

/** Files and names of folders: a browser hands a folder over as if it were a file, which no upload can read. */
function dropped({ items }) {
  const found = { files: [], folders: [] };
  for (const item of items) {
    const file = item.kind === "file" ? item.getAsFile() : null;
    if (!file) continue;
    if (item.webkitGetAsEntry?.()?.isDirectory) found.folders.push(file.name);
    else found.files.push(file);
  }
  return found;
}

/** A part of the report. */
function begin(title, lines = []) {
  const list = h("ul", {}, lines.map((line) => h("li", {}, line)));
  const section = h("section", {}, h("p", {}, title), list);
  report.append(section);
  return { section, list };
}

/** Nothing more comes into a part of the report. It goes when the view in which it was seen is left. */
function end(section) {
  section.isEnded = true;
  section.isTold = report.isConnected;
}

async function sendAll(files, collection) {
  const { section, list } = begin(`Into ${collection}:`);
  const missed = [];
  for (const file of files) {
    const line = h("li");
    list.append(line);
    const stop = telling(line, `${file.name} (${bytes(file.size)})`, collection);
    const { text, isAdded } = await sendOne(file, collection);
    stop();
    line.textContent = `${file.name}: ${text}`;
    if (!isAdded) missed.push(file.name);
  }
  end(section);
  toast(missed.length ? `${count(missed.length)} of ${counted(files.length, "file")} not added to ${collection}: ${some(missed)}` : `${counted(files.length, "file")} added to ${collection}`);
}

/** Says now and then how far a file is: its passages are in the collection group by group. The answer ends it. */
function telling(line, what, collection) {
  const begun = Date.now();
  const passages = async () => (await get("/v1/collections")).data.find(({ name }) => name === collection)?.passages ?? 0;
  const before = passages().catch(() => null);
  const told = h("span", { "aria-live": "off" });
  let isOver = false;
  const timer = setInterval(async () => {
    const seconds = Math.round((Date.now() - begun) / 1000);
    const more = await passages().then(async (now) => now - ((await before) ?? now), () => 0);
    if (isOver) return;
    told.textContent = ` read and embedded, ${more > 0 ? `${counted(more, "passage")} so far, ` : ""}${count(seconds)} s`;
    line.append(told);
  }, TELL_MS);
  line.textContent = `${what} …`;
  return () => {
    isOver = true;
    clearInterval(timer);
  };
}

async function sendOne(file, collection) {
  try {
    return outcome(file, await upload(at`/v1/collections/${collection}/files/${file.name}`, file));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // The browser cannot send it, which looks as if nobody answered.
    const isGone = error.status === 0 && (await file.slice(0, 1).arrayBuffer().then(() => false, () => true));
    return { text: isGone ? "not added: it changed, or went, after it was chosen. Choose it again." : `not added: ${error.message}`, isAdded: false };
  }
}

/** What the service did with a file, in words. */
function outcome(file, { documents_added: added, documents_replaced: replaced, documents_unchanged: same, documents_empty: empty, passages_added: passages, passages_removed: removed, not_read: bad, left_out: out = [] }) {
  const documents = added + replaced;
  if (documents + same === 0) {
    const before = removed ? ` What was there of it before is removed (${counted(removed, "passage")}).` : "";
    return { text: `not added: ${file.size === 0 ? "the file is empty" : "there is no text in it"}.${before}`, isAdded: false };
  }
  const parts = [
    documents && `${counted(documents, "document")}, ${counted(passages, "passage")}`,
    same && `${count(same)} unchanged`,
    empty && `${count(empty)} without text`,
    bad && `not read: ${bad}`,
    out.length && `left out: ${out.join("; ")}`,
  ];
  return { text: parts.filter(Boolean).join(", "), isAdded: true };
}

/** A few of the names, and how many more there are. */
function some(names) {
  const more = names.length - NAMED;
  return names.slice(0, NAMED).join(", ") + (more > 0 ? ` and ${count(more)} more` : "");
}
