// Uses every view of a running, empty ragstone's page.
import assert from "node:assert/strict";
import { answer, base, file, finish, go, link, look, page } from "./page/browser.mjs";

// Empty, and without the token.
await page.goto(base);
await page.getByText("No collection yet").waitFor();
await page.getByText("The embedded demo model answers").waitFor();
await page.locator("#service.ready").waitFor();
await look("empty");
for (const view of ["Plans", "Jobs", "Keys", "Settings"]) {
  await go(view);
  await page.getByText("This is for the data folder's owner.").waitFor();
}
await look("no-token");
// What no header can carry would shut the page: it is not taken.
await page.getByLabel("Token").fill("rag_12\u200b34");
await page.getByRole("button", { name: "Use it" }).click();
await page.getByText("This is no token").waitFor();
assert.equal(await page.evaluate(() => sessionStorage.getItem("ragstone-token")), null);
await page.getByLabel("Token").fill("wrong");
await page.getByRole("button", { name: "Use it" }).click();
await page.getByLabel("Token").waitFor();

// With it: the address does not keep it.
await page.goto(link.href);
await page.getByText("No collection yet").waitFor();
assert.ok(!page.url().includes("token"), page.url());
await go("Settings");
await page.getByRole("cell", { name: "top_k", exact: true }).waitFor();
assert.match(await page.locator("table").first().innerText(), /chunk_tokens\s+64\s+256\s+--set/);
await look("settings");

// Files: what is read, what is not, and a title that would be markup elsewhere.
await go("Collections");
await page.getByText("There is none yet.").waitFor();
const title = `<img src=x onerror="document.title='broken'">`;
const documents = [
  { id: "a", title: "Callux Motors", text: "The founder of Callux Motors is Jovin Falgan. Callux Motors makes kites." },
  { id: "b", title: "Jovin Falgan", text: "Jovin Falgan owns 16 bells. Jovin Falgan visits Holcliff." },
  { id: "c", title, text: "The river was high in June. Kelzen Motors makes lamps." },
];
const lines = documents.map((document) => JSON.stringify(document)).join("\n");
await page.getByLabel("Into the collection").fill("world");
await page.getByLabel("Choose files").setInputFiles([file("world.jsonl", lines), file("program.exe", "MZ"), file("broken.pdf", "%PDF-nothing")]);
await page.getByText("world.jsonl: 3 documents, 3 passages").waitFor();
await page.getByText("program.exe: not added: not a format that ragstone reads").waitFor();
await page.getByText("2 of 3 files not added to world: program.exe, broken.pdf").waitFor();
await look("upload");
await page.getByRole("link", { name: "world" }).click();
await page.getByRole("link", { name: title }).waitFor();
await page.getByLabel("Choose files").setInputFiles(file("notes.md", "# Lamps\n\nNobody saw the goats this year."));
await page.getByRole("link", { name: "Lamps" }).or(page.getByRole("link", { name: "notes" })).first().waitFor();
await look("documents");

// A question, its citations, its plan; a second one finds the passages stored.
await go("Ask");
const first = await answer("What is made by Callux Motors?");
assert.notEqual((await first.locator(".answer").innerText()).trim(), "");
assert.ok((await first.locator("[role=img]").count()) >= 2);
assert.match(await first.locator(".plan").innerText(), /First token after/);
const second = await answer("Who is the founder of Callux Motors?");
assert.match(await second.locator(".plan").innerText(), /[1-9]\d* % not computed/);
await second.getByText("Segments, loads and why").click();
await second.getByText("Segments, in the prompt's order").waitFor();
await look("ask");
const cited = first.locator(".citations li").first();
await cited.locator("summary").click();
await cited.getByRole("link", { name: "Open in its document" }).click();
await page.locator(".passage.cited").waitFor();
await look("passage");
await page.goBack();
// The conversation is kept.
await page.locator(".turn").nth(1).waitFor();

// A key below admin is told of the model alone.
await page.route("**/v1/cache/status", (route) => route.fulfill({ json: { model: {}, key: {} } }));
await go("Store");
await page.getByText("This is for the data folder's owner.").waitFor();
await page.unroute("**/v1/cache/status");

await go("Plans");
await page.getByText("tokens", { exact: false }).first().waitFor();
assert.equal(await page.locator("details.card").count(), 2);
await page.locator("details.card summary").first().click();
await look("plans");

// The store: pin, and evict what is not pinned.
await go("Store");
await page.locator(".tree .entry").first().waitFor();
await look("store");
await page.getByLabel("Collection").selectOption("world");
await page.getByRole("button", { name: "Pin these …", exact: true }).click();
await page.locator("dialog").getByRole("button", { name: "pin", exact: true }).click();
await page.locator(".tag", { hasText: "pinned" }).first().waitFor();
await page.getByRole("button", { name: "Evict these" }).click();
await page.locator("dialog").getByRole("button", { name: "Cancel" }).click();
assert.ok((await page.locator(".tree .entry").count()) > 0);
await page.getByRole("button", { name: "Unpin these" }).click();
await page.locator("dialog").getByRole("button", { name: "unpin" }).click();
await page.locator(".tag", { hasText: "pinned" }).first().waitFor({ state: "detached" });
await page.getByRole("button", { name: "Evict these" }).click();
await page.locator("dialog").getByRole("button", { name: "evict" }).click();
await page.getByText("0 entries, 0 B").waitFor();

// Its KV again, ahead of questions; then a document goes.
await go("Collections");
await page.getByRole("link", { name: "world" }).click();
await page.getByRole("button", { name: "Read it ahead (warm up)" }).click();
await page.getByText(/\d+ computed, \d+ were there/).waitFor();
const row = page.locator("tr", { hasText: "onerror" });
await row.getByRole("button", { name: "Delete" }).click();
await look("dialog");
await page.keyboard.press("Escape");
assert.equal(await row.count(), 1, "not without a yes");
await row.getByRole("button", { name: "Delete" }).click();
await page.locator("dialog").getByRole("button", { name: "Delete" }).click();
await page.getByText("is deleted").waitFor();

await go("Jobs");
await page.getByRole("button", { name: "Verify all entries" }).click();
await page.getByText(/entries: \d+ · frames: \d+/).waitFor();
await look("jobs");

// A key is made, shown once, and revoked.
await go("Keys");
await page.getByText("There is none yet.").waitFor();
await page.getByLabel("Name", { exact: true }).fill("alice");
await page.getByLabel("Role").selectOption("write");
await page.getByLabel("Tenant", { exact: true }).fill("acme");
await page.getByRole("button", { name: "Make a key" }).click();
await page.getByText(/^rag_[0-9a-f]{64}$/).waitFor();
await page.getByRole("cell", { name: "alice", exact: true }).waitFor();
await look("keys");
await page.getByRole("button", { name: "Revoke alice" }).click();
await page.locator("dialog").getByRole("button", { name: "Revoke" }).click();
await page.getByText("There is none yet.").waitFor();

// Slow, then failing, then well again.
let held;
const slow = new Promise((resolve) => (held = resolve));
await page.route("**/v1/collections", async (route) => { await slow; await route.abort(); });
await go("Collections");
await page.getByText("Loading …").waitFor();
held();
await page.getByRole("alert").getByText("The service does not answer").waitFor();
await look("failure");
await page.unroute("**/v1/collections");
await page.getByRole("button", { name: "Try again" }).click();
await page.getByRole("link", { name: "world" }).waitFor();

// By keyboard alone: the first stop leads past the navigation.
await page.goto(`${base}/#/collections`);
await page.reload();
await page.getByRole("link", { name: "world" }).waitFor();
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");

assert.equal(await page.title(), "Collections · ragstone");
await finish();
