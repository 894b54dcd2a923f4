// Collections, their documents and passages.

import { ApiError, at, events, get, remove, token } from "/page/api.js";
import { confirmed, count, counted, failure, field, h, parted, table, toast } from "/page/dom.js";
import { action, change, live } from "/page/live.js";
import { uploads } from "/page/upload.js";

const PAGE = 50;
/** Where files go as long as nobody named a collection. */
const FIRST = "default";

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
    const row = ({ name, documents: files, passages }) => [
      h("a", { href: `#/collections/${encodeURIComponent(name)}` }, name), count(files), count(passages),
      deletion(view, name, `the collection ${name}, its ${counted(files, "document")} and their KV`, at`/v1/collections/${name}`)];
    return data.length ? table("Collections", ["~collection", "#documents", "#passages", ""], data.map(row)) : h("p", { class: "quiet" }, "There is none yet.");
  });
  const name = h("input", {
    value: isFirst ? FIRST : "", required: true, maxlength: 64, pattern: "[A-Za-z0-9._\\-]+",
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

/** A button that deletes, for the owner. */
function deletion(view, name, what, path) {
  if (!token.get()) return "";
  return action({ class: "small danger", "aria-label": `Delete ${name}` }, "Delete …", async () => {
    if (!(await confirmed(`Delete ${what}? This cannot be undone.`, "Delete", view.signal))) return;
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
  await live(view, list, async () => {
    const { data, has_more: more } = await get(`${at`/v1/collections/${collection}/documents`}?offset=${offset}&limit=${PAGE}`, signal);
    const row = ({ id, title, source, passages }) => [
      h("a", { href: `${here}/${encodeURIComponent(id)}` }, title || source || id), parted(source ?? ""), count(passages),
      deletion(view, title || id, `${title || id} and its KV`, at`/v1/collections/${collection}/documents/${id}`)];
    return [
      data.length ? table(`Documents ${offset + 1} to ${offset + data.length}`, ["~document", "~source", "#passages", ""], data.map(row)) : h("p", { class: "quiet" }, offset ? "There are no more." : "There is none in it."),
      h("div", { class: "row" },
        offset > 0 && h("a", { href: `${here}?offset=${Math.max(0, offset - PAGE)}` }, "Earlier"),
        more && h("a", { href: `${here}?offset=${offset + PAGE}` }, "More"))];
  });
  content.replaceChildren(h("h1", {}, h("a", { href: "#/collections" }, "Collections"), ` / ${collection}`), list,
    token.get() ? warming(view, collection) : "",
    h("h2", {}, "Add files"), uploads(() => ({ collection })));
}

async function one({ content, query, signal }, collection, id) {
  const { title, source, passages } = await get(at`/v1/collections/${collection}/documents/${id}`, signal);
  const cited = query.get("passage");
  const texts = passages.map((passage) => h("p", { class: `card passage ${passage.text === cited ? "cited" : ""}`, "aria-label": `Passage ${passage.ordinal + 1}` }, passage.text));
  content.replaceChildren(
    h("h1", {}, h("a", { href: "#/collections" }, "Collections"), " / ", h("a", { href: `#/collections/${encodeURIComponent(collection)}` }, collection), ` / ${title || id}`),
    h("p", { class: "quiet" }, source ?? "", ` ${counted(passages.length, "passage")}`), ...texts);
  texts.find((text) => text.classList.contains("cited"))?.scrollIntoView({ block: "center" });
}

/** Computes a collection's entries ahead, with its progress as long as the view is shown. */
function warming(view, collection) {
  const place = h("div", { class: "grows" });
  const button = action({}, "Compute its KV ahead", async () => {
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
