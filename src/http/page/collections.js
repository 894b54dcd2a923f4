// Collections, their documents and passages; files come by drop.

import { at, events, get, remove, token, upload } from "/page/api.js";
import { bytes, confirmed, count, counted, failure, field, h, table, toast } from "/page/dom.js";

const PAGE = 50;

export async function collections(view) {
  const [collection, document] = view.names;
  if (document) return one(view, collection, document);
  if (collection) return documents(view, collection);
  return all(view);
}

async function all({ content, signal }) {
  const list = h("div");
  const refresh = async () => {
    const { data } = await get("/v1/collections", signal);
    const row = ({ name, documents: files, passages }) => [
      h("a", { href: `#/collections/${encodeURIComponent(name)}` }, name), count(files), count(passages),
      deletion(name, `the collection ${name}, its ${counted(files, "document")} and their KV`, at`/v1/collections/${name}`, refresh)];
    list.replaceChildren(data.length ? table("Collections", ["collection", "#documents", "#passages", ""], data.map(row)) : h("p", { class: "quiet" }, "There is none yet."));
    return data;
  };
  const data = await refresh();
  const name = h("input", { value: data.length ? "" : "notes", required: true, pattern: "[A-Za-z0-9_\\-]+", placeholder: "name" });
  content.replaceChildren(h("h1", {}, "Collections"), list,
    h("h2", {}, "Add files"), dropzone(() => (name.reportValidity() ? name.value : null), refresh, h("div", { class: "row" }, field("Into the collection", name))));
}

/** A button that deletes, for the owner. */
function deletion(name, what, path, after) {
  if (!token.get()) return "";
  const act = async () => {
    if (!(await confirmed(`Delete ${what}? This cannot be undone.`, "Delete"))) return;
    try {
      const { entries_removed: entries, jobs_cancelled: jobs } = await remove(path);
      toast(`${name} is deleted, and ${counted(entries, "entry")} of its KV${jobs ? `; ${counted(jobs, "unfinished ingest")} that would have brought it back ended` : ""}.`);
      await after();
    } catch (error) {
      toast(error.message);
    }
  };
  return h("button", { class: "small danger", onclick: act, "aria-label": `Delete ${name}` }, "Delete …");
}

async function documents({ content, query, signal }, collection) {
  const offset = Number(query.get("offset")) || 0;
  const here = `#/collections/${encodeURIComponent(collection)}`;
  const list = h("div");
  const refresh = async () => {
    const { data, has_more: more } = await get(`${at`/v1/collections/${collection}/documents`}?offset=${offset}&limit=${PAGE}`, signal);
    const row = ({ id, title, source, passages }) => [
      h("a", { href: `${here}/${encodeURIComponent(id)}` }, title || source || id), source ?? "", count(passages),
      deletion(title || id, `${title || id} and its KV`, at`/v1/collections/${collection}/documents/${id}`, refresh)];
    list.replaceChildren(
      table(`Documents ${data.length ? `${offset + 1} to ${offset + data.length}` : ""}`, ["document", "source", "#passages", ""], data.map(row)),
      h("div", { class: "row" },
        offset > 0 && h("a", { href: `${here}?offset=${Math.max(0, offset - PAGE)}` }, "Earlier"),
        more && h("a", { href: `${here}?offset=${offset + PAGE}` }, "More")));
  };
  await refresh();
  content.replaceChildren(h("h1", {}, h("a", { href: "#/collections" }, "Collections"), ` / ${collection}`), list,
    token.get() ? h("div", { class: "row" }, warming(collection)) : "",
    h("h2", {}, "Add files"), dropzone(() => collection, refresh));
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

/** Computes a collection's entries ahead, with its progress. */
function warming(collection) {
  const place = h("span");
  const button = h("button", { onclick: begin }, "Compute its KV ahead");
  async function begin() {
    button.disabled = true;
    try {
      const bar = h("progress", { "aria-label": "Warming" });
      place.replaceChildren(bar);
      for await (const event of events("/v1/cache/warm", { collection })) {
        const progress = event.progress ?? event.finished;
        if (progress?.passages_total) {
          bar.max = progress.passages_total;
          bar.value = progress.passages_done;
        }
        if (event.finished) place.replaceChildren(` ${count(progress.entries_computed)} computed, ${count(progress.entries_skipped)} were there`);
      }
    } catch (error) {
      place.replaceChildren(failure(error));
    }
    button.disabled = false;
  }
  return h("span", {}, button, place);
}

/** Where files are dropped or chosen. `name` says into which collection, or null; `after` is called when they are there. */
function dropzone(name, after, ...before) {
  const report = h("ul", { "aria-live": "polite" });
  const input = h("input", { type: "file", multiple: true, "aria-label": "Files", onchange: () => take([...input.files]) });
  async function take(files) {
    const collection = name();
    if (!collection || files.length === 0) return;
    let failed = 0;
    for (const file of files) {
      const line = h("li", {}, `${file.name} (${bytes(file.size)}) …`);
      report.append(line);
      try {
        const { documents_added: added, documents_replaced: replaced, documents_unchanged: same, passages_added: passages, not_read: bad } = await upload(at`/v1/collections/${collection}/files/${file.name}`, file);
        line.textContent = `${file.name}: ${counted(added + replaced, "document")}, ${counted(passages, "passage")}${same ? `, ${count(same)} unchanged` : ""}${bad ? `; not read: ${bad}` : ""}`;
      } catch (error) {
        failed += 1;
        line.textContent = `${file.name}: ${error.message}`;
      }
    }
    input.value = "";
    toast(failed ? `${count(failed)} of ${counted(files.length, "file")} not added` : `${counted(files.length, "file")} added to ${collection}`);
    await after();
  }
  const zone = h("div", { class: "drop" }, h("p", {}, "Drop files here, or choose them: text, Markdown, HTML, PDF, Office, e-mail, CSV, JSON, source code."), input);
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => { event.preventDefault(); zone.classList.remove("over"); take([...event.dataTransfer.files]); });
  return h("div", {}, before, zone, report);
}
