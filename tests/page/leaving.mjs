// Somebody leaves a view while it asks or changes something: questions close, what was begun ends, and what is shown then is right. For a running,
// empty ragstone.
import assert from "node:assert/strict";
import { add, base, file, finish, go, link, page, toasts } from "./browser.mjs";

/** The next request of that kind waits. `came`: it is there; `release`: it goes on, and is answered when that has ended. With `isAnswered` it is
 * the answer that waits. */
async function hold(method, pattern, isMeant = () => true, isAnswered = false) {
  let [arrive, release, end] = [];
  const came = new Promise((resolve) => (arrive = resolve));
  const gate = new Promise((resolve) => (release = resolve));
  const ended = new Promise((resolve) => (end = resolve));
  let isTaken = false;
  await page.route(pattern, async (route) => {
    const request = route.request();
    if (isTaken || request.method() !== method || !isMeant(request)) return route.fallback();
    isTaken = true;
    const response = isAnswered ? await route.fetch() : undefined;
    arrive();
    await gate;
    await (response ? route.fulfill({ response }) : route.fallback()).catch(() => {}); // The page took it back.
    end();
  });
  return { came, release: () => { release(); return ended; } };
}

const dialog = page.locator("dialog");
const yes = (name) => dialog.getByRole("button", { name, exact: true }).click();
const changes = [];
page.on("request", (request) => request.method() !== "GET" && changes.push(`${request.method()} ${new URL(request.url()).pathname}`));

for (const name of ["one", "two", "three", "four"]) await add(name, { a: `The ${name} is here.`, b: `The second of ${name}.` });
await page.goto(link.href);
await page.locator("#service.ready").waitFor();

// The question is the view's: Back closes it, and Forward does not bring it back.
await go("Keys");
await go("Collections");
await page.getByRole("button", { name: "Delete one" }).click();
await dialog.getByText("Delete the collection one, its 2 documents").waitFor();
await page.goBack();
await page.getByRole("heading", { name: "Keys" }).waitFor();
assert.equal(await dialog.count(), 0);
await page.goForward();
await page.getByRole("link", { name: "one", exact: true }).waitFor();
assert.equal(await dialog.count(), 0);
assert.deepEqual(changes, []);

// Left for another view while it deletes: it is said there, and the list has it when one is back.
let held = await hold("DELETE", "**/v1/collections/one");
await page.getByRole("button", { name: "Delete one" }).click();
await yes("Delete");
await held.came;
await page.goBack();
await page.getByRole("heading", { name: "Keys" }).waitFor();
await held.release();
await page.getByText("one is deleted, and 0 entries of its KV.").waitFor();
await go("Collections");
await page.getByRole("link", { name: "two", exact: true }).waitFor();
assert.equal(await page.getByRole("link", { name: "one", exact: true }).count(), 0);

// Left and back again: the list that is shown now is read again. What was cancelled with it is told where the service tells it.
await page.route("**/v1/collections/two", async (route) => {
  if (route.request().method() !== "DELETE") return route.fallback();
  const response = await route.fetch();
  return route.fulfill({ response, json: { ...(await response.json()), jobs_cancelled: 1 } });
});
held = await hold("DELETE", "**/v1/collections/two");
await page.getByRole("button", { name: "Delete two" }).click();
await yes("Delete");
await held.came;
await page.goBack();
await page.getByRole("heading", { name: "Keys" }).waitFor();
await page.goForward();
const two = page.getByRole("link", { name: "two", exact: true });
await two.waitFor();
held.release();
await two.waitFor({ state: "detached" });
await page.getByText("two is deleted, and 0 entries of its KV. 1 unfinished ingest that would have brought it back was cancelled.").waitFor();

// The choice on the view Ask is such a list, too.
held = await hold("DELETE", "**/v1/collections/three");
await page.getByRole("button", { name: "Delete three" }).click();
await yes("Delete");
await held.came;
await go("Ask");
const choice = page.getByLabel("Collection");
await choice.locator("option", { hasText: "three" }).waitFor({ state: "attached" });
assert.deepEqual(await choice.locator("option").allInnerTexts(), ["four", "three", "none: without passages"]);
await page.getByLabel("Question").fill("Half a question");
held.release();
await choice.locator("option", { hasText: "three" }).waitFor({ state: "detached" });
assert.equal(await page.getByLabel("Question").inputValue(), "Half a question");

// What the list reads first may be older than what ends meanwhile: it is not what stays.
await add("six", { a: "The six is here." });
await go("Collections");
held = await hold("DELETE", "**/v1/collections/six");
await page.getByRole("button", { name: "Delete six" }).click();
await yes("Delete");
await held.came;
await go("Keys");
await page.getByRole("heading", { name: "Keys" }).waitFor();
const old = await hold("GET", "**/v1/collections", () => true, true);
await page.locator("nav a", { hasText: "Collections" }).click();
await old.came;
held.release();
await page.getByText("six is deleted, and 0 entries of its KV.").waitFor();
await old.release();
await page.getByRole("link", { name: "four", exact: true }).waitFor();
assert.equal(await page.getByRole("link", { name: "six", exact: true }).count(), 0);
await go("Ask");
await page.getByLabel("Question").fill("Half a question");

// An answer stops with its view, and says so.
held = await hold("POST", "**/v1/responses");
await page.keyboard.press("Enter");
await held.came;
await go("Jobs");
await held.release();
await go("Ask");
await page.locator(".turn", { hasText: "Half a question" }).getByText("Stopped.").waitFor();

// What fails is said, and the list stays; who had the focus keeps it.
await go("Collections");
await page.getByRole("link", { name: "four", exact: true }).click();
await page.getByRole("link", { name: "b", exact: true }).waitFor();
await page.route("**/documents/b", (route) => (route.request().method() === "DELETE" ? route.abort() : route.fallback()), { times: 1 });
await page.getByRole("button", { name: "Delete b" }).click();
await yes("Delete");
await page.getByText("The service does not answer. Is it still running?").waitFor();
await page.getByRole("link", { name: "b", exact: true }).waitFor();
await page.waitForFunction(() => document.activeElement.getAttribute("aria-label") === "Delete b");

// A document, left for the list of collections.
held = await hold("DELETE", "**/documents/b");
await page.getByRole("button", { name: "Delete b" }).click();
await yes("Delete");
await held.came;
await page.getByRole("link", { name: "Collections" }).last().click();
const counted = page.getByRole("row", { name: "four" });
await counted.getByRole("cell", { name: "2", exact: true }).first().waitFor();
held.release();
await page.getByText("b is deleted, and 0 entries of its KV.").waitFor();
await counted.getByRole("cell", { name: "1", exact: true }).first().waitFor();

// A warm-up is the service's once it is begun.
await page.getByRole("link", { name: "four", exact: true }).click();
held = await hold("POST", "**/v1/cache/warm");
await page.getByRole("button", { name: "Read it ahead (warm up)" }).click();
await held.came;
const warmed = page.waitForResponse("**/v1/cache/warm");
await go("Ask");
await held.release();
assert.equal((await warmed).status(), 200);

// Uploads go on, and what became of them is there when one is back, once.
await go("Collections");
await page.getByLabel("Into the collection").fill("five");
held = await hold("PUT", "**/files/late.md*");
await page.getByLabel("Choose files").setInputFiles([file("late.md", "It came late."), file("later.exe", "MZ")]);
await held.came;
await go("Keys");
await held.release();
await page.getByText("1 of 2 files not added to five: later.exe").waitFor();
await go("Collections");
await page.getByText("late.md: 1 document, 1 passage").waitFor();
await page.getByText("later.exe: not added: not a format").waitFor();
await page.getByRole("link", { name: "five", exact: true }).first().waitFor();
await go("Keys");
await page.getByRole("heading", { name: "Keys" }).waitFor();
await go("Collections");
await page.getByLabel("Choose files").waitFor();
assert.equal(await page.getByText("late.md").count(), 0);

// A key that was made while its view was left is shown nowhere else than there, and once.
await go("Keys");
await page.getByLabel("Name", { exact: true }).fill("alice");
held = await hold("POST", "**/v1/keys");
await page.getByRole("button", { name: "Make a key" }).click();
await held.came;
await go("Jobs");
await held.release();
await page.getByText("The key of alice is made. The view Keys shows it once.").waitFor();
await go("Keys");
await page.getByText(/^rag_[0-9a-f]{64}$/).waitFor();
const alice = page.getByRole("cell", { name: "alice", exact: true });
await alice.waitFor();
await go("Jobs");
await page.getByRole("heading", { name: "Jobs" }).waitFor();
await go("Keys");
await alice.waitFor();
assert.equal(await page.getByText(/^rag_/).count(), 0);

// Revoked, left and back.
held = await hold("DELETE", "**/v1/keys/alice");
await page.getByRole("button", { name: "Revoke alice" }).click();
await yes("Revoke");
await held.came;
await go("Jobs");
await page.getByRole("heading", { name: "Jobs" }).waitFor();
await go("Keys");
await alice.waitFor();
held.release();
await alice.waitFor({ state: "detached" });
await page.getByText("alice is revoked.").waitFor();

// The store asks what would go before it asks whether: who left by then is not asked.
const isTrial = (request) => request.postDataJSON().dry_run === true;
for (const verb of ["Pin", "Unpin", "Evict"]) {
  await go("Store");
  held = await hold("POST", `**/v1/cache/${verb.toLowerCase()}`, isTrial);
  await page.getByRole("button", { name: `${verb} these …`, exact: true }).click();
  await held.came;
  await go("Jobs");
  await page.getByRole("heading", { name: "Jobs" }).waitFor();
  const answered = page.waitForResponse(`**/v1/cache/${verb.toLowerCase()}`);
  held.release();
  await answered;
  await go("Store");
  await page.getByText("0 entries, 0 B").or(page.locator(".tree .entry").first()).first().waitFor();
  assert.equal(await dialog.count(), 0, verb);
  held = await hold("POST", `**/v1/cache/${verb.toLowerCase()}`, (request) => !isTrial(request));
  await page.getByRole("button", { name: `${verb} these …`, exact: true }).click();
  await yes(verb.toLowerCase());
  await held.came;
  await go("Jobs");
  held.release();
  await page.locator("#toast", { hasText: `${verb.toLowerCase()}: ` }).waitFor();
}

// A check goes on, and says what it found to whoever comes back.
await go("Jobs");
held = await hold("POST", "**/v1/cache/verify");
await page.getByRole("button", { name: "Verify all entries" }).click();
await held.came;
await go("Keys");
held.release();
await page.getByRole("heading", { name: "Keys" }).waitFor();
await go("Jobs");
await page.getByText(/entries: \d+ · frames: \d+/).waitFor();
await go("Store");

// Jobs: the list is read again after a cancellation, also where a button in it has the focus, and by whoever left.
const warmUp = (id) => ({ id, collection: "four", document: null, state: "running", created_unix_ms: 0, progress: { passages_done: 1, passages_total: 4 } });
let warmUps = [warmUp(7), warmUp(8), warmUp(9)];
await page.route("**/v1/cache/jobs", (route) => route.fulfill({ json: { object: "list", data: warmUps } }));
await page.route("**/v1/cache/jobs/*", (route) => {
  const id = Number(route.request().url().split("/").at(-1));
  warmUps = warmUps.filter((job) => job.id !== id);
  return route.fulfill({ json: { id, cancelled: true } });
});
await go("Jobs");
await page.getByRole("button", { name: "Cancel warm-up 7" }).click();
await page.goBack();
await page.getByRole("heading", { name: "Store" }).waitFor();
assert.equal(await dialog.count(), 0);
await go("Jobs");
await page.getByRole("button", { name: "Cancel warm-up 7" }).click();
await yes("End it");
await page.getByText("Warm-up 7 is cancelled.").waitFor();
await page.getByRole("progressbar", { name: "Warm-up 7" }).waitFor({ state: "detached" });
await page.getByRole("progressbar", { name: "Warm-up 8" }).waitFor();
assert.notEqual(await page.evaluate(() => document.activeElement.tagName), "BODY", "the focus is not lost with the row");
// A row stays the same row while its numbers change: a button that is pressed meanwhile is still there.
const pressed = await page.getByRole("button", { name: "Cancel warm-up 8" }).elementHandle();
warmUps[0].progress.passages_done = 3;
await page.getByText("3 of 4 passages").waitFor();
assert.ok(await pressed.evaluate((button) => button.isConnected));
held = await hold("DELETE", "**/v1/cache/jobs/8");
await pressed.click();
await yes("End it");
await held.came;
await go("Keys");
held.release();
await page.getByText("Warm-up 8 is cancelled.").waitFor();

// Ingests: their numbers change as they go on, one that fails says why, and one is cancelled after a question.
let ingests = [{ id: 3, collection: "four", paths: ["/srv/notes"], state: "running", created_unix_ms: 0, files_done: 10, files_total: 40, error: null }];
await page.route("**/v1/ingests", (route) => route.fulfill({ json: { object: "list", data: ingests } }));
await page.route("**/v1/ingests/*", (route) => {
  ingests = [];
  return route.fulfill({ json: { id: 3, cancelled: true } });
});
await go("Jobs");
await page.getByText("10 of 40 files").waitFor();
const bar = page.getByRole("progressbar", { name: "Ingest 3" });
assert.deepEqual(await bar.evaluate(({ value, max }) => [value, max]), [10, 40]);
ingests[0].files_done = 30;
await page.getByText("30 of 40 files").waitFor();
assert.equal(await bar.evaluate(({ value }) => value), 30);
// Within a file, where that is told.
ingests[0].progress = { bytes_done: 1536, bytes_total: 4096, passages: 812, left_s: 40 };
await page.getByText("30 of 40 files, 1.5 KiB of 4.0 KiB, 812 passages, about 40 s left", { exact: true }).waitFor();
assert.deepEqual(await bar.evaluate(({ value, max }) => [value, max]), [1536, 4096]);
Object.assign(ingests[0], { state: "failed", error: "the disk is full", files_total: null, progress: undefined });
await page.getByText("failed: the disk is full.").waitFor();
await page.getByText("30 files", { exact: true }).waitFor();
await page.getByRole("button", { name: "Cancel ingest 3" }).click();
await page.keyboard.press("Escape");
await page.getByRole("button", { name: "Cancel ingest 3" }).click();
await page.getByText("What it stored stays, and the same command goes on with the rest.").waitFor();
await yes("End it");
await page.getByText("Ingest 3 is cancelled.").waitFor();
await page.getByText("No ingest is under way.").waitFor();

// A link into a collection takes a keyboard along.
await go("Collections");
await page.getByRole("link", { name: "four", exact: true }).focus();
await page.keyboard.press("Enter");
await page.getByRole("link", { name: "a", exact: true }).waitFor();
await page.waitForFunction(() => document.activeElement.id === "main");

// Who skips to the content stays in the view.
const view = page.url();
await page.getByRole("link", { name: "Skip to the content" }).focus();
await page.keyboard.press("Enter");
await page.waitForFunction(() => document.activeElement.id === "main");
assert.equal(page.url(), view);
await page.getByRole("link", { name: "a", exact: true }).waitFor();

// An address that somebody made up or cut shows a view all the same.
for (const [hash, title] of [["#/toString", "Ask · ragstone"], ["#/keys/%E0", "Keys · ragstone"]]) {
  await page.evaluate((hash) => { location.hash = hash; }, hash);
  await page.waitForFunction((title) => document.title === title, title);
  await page.locator(".view h1").waitFor();
}

// Each change was sent once.
const sent = changes.filter((change) => change.startsWith("DELETE"));
assert.deepEqual(sent, [...new Set(sent)].flatMap((change) => (change.endsWith("/documents/b") ? [change, change] : [change])));
assert.ok(toasts.length > 12, `${toasts}`);
assert.ok(page.url().startsWith(base));
await finish();
