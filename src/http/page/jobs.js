// Work that goes on behind answers.

import { ApiError, at, events, get, remove } from "/page/api.js";
import { confirmed, count, counted, failure, h, table, toast, when } from "/page/dom.js";
import { action, change, every, live } from "/page/live.js";
import { guarded } from "/page/owner.js";

const EVERY_MS = 1000;

export async function jobs(view) {
  const { content, signal, again } = view;
  await guarded(content, "Jobs", async () => {
    const place = h("div");
    const refresh = await live(view, place, listing(view));
    content.replaceChildren(h("h1", {}, "Jobs"), place, h("h2", {}, "Checks"), (checks ??= verification()));
    every(EVERY_MS, signal, refresh);
  }, again);
}

/** Draws the jobs. As long as they are the same ones, what is there already changes its numbers: a button that is being pressed stays. */
function listing(view) {
  let [shown, update, waiting] = [];
  return async () => {
    const [{ data: warm }, status] = await Promise.all([get("/v1/cache/jobs", view.signal), get("/v1/cache/status", view.signal)]);
    const now = JSON.stringify([warm.map(({ id }) => id), status.jobs.map(({ kind }) => kind)]);
    // What another drawing, or a failure, took the place of is drawn anew.
    if (now === shown && waiting.isConnected) {
      update(warm, status);
      return null;
    }
    const warmUps = warm.map((job) => warmUp(view, job));
    const kinds = status.jobs.map(() => h("span"));
    const background = h("p", { class: "quiet" });
    update = (jobs, { jobs: others, background: number }) => {
      jobs.forEach((job, row) => warmUps[row].update(job));
      others.forEach((other, row) => (kinds[row].textContent = count(other.jobs)));
      background.textContent = `${counted(number, "prompt")} ${number === 1 ? "waits" : "wait"} to be computed in the background.`;
    };
    update(warm, status);
    [shown, waiting] = [now, background];
    return [
      warm.length ? table("Warm-ups", ["#number", "~of", "state", "begun", "progress", ""], warmUps.map(({ cells }) => cells)) : h("p", { class: "quiet" }, "No warm-up is under way. One is begun from a collection's page."),
      kinds.length ? table("Jobs that run or wait", ["kind", "#jobs"], status.jobs.map(({ kind }, row) => [kind, kinds[row]])) : null,
      background];
  };
}

function warmUp(view, { id, collection, document: only, schema, created_unix_ms: begun }) {
  const state = h("span");
  const bar = h("progress", { "aria-label": `Warm-up ${id}` });
  const done = h("span", { class: "number" });
  const update = ({ state: now, progress: { passages_done: ready, passages_total: all } }) => {
    state.textContent = now.replace("_", " ");
    bar.max = all || 1;
    bar.value = ready;
    done.textContent = `${count(ready)} of ${count(all)} ${schema ? "texts" : "passages"}`;
  };
  const of = schema ? `schema ${schema}` : only ? `${collection} / ${only}` : collection;
  const button = action({ class: "small danger", "aria-label": `Cancel warm-up ${id}` }, "Cancel …", async () => {
    if (!(await confirmed(`Cancel warm-up ${id}? What it computed stays.`, "Cancel it", view.signal))) return;
    await change(() => remove(at`/v1/cache/jobs/${id}`));
    toast(`Warm-up ${id} is cancelled.`);
  });
  return { cells: [id, of, state, when(begun), h("span", {}, bar, done), button], update };
}

/** Kept while the tab lives: a check goes on, and is found again, when the view was left. */
let checks = null;

/** Reads every frame and compares checksums. */
function verification() {
  const place = h("div");
  const button = action({}, "Verify all entries", () => change(async () => {
    try {
      for await (const event of events("/v1/cache/verify", {})) {
        const told = event.finished ?? event.progress ?? event;
        place.replaceChildren(h("p", {}, Object.entries(told).filter(([, value]) => typeof value === "number").map(([key, value]) => `${key.replaceAll("_", " ")}: ${count(value)}`).join(" · ")));
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      place.replaceChildren(failure(error));
    }
  }));
  return h("div", {}, h("p", {}, "Reads everything that is stored, compares checksums, and removes what is damaged: it is computed again when it is needed."), button, place);
}
