// Work that goes on beside answers.

import { ApiError, at, events, get, remove } from "./api.js";
import { bytes, confirmed, count, counted, failure, h, left, parted, table, toast, when } from "./dom.js";
import { action, change, every, live } from "./live.js";
import { guarded } from "./owner.js";

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

/** What jobs of a kind are called. */
const KINDS = { ingest: "ingest", warm_up: "warm-up", change: "document change", collection: "bucket clean-up", calibration: "calibration", renewal: "re-embedding" };

/** Jobs of a status, `[what, how many]` by kind. Not the changes that a running ingest makes: they are that ingest. */
export function kinds({ jobs: running, ingests }) {
  return running.filter(({ kind }) => kind !== "change" || ingests.length === 0).map(({ kind, jobs: number }) => [KINDS[kind] ?? kind, number]);
}

/** Of these, what has no table of its own. */
function others(status) {
  return kinds(status).filter(([what]) => what !== KINDS.ingest && what !== KINDS.warm_up);
}

/** Draws the jobs. As long as they are the same ones, what is there already changes its numbers: a button that is being pressed stays. */
function listing(view) {
  let [shown, update, waiting] = [];
  return async () => {
    const read = ["/v1/cache/jobs", "/v1/ingests", "/v1/cache/status"].map((path) => get(path, view.signal));
    const [{ data: warm }, { data: ingests }, status] = await Promise.all(read);
    const ids = (list) => list.map(({ id }) => id);
    const now = JSON.stringify([ids(warm), ids(ingests), others(status).map(([what]) => what)]);
    // What another drawing, or a failure, took the place of is drawn anew.
    if (now === shown && waiting.isConnected) {
      update(warm, ingests, status);
      return null;
    }
    const warmUps = warm.map((job) => warmUp(view, job));
    const files = ingests.map((job) => ingest(view, job));
    const rest = others(status).map(([what]) => [what, h("span")]);
    const background = h("p", { class: "quiet" });
    update = (computed, read, status) => {
      const { background: number } = status;
      computed.forEach((job, row) => warmUps[row].update(job));
      read.forEach((job, row) => files[row].update(job));
      others(status).forEach(([, jobs], row) => (rest[row][1].textContent = count(jobs)));
      background.textContent = `${counted(number, "prompt")} ${number === 1 ? "waits" : "wait"} to be computed in the background.`;
    };
    update(warm, ingests, status);
    [shown, waiting] = [now, background];
    return [
      ingests.length ? table("Ingests", ["#number", "~of", "~state", "begun", "progress", ""], files.map(({ cells }) => cells)) : h("p", { class: "quiet" }, "No ingest is under way. One is begun by ", h("code", {}, "ragstone ingest PATH"), " on the machine that serves; files that are uploaded are stored at once."),
      warm.length ? table("Warm-ups", ["#number", "~of", "state", "begun", "progress", ""], warmUps.map(({ cells }) => cells)) : h("p", { class: "quiet" }, "No warm-up is under way. One is begun from a collection's page."),
      rest.length ? table("Other jobs that run or wait", ["kind", "#jobs"], rest) : null,
      background];
  };
}

/** A row of a job, its bar and its button. `draw` says how far it is, and names its state. */
function row(view, { id, created_unix_ms: begun }, [what, kept, path], of, draw) {
  const state = h("span");
  const bar = h("progress", { "aria-label": `${what} ${id}` });
  const done = h("span");
  let isRunning = false;
  const update = (job) => {
    isRunning = job.state === "running";
    const { is, ready, all, counted: text } = draw(job);
    state.textContent = is;
    // Of what nobody has counted there is no share.
    bar.hidden = !all;
    bar.max = all || 1;
    bar.value = ready;
    done.textContent = text;
  };
  const name = `${what[0].toLowerCase()}${what.slice(1)}`;
  const button = action({ class: "small danger", "aria-label": `Cancel ${name} ${id}` }, "Cancel …", async () => {
    if (!(await confirmed(`Cancel ${name} ${id}? ${kept}`, "End it", view.signal, isRunning ? "Keep running" : "Keep it"))) return;
    await change(() => remove(path));
    toast(`${what} ${id} is cancelled.`);
  });
  return { cells: [id, ...of, state, when(begun), h("span", { class: "far" }, bar, done), button], update };
}

function warmUp(view, job) {
  const { id, collection, document: only, schema } = job;
  const draw = ({ state, progress: { passages_done: ready, passages_total: all } }) => ({
    is: state.replace("_", " "), ready, all, counted: `${count(ready)} of ${count(all)} ${schema ? "texts" : "passages"}`,
  });
  const of = schema ? `schema ${schema}` : only ? `${collection} / ${only}` : collection;
  return row(view, job, ["Warm-up", "What it computed stays.", at`/v1/cache/jobs/${id}`], [of], draw);
}

/** What becomes of one that does not run. */
const NEXT = {
  interrupted: "The next start goes on with it, and so does ragstone ingest with its paths.",
  failed: "The next start goes on with it, and so does ragstone ingest with its paths.",
  parked: "It ended ragstone again and again: ragstone ingest with its paths tries once more.",
};

function ingest(view, job) {
  const { id, collection, paths } = job;
  const draw = ({ state, error, files_done: ready, files_total: all, progress }) => {
    const files = all === null ? counted(ready, "file") : `${count(ready)} of ${counted(all, "file")}`;
    // Within a file, too. Of files that are stored nothing is embedded, and it is they that are counted.
    const within = progress?.bytes_total ? { ready: progress.bytes_done, all: progress.bytes_total } : { ready: all ? ready : 0, all };
    const told = progress ? [progress.bytes_total && `${bytes(progress.bytes_done)} of ${bytes(progress.bytes_total)}`, progress.passages && counted(progress.passages, "passage"), progress.left_s !== null && left(progress.left_s)] : [];
    return { is: NEXT[state] ? `${state}${error ? `: ${error}.` : "."} ${NEXT[state]}` : state, ...within, counted: [files, ...told].filter(Boolean).join(", ") };
  };
  const kept = "What it stored stays, and the same command goes on with the rest.";
  return row(view, job, ["Ingest", kept, at`/v1/ingests/${id}`], [h("div", {}, collection, h("div", { class: "quiet" }, parted(paths.join(", "))))], draw);
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
