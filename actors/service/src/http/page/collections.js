// Collections, their documents and passages.

import { ApiError, DEFAULT_COLLECTION, at, events, get, remove, token } from "./api.js";
import { confirmed, count, counted, failure, field, h, parted, swap, table, toast } from "./dom.js";
import { action, change, live } from "./live.js";
import { uploads } from "./upload.js";

const PAGE = 200;

export async function collections(view) {
  const [collection, document] = view.names;
  if (document) return one(view, collection, document);
  if (collection) return documents(view, collection);
  return all(view);
}

async function all(view) {
  const { content, signal } = view;
  const list = h("div");
  const known = h("datalist", { id: "known-collections" });
  let isFirst = false;
  await live(view, list, async () => {
    const { data } = await get("/v1/collections", signal);
    isFirst = data.length === 0;
    // Those that the field takes: another tenant's are added to on their own page.
    known.replaceChildren(...data.filter(({ name }) => !name.includes("/")).map(({ name }) => h("option", { value: name })));
    const row = ({ name, documents: files, passages, damaged }) => [
      [h("a", { href: `#/collections/${encodeURIComponent(name)}` }, name), damaged ? h("p", { class: "hint" }, `Damaged: ${damaged}`) : ""], count(files), count(passages),
      deletion(view, name, `the collection ${name}, its ${counted(files, "document")} and their KV`, at`/v1/collections/${name}`)];
    return data.length ? table("Collections", ["~collection", "#documents", "#passages", ""], data.map(row), true) : h("p", { class: "quiet" }, "There is none yet.");
  });
  const name = h("input", {
    value: isFirst ? DEFAULT_COLLECTION : "", required: true, maxlength: 64, pattern: "[A-Za-z0-9._\\-]+",
    list: "known-collections", autocomplete: "off", placeholder: "name",
  });
  content.replaceChildren(h("h1", {}, "Collections"), list,
    h("h2", {}, "Add files"), uploads(() => into(name), [field("Into the collection", name), known]));
}

/** The collection that the field names, or what is wrong with that. */
function into(input) {
  const isNamed = input.checkValidity();
  input.setAttribute("aria-invalid", !isNamed);
  if (isNamed) return { collection: input.value };
  input.focus();
  return { wrong: input.value ? `A collection's name has letters, digits, dots, dashes and underscores, not ${input.value}.` : "Name the collection that they go into, then press Upload." };
}

/** A button that deletes, for the owner. `more`: what else is to be known before. */
function deletion(view, name, what, path, more = "") {
  if (!token.get()) return "";
  return action({ class: "small danger", "aria-label": `Delete ${name}` }, "Delete …", async () => {
    if (!(await confirmed(`Delete ${what}? This cannot be undone.${more}`, "Delete", view.signal))) return;
    const { entries_removed: entries, jobs_cancelled: jobs } = await change(() => remove(path));
    const also = jobs ? ` ${counted(jobs, "unfinished ingest")} that would have brought it back ${jobs === 1 ? "was" : "were"} cancelled.` : "";
    toast(`${name} is deleted, and ${counted(entries, "entry")} of its KV.${also}`);
  });
}

async function documents(view, collection) {
  const { content, query, signal } = view;
  const offset = Number(query.get("offset")) || 0;
  const here = `#/collections/${encodeURIComponent(collection)}`;
  const list = h("div");
  const warm = token.get() ? warming(view, collection) : "";
  const wanted = filter();
  const read = `${at`/v1/collections/${collection}/documents`}?offset=${offset}&limit=${PAGE}`;
  await live(view, list, async () => {
    const found = await get(read, signal).catch((error) => {
      if (error.isNoCollection) return null;
      throw error;
    });
    if (!found) return h("p", { class: "hint" }, `There is no collection ${collection}. Files that you add here begin it; `, h("a", { href: "#/collections" }, "all that are there"), ".");
    const { data, has_more: more } = found;
    const row = (document) => {
      const { id, source, passages } = document;
      const name = called(document);
      const again = isOnDisk(source) ? " An ingest of its file adds it again." : "";
      return [h("a", { dir: "auto", href: `${here}/${encodeURIComponent(id)}` }, name), parted(source ?? ""), count(passages),
        deletion(view, name, `${name} and its KV`, at`/v1/collections/${collection}/documents/${id}`, again)];
    };
    // The service has them in the order of their ids, which nobody knows.
    const rows = data.toSorted((one, other) => ORDER.compare(called(one), called(other))).map((document) => ({ text: `${called(document)} ${document.source ?? ""}`, cells: row(document) }));
    const isPart = offset > 0 || more;
    return [
      rows.length ? wanted.over(rows, `Documents ${offset + 1} to ${offset + rows.length}${isPart ? ", sorted by name on this page" : ""}`) : h("p", { class: "quiet" }, offset ? "There are no more." : "There is none in it."),
      h("div", { class: "row" },
        offset > 0 && h("a", { href: `${here}?offset=${Math.max(0, offset - PAGE)}` }, "Earlier"),
        more && h("a", { href: `${here}?offset=${offset + Math.max(1, data.length)}` }, "More")),
      warm];
  });
  content.replaceChildren(h("h1", {}, h("a", { href: "#/collections" }, "Collections"), ` / ${collection}`), list,
    h("h2", {}, "Add files"), uploads(() => ({ collection })));
}

const ORDER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function called({ id, title, source }) {
  return title || source || id;
}

/** A source that names a file of the machine that serves, as an ingest does; an upload has the file's name alone. */
function isOnDisk(source) {
  return /^(\/|[A-Za-z]:\\)/.test(source ?? "");
}

/** A field for words, and the documents that have all of them in title or source. What was typed stays when they are read again. */
function filter() {
  let [rows, caption] = [[], ""];
  const input = h("input", { type: "search", autocomplete: "off", oninput: () => draw() });
  const place = h("div");
  const draw = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fit = rows.filter(({ text }) => words.every((word) => text.toLowerCase().includes(word)));
    const known = words.length ? `${caption}: ${count(fit.length)} with ${input.value.trim()}` : caption;
    swap(place, fit.length ? table(known, ["~document", "~source", "#passages", ""], fit.map(({ cells }) => cells)) : h("p", { class: "quiet" }, `None of ${caption.toLowerCase()} has ${input.value.trim()}.`));
  };
  const element = h("div", {}, h("div", { class: "row" }, field("Filter by title or source", input)), place);
  const over = (found, what) => {
    [rows, caption] = [found, what];
    draw();
    return element;
  };
  return { over };
}

async function one({ content, query, signal }, collection, id) {
  const { title, source, passages } = await get(at`/v1/collections/${collection}/documents/${id}`, signal);
  const cited = query.get("passage");
  const texts = passages.map((passage) => h("p", { dir: "auto", class: `card passage ${passage.text === cited ? "cited" : ""}`, "aria-label": `Passage ${passage.ordinal + 1}` }, passage.text));
  content.replaceChildren(
    h("h1", {}, h("a", { href: "#/collections" }, "Collections"), " / ", h("a", { href: `#/collections/${encodeURIComponent(collection)}` }, collection), " / ", h("bdi", {}, title || id)),
    h("p", { class: "quiet" }, source ? [parted(source), " · "] : "", counted(passages.length, "passage")), ...texts);
  texts.find((text) => text.classList.contains("cited"))?.scrollIntoView({ block: "center" });
}

/** Computes a collection's entries ahead, with its progress as long as the view is shown. */
function warming(view, collection) {
  const place = h("div", { class: "grows" });
  const button = action({}, "Read it ahead (warm up)", async () => {
    const listening = new AbortController();
    let isBegun = false;
    // Once it is begun, the job goes on by itself; the view Jobs has it.
    const leave = () => isBegun && listening.abort();
    view.signal.addEventListener("abort", leave);
    const bar = h("progress", { "aria-label": "Warming" });
    place.replaceChildren(bar);
    try {
      await change(async () => {
        for await (const event of events("/v1/cache/warm", { collection }, listening.signal)) {
          isBegun = true;
          if (view.signal.aborted) return;
          const progress = event.progress ?? event.finished;
          if (progress?.passages_total) {
            bar.max = progress.passages_total;
            bar.value = progress.passages_done;
          }
          if (event.finished) place.replaceChildren(` ${count(progress.entries_computed)} computed, ${count(progress.entries_skipped)} were there`);
        }
      });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      place.replaceChildren(failure(error));
      if (view.signal.aborted) toast(error.message);
    }
  });
  return h("div", { class: "row" }, button, place);
}
