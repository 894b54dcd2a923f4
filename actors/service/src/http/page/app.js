// Which view is shown, and whether the service is there.

import { get, token } from "./api.js";
import { failure, h } from "./dom.js";
import { ask } from "./ask.js";
import { collections } from "./collections.js";
import { jobs } from "./jobs.js";
import { keys } from "./keys.js";
import { locked } from "./owner.js";
import { plans } from "./plans.js";
import { settings } from "./settings.js";
import { store } from "./store.js";

const VIEWS = { ask, plans, store, collections, jobs, keys, settings };
const HEALTH_MS = 5000;

let leaving = new AbortController();

/** `#/view/name/name?key=value` */
function place() {
  const [path, query] = location.hash.slice(2).split("?");
  const [view, ...names] = path.split("/");
  return { view, names: names.map(decoded), query: new URLSearchParams(query) };
}

/** Somebody may have written or cut the address by hand. */
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

function takeToken() {
  const [, found] = location.hash.match(/^#token=([0-9a-f]+)/) ?? [];
  if (found) {
    token.set(found);
    history.replaceState(null, "", "#/ask");
  }
}

async function show() {
  takeToken();
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { view, names, query } = place();
  const name = Object.hasOwn(VIEWS, view) ? view : "ask";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · ragstone`;
  const main = document.getElementById("main");
  const content = h("div", { class: `view ${name}` }, h("p", { class: "waiting" }, "Loading …"));
  main.replaceChildren(content);
  try {
    await VIEWS[name]({ content, names, query, signal, again: show });
  } catch (error) {
    if (signal.aborted) return;
    content.replaceChildren(error.status === 401 ? locked(show) : failure(error, show));
    if (!error.status && error.status !== 0) throw error;
  }
}

async function watch() {
  const service = document.getElementById("service");
  try {
    const [{ data: [model] }] = await Promise.all([get("/v1/models"), get("/readyz")]);
    service.className = "ready";
    service.textContent = model.id;
  } catch (error) {
    service.className = "away";
    service.textContent = { 401: "wants a key", 503: "loading its model" }[error.status] ?? "no answer";
  }
  setTimeout(watch, HEALTH_MS);
}

/** Whoever was at what has left with its view begins at the new one. */
async function go() {
  await show();
  if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true });
}

/** A file dropped beside the place for files would open in the page's stead. */
function isBeside(event) {
  return event.dataTransfer?.types.includes("Files") && !event.target.closest?.(".drop");
}

addEventListener("dragover", (event) => {
  if (!isBeside(event)) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
});
addEventListener("drop", (event) => isBeside(event) && event.preventDefault());
addEventListener("hashchange", go);
document.querySelector(".skip").addEventListener("click", (event) => {
  // What stands behind the # is the view, and that stays.
  event.preventDefault();
  document.getElementById("main").focus();
});
show();
watch();
