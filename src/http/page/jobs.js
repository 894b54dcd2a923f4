// Work that goes on behind answers.

import { at, events, get, remove } from "/page/api.js";
import { confirmed, count, counted, failure, h, table, toast, when } from "/page/dom.js";
import { guarded } from "/page/owner.js";

const EVERY_MS = 1000;

export async function jobs({ content, signal, again }) {
  await guarded(content, "Jobs", async () => {
    const place = h("div");
    const first = await read(signal);
    content.replaceChildren(h("h1", {}, "Jobs"), place, h("h2", {}, "Checks"), verify());
    show(place, first);
    (async () => {
      while (!signal.aborted) {
        await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
        try {
          if (!signal.aborted) show(place, await read(signal));
        } catch (error) {
          if (!signal.aborted) place.replaceChildren(failure(error, again));
          return;
        }
      }
    })();
  }, again);
}

async function read(signal) {
  const [{ data }, status] = await Promise.all([get("/v1/cache/jobs", signal), get("/v1/cache/status", signal)]);
  return { warm: data, status };
}

function show(place, { warm, status }) {
  // A button that has the focus keeps it.
  if (place.contains(document.activeElement) && warm.length) return;
  const rows = warm.map(({ id, collection, document: only, schema, state, created_unix_ms: begun, progress }) => [
    id, schema ? `schema ${schema}` : only ? `${collection} / ${only}` : collection, state.replace("_", " "), when(begun),
    h("span", {}, h("progress", { max: progress.passages_total || 1, value: progress.passages_done, "aria-label": `Warm-up ${id}` }), ` ${count(progress.passages_done)} of ${count(progress.passages_total)} ${schema ? "texts" : "passages"}`),
    h("button", { class: "small danger", onclick: () => cancel(id) }, "Cancel …")]);
  const others = status.jobs.map(({ kind, jobs: number }) => [kind, count(number)]);
  place.replaceChildren(
    warm.length ? table("Warm-ups", ["#number", "of", "state", "begun", "progress", ""], rows) : h("p", { class: "quiet" }, "No warm-up is under way. One is begun from a collection's page."),
    others.length ? table("Jobs that run or wait", ["kind", "#jobs"], others) : "",
    h("p", { class: "quiet" }, `${counted(status.background, "prompt")} wait to be computed in the background.`));
}

async function cancel(id) {
  if (!(await confirmed(`Cancel warm-up ${id}? What it computed stays.`, "Cancel it"))) return;
  try {
    await remove(at`/v1/cache/jobs/${id}`);
  } catch (error) {
    toast(error.message);
  }
}

/** Reads every frame and compares checksums. */
function verify() {
  const place = h("div");
  const button = h("button", { onclick: run }, "Verify all entries");
  async function run() {
    button.disabled = true;
    try {
      for await (const event of events("/v1/cache/verify", {})) {
        const told = event.finished ?? event.progress ?? event;
        place.replaceChildren(h("p", {}, Object.entries(told).filter(([, value]) => typeof value === "number").map(([key, value]) => `${key.replaceAll("_", " ")}: ${count(value)}`).join(" · ")));
      }
    } catch (error) {
      place.replaceChildren(failure(error));
    }
    button.disabled = false;
  }
  return h("div", {}, h("p", {}, "Reads everything that is stored, compares checksums, and removes what is damaged: it is computed again when it is needed."), button, place);
}
