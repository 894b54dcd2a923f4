// What the page says, and what it remembers: numbers that add up, names in place of kinds, questions whose answers differ, a choice that a reload
// keeps. For a running, empty ragstone. FOLDER is one of that machine, for a file that an ingest reads.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { accessible, add, answer, base, finish, go, link, look, page } from "./browser.mjs";

const dialog = page.locator("dialog");
const passages = page.locator(".options input").first();
const collection = page.getByLabel("Collection");
const chosen = (name) => page.waitForFunction((name) => document.querySelector("form select")?.value === name, name);
/** Whole numbers of a text, in order. */
const numbers = (text) => [...text.replaceAll(",", "").matchAll(/\d+/g)].map(([digits]) => Number(digits));

await page.goto(link.href);
await page.locator("#service.ready").waitFor();

// One collection is the one that is meant; of several the usual one, else the one that was asked last.
const kites = { zebra: "Callux Motors makes kites.", Item10: "The founder of Callux Motors is Jovin Falgan.", item9: "Jovin Falgan owns 16 bells." };
await add("middle", kites);
await page.reload();
await chosen("middle");
await add("another", { one: "One word is enough." });
await collection.selectOption("middle");
await page.reload();
await chosen("middle");
// Without passages is a choice, too.
await collection.selectOption("");
await page.reload();
await collection.locator("option", { hasText: "middle" }).waitFor({ state: "attached" });
await chosen("");
await collection.selectOption("middle");
const first = await answer("What is made by Callux Motors?");
// A conversation that is open has its own.
const afresh = async () => {
  await page.evaluate(() => sessionStorage.removeItem("ragstone-collection"));
  await page.goto(`${base}/#/ask`);
  await page.reload();
};
await afresh();
await chosen("middle");
await add("default", { one: "One word is enough." });
await afresh();
await chosen("default");

// Passages have their titles where the answer names them, and the headline counts the tokens of the segments.
await collection.selectOption("middle");
for (const question of ["Who owns 16 bells?", "What is made by Callux Motors, and who is its founder?"]) {
  const turn = await answer(question);
  await turn.getByText("Segments, loads and why").click();
  await turn.getByRole("cell", { name: /^passage 1: (zebra|Item10|item9)$/ }).waitFor();
  const titles = await turn.locator(".citations summary").allInnerTexts();
  const named = (await turn.getByRole("cell", { name: /^passage \d: / }).allInnerTexts()).map((text) => text.replace(/^passage \d: /, ""));
  // Citations stand by rank, segments as the prompt has them: it may begin with what is stored.
  assert.deepEqual(named.sort(), titles.map((text) => text.replace(/ [\d.-]+$/, "")).sort());
  const [, ...counts] = numbers((await turn.locator(".plan p").first().innerText()).split("\n")[0]);
  const rows = await turn.getByRole("region", { name: "Segments, in the prompt's order" }).locator("tbody td:nth-child(2)").allInnerTexts();
  const sum = (list) => list.reduce((all, one) => all + one, 0);
  assert.equal(sum(counts), sum(rows.flatMap(numbers)), question);
}

// Of a prompt with every kind of token, to the token: what was computed again is no part of what was blended.
const segment = (kind, tokens, source, why) => ({ kind, tokens, source, why, tier: source === "compute" ? null : "host", tiers: ["host"], bytes: 0, predicted: null });
const report = {
  tokens: { exact: 50, blended: 699, recomputed: 15, computed: 50 }, loads: [], late_misses: 0, blending: "calibrated", ratio: 0.02, selection_layer: 2, predicted: null,
  segments: [segment("system_prompt", 50, "exact", "stored_exactly"), segment("passage", 400, "blend", "stored_closely"), segment("passage", 314, "blend", "stored_closely"), segment("question", 50, "compute", "ends_the_prompt")],
  ttft: { total_ms: 2, retrieve_ms: 0, rerank_ms: 0, assemble_ms: 0, look_up_ms: 0, plan_ms: 0, queue_ms: 0, compute_ms: 2, load_wait_ms: 0 },
};
await page.route("**/v1/cache/plans", (route) => route.fulfill({ json: { plans: [{ number: 1, unix_ms: 1795272644232, tenant: "", question: "Who owns 16 bells?", report }] } }));
await go("Plans");
await page.getByText("Who owns 16 bells?", { exact: true }).waitFor();
await page.getByText("1: 814 tokens, 92 % not computed").click();
await page.getByText("92 % not computed · 50 tokens exact, 699 blended, 15 computed again in blended passages, 50 computed").waitFor();
await page.getByText("Segments, loads and why").click();
await page.getByRole("cell", { name: "passage 2", exact: true }).waitFor();
assert.equal(await page.getByRole("cell", { name: "stored, computed after others", exact: true }).count(), 2);
await page.getByRole("cell", { name: "stored, computed after these very tokens", exact: true }).waitFor();
await look("plan");

// On a telephone the next stop after the question is the button, which is in sight; what is seldom changed comes after it.
await page.setViewportSize({ width: 390, height: 800 });
await go("Ask");
await page.getByRole("button", { name: "New conversation" }).click();
await page.getByLabel("Question").focus();
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Ask");
const box = await page.getByRole("button", { name: "Ask", exact: true }).boundingBox();
assert.ok(box.y + box.height < 800, JSON.stringify(box));
assert.ok(!(await passages.isVisible()));
await page.getByText("Options", { exact: true }).click();
assert.ok(await passages.isVisible());
await accessible("options");
await look("ask-telephone");
await page.setViewportSize({ width: 1100, height: 800 });

// A collection that went meanwhile: what to do here, not on the command line.
await collection.selectOption("another");
const headers = { "x-ragstone-token": link.hash.match(/[0-9a-f]{32,}/)[0] };
assert.equal((await fetch(`${base}/v1/collections/another`, { method: "DELETE", headers })).status, 200);
await page.getByLabel("Question").fill("Is it there?");
await page.keyboard.press("Enter");
const refused = page.getByRole("alert");
await refused.getByText("There is no collection another any more. Choose another one under Collection and ask again, or add documents.").waitFor();
assert.ok(!(await refused.innerText()).includes("--"));
await chosen("default");
await page.goto(`${base}/#/collections/another/one`);
await refused.getByText("There is no such collection, or no longer: the view Collections has those that are there.").waitFor();
await page.goto(`${base}/#/collections/another`);
await page.getByText("There is no collection another. Files that you add here begin it").waitFor();
await page.getByLabel("Choose files").setInputFiles({ name: "new.md", mimeType: "text/markdown", buffer: Buffer.from("A new one.") });
await page.getByRole("link", { name: "new", exact: true }).waitFor();

// Documents by their names, and those that have the words.
await go("Collections");
await page.getByRole("region", { name: "Collections" }).waitFor();
assert.equal(await page.getByText("Collections", { exact: true }).count(), 2, "in the navigation and the heading");
await page.getByRole("region", { name: "Collections" }).getByRole("link", { name: "middle" }).click();
const names = page.getByRole("region", { name: /^Documents 1 to 3/ }).locator("tbody a");
await names.first().waitFor();
assert.deepEqual(await names.allInnerTexts(), ["item9", "Item10", "zebra"]);
await page.getByLabel("Filter by title or source").fill("ITEM 10");
await page.getByRole("link", { name: "item9" }).waitFor({ state: "detached" });
assert.deepEqual(await names.allInnerTexts(), ["Item10"]);
await page.getByText("Documents 1 to 3: 1 with ITEM 10").waitFor();
await look("filter");
// It stays when the list is read again.
await page.getByRole("button", { name: "Delete Item10" }).click();
await page.locator("dialog", { hasText: "Delete Item10 and its KV? This cannot be undone." }).waitFor();
assert.ok(!(await dialog.innerText()).includes("ingest"));
await dialog.getByRole("button", { name: "Delete" }).click();
await page.getByText("None of documents 1 to 2 has ITEM 10.").waitFor();
await page.getByLabel("Filter by title or source").fill("");
await page.getByRole("link", { name: "zebra" }).waitFor();
// Of a part it is said that it is one.
await page.route("**/collections/middle/documents?*", async (route) => {
  const response = await route.fetch();
  return route.fulfill({ response, json: { ...(await response.json()), has_more: true } });
});
await page.reload();
await page.getByText("Documents 1 to 2, sorted by name on this page").waitFor();
await page.getByRole("link", { name: "More" }).waitFor();

// Of a file of this machine it is said that it comes again; its page parts its name from its passages.
const file = join(process.env.FOLDER, "roof.md");
writeFileSync(file, "# Roof\n\nWe take slate.");
const ingested = await fetch(`${base}/v1/collections/files/ingest`, { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify({ paths: [file] }) });
assert.match(await ingested.text(), /finished/);
await page.goto(`${base}/#/collections/files`);
await page.getByRole("button", { name: "Delete Roof" }).click();
await dialog.getByText("Delete Roof and its KV? This cannot be undone. An ingest of its file adds it again.").waitFor();
await page.keyboard.press("Escape");
await page.getByRole("link", { name: "Roof" }).click();
await page.getByText(`${file} · 1 passage`, { exact: true }).waitFor();
await look("document");

// Jobs: the changes of an ingest are that ingest, and what else there is has words.
const job = { id: 7, collection: "middle", document: null, state: "running", created_unix_ms: 0, progress: { passages_done: 1, passages_total: 4 } };
let ingests = [{ id: 3, collection: "middle", paths: ["/srv/notes"], state: "running", created_unix_ms: 0, files_done: 10, files_total: 40, error: null }];
let jobs = [["ingest", 1], ["warm_up", 1], ["change", 1]];
await page.route("**/v1/cache/jobs", (route) => route.fulfill({ json: { object: "list", data: [job] } }));
await page.route("**/v1/ingests", (route) => route.fulfill({ json: { object: "list", data: ingests } }));
const status = await (await fetch(`${base}/v1/cache/status`)).json();
await page.route("**/v1/cache/status", (route) => route.fulfill({ json: { ...status, ingests, jobs: jobs.map(([kind, number]) => ({ kind, jobs: number })) } }));
await go("Jobs");
await page.getByText("10 of 40 files").waitFor();
assert.equal(await page.getByText("Other jobs that run or wait").count(), 0);
for (const name of ["ingest 3", "warm-up 7"]) {
  await page.getByRole("button", { name: `Cancel ${name}` }).click();
  assert.deepEqual(await dialog.getByRole("button").allInnerTexts(), ["Keep running", "End it"]);
  await dialog.getByRole("button", { name: "Keep running" }).click();
  await dialog.waitFor({ state: "detached" });
}
ingests[0].state = "failed";
await page.getByText("failed.").waitFor();
await page.getByRole("button", { name: "Cancel ingest 3" }).click();
assert.deepEqual(await dialog.getByRole("button").allInnerTexts(), ["Keep it", "End it"]);
await page.keyboard.press("Escape");
[ingests, jobs] = [[], [["change", 2], ["collection", 1], ["renewal", 1]]];
await page.getByText("Other jobs that run or wait").waitFor();
for (const name of ["document change", "bucket clean-up", "re-embedding"]) await page.getByRole("cell", { name, exact: true }).waitFor();

// The store: no picture of what never changed, and the same words for jobs.
await go("Store");
await page.getByText("2 document changes; 1 bucket clean-up; 1 re-embedding").waitFor();
const disk = page.getByRole("region", { name: "disk" });
await disk.waitFor();
assert.equal(await disk.locator(".spark").count(), 0);
await look("store");
status.store.disk.bytes += 4096;
await disk.locator(".spark").waitFor();

// No word that says where in place of what.
assert.ok(first);
for (const view of ["Ask", "Plans", "Store", "Collections", "Jobs", "Keys", "Settings"]) {
  await go(view);
  await page.locator(".view h1").waitFor();
  if (view !== "Settings") assert.ok(!/behind/i.test(await page.locator("main").innerText()), view);
}
await finish();
