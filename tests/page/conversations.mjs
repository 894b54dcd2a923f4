// Conversations: asked, asked again, edited, stopped, named, saved, listed, opened, deleted, and found again after a restart. PHASE says which part this is:
// `first` for a running, empty ragstone whose passes are slow, `again` for another one over the same data folder.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { accessible, add, answer, base, finish, go, link, look, page } from "./browser.mjs";

const headers = { "x-ragstone-token": link.hash.match(/[0-9a-f]{32,}/)[0] };
const get = async (path) => (await fetch(`${base}${path}`, { headers })).json();
const conversations = async () => (await get("/v1/conversations")).data;
const turns = async (id) => (await get(`/v1/conversations/${id}/turns?order=asc`)).data;
const open = () => page.url().match(/#\/ask\/(conv_[0-9a-f]+)$/)?.[1];

const list = page.getByRole("complementary", { name: "Conversations" });
const dialog = page.locator("dialog");
const question = page.getByLabel("Question", { exact: true });
const button = (turn, name) => turn.getByRole("button", { name, exact: true });
const shown = (text) => page.locator(".turn", { has: page.locator(".question", { hasText: text }) });
const settled = () => page.locator(".turn.running").waitFor({ state: "detached" });
/** What a button saves. */
async function saved(name, place = page) {
  const [download] = await Promise.all([page.waitForEvent("download"), button(place, name).click()]);
  return { name: download.suggestedFilename(), text: readFileSync(await download.path(), "utf8") };
}

async function first() {
  await add("world", { "Callux Motors": "The founder of Callux Motors is Jovin Falgan. Callux Motors makes kites.", "Jovin Falgan": "Jovin Falgan owns 16 bells. Jovin Falgan visits Holcliff." });
  await page.goto(link.href);
  await list.getByText("None yet. What you ask is kept here.").waitFor();
  assert.equal(open(), undefined);
  await page.getByRole("heading", { name: "Ask", level: 1 }).waitFor();

  // Enter that ends an input method's composition sends nothing; Safari tells it from others by its code alone.
  await question.fill("かな");
  await question.evaluate((element) => element.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true })));
  assert.equal(await question.inputValue(), "かな");

  // The first question begins one, and is its name; the address is its own.
  await answer("What is made by Callux Motors?");
  const id = open();
  await list.getByRole("link", { name: "What is made by Callux Motors?" }).waitFor();
  await page.getByRole("heading", { name: "What is made by Callux Motors?", level: 1 }).waitFor();
  await answer("Who owns 16 bells?");
  assert.deepEqual((await turns(id)).map(({ question }) => question), ["What is made by Callux Motors?", "Who owns 16 bells?"]);
  assert.ok((await turns(id)).every(({ citations, collection }) => citations.length > 0 && collection === "world"));

  // Asked again, an answer takes the place of the one before it.
  await button(shown("Who owns"), "Ask again").click();
  await settled();
  assert.equal((await turns(id)).length, 2);

  // Edited before others, they go with it, after a question.
  const edit = async (text, end) => {
    await button(shown("What is made"), "Edit").click();
    await page.getByLabel("The question, edited").fill(text);
    await end();
  };
  await edit("No", () => page.keyboard.press("Escape"));
  await edit("Who is the founder of Callux Motors?", () => page.keyboard.press("Enter"));
  await dialog.getByText("What was said after it goes: 1 question and its answer.").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await turns(id)).length, 2, "not without a yes");
  await page.getByRole("button", { name: "Ask this instead" }).click();
  await dialog.getByRole("button", { name: "Ask", exact: true }).click();
  await shown("Who is the founder").locator(".plan").waitFor();
  await settled();
  assert.deepEqual((await turns(id)).map(({ question }) => question), ["Who is the founder of Callux Motors?"]);
  assert.equal(await page.locator(".turn").count(), 1);

  // What fails before anything came leaves what it would have replaced.
  await question.fill("What does Jovin Falgan visit, and who is that?");
  await page.keyboard.press("Enter");
  await shown("What does Jovin").locator(".plan").waitFor();
  await settled();
  await page.route("**/v1/responses", (route) => route.abort(), { times: 1 });
  await button(shown("What does Jovin"), "Ask again").click();
  await page.getByRole("alert").getByText("The service does not answer").waitFor();
  assert.equal((await turns(id)).length, 2);
  assert.equal(await shown("What does Jovin").count(), 2);

  // A name of one's own.
  await page.getByRole("button", { name: "Rename" }).click();
  await dialog.getByLabel("What this conversation is called").fill("Kites & *bells*");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Kites & *bells*", level: 1 }).waitFor();
  await list.getByRole("link", { name: "Kites & *bells*" }).waitFor();

  // Files, with what the answers stand on.
  const whole = await saved("Save as Markdown");
  assert.equal(whole.name, "Kites-bells.md");
  assert.match(whole.text, /^# Kites & \\\*bells\\\*\n\n## Who is the founder of Callux Motors\?\n\n\*\d{4}-\d\d-\d\d \d\d:\d\d, collection world\*\n/);
  assert.match(whole.text, /### Sources\n\n1\. \*\*(Callux Motors|Jovin Falgan)\*\*[^\n]*\n\n {3}> /);
  const json = JSON.parse((await saved("Save as JSON")).text);
  assert.deepEqual([json.title, json.turns.length, json.turns[0].citations.length > 0], ["Kites & *bells*", 2, true]);
  const one = await saved("Save with sources", shown("Who is the founder"));
  assert.match(one.text, /^# Who is the founder of Callux Motors\?\n[\s\S]*### Sources/);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await button(shown("Who is the founder"), "Copy").click();
  await page.getByText("The answer is copied.").waitFor();

  // What each sentence stands on, to the word.
  const citations = [[2, "Bells", "Jovin Falgan owns 16 bells."], [1, "Kites", "Callux Motors makes kites."]].map(([number, title, text]) => ({ number, title, text, document_id: title, source: null, score: 0.5 }));
  const report = { tokens: { exact: 0, blended: 0, recomputed: 0, computed: 9 }, segments: [], loads: [], late_misses: 0, blending: "calibrated", ratio: 0, selection_layer: null, predicted: null, ttft: { total_ms: 1, retrieve_ms: 0, rerank_ms: 0, assemble_ms: 0, look_up_ms: 0, plan_ms: 0, queue_ms: 0, compute_ms: 1, load_wait_ms: 0 } };
  const sentences = [{ text: "It makes kites.", passages: [1] }, { text: "Ona makes tea.", passages: [] }, { text: "He owns 16 bells.", passages: [2] }];
  const said = " It makes kites. Ona makes tea. He owns 16 bells. Yes.";
  const ending = { id: "resp_1", status: "completed", ragstone: { citations, report, grounding: { state: "unsupported", passages: [], missing: ["Ona"], sentences } } };
  const events = [{ type: "response.output_text.delta", delta: said }, { type: "response.completed", response: ending }];
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.route("**/v1/responses", (route) => route.fulfill({ contentType: "text/event-stream", body: events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("") }), { times: 1 });
  const told = await answer("What is what?");
  assert.equal(await told.locator(".answer").innerText(), "It makes kites.1 Ona makes tea. He owns 16 bells.2 Yes.");
  assert.equal(await told.locator(".baseless").innerText(), "Ona makes tea.");
  await told.getByText("In none of the passages: Ona. What is underlined with dots is in none of them.").waitFor();
  await told.getByRole("link", { name: "passage 2" }).click();
  await told.getByText("Jovin Falgan owns 16 bells.").waitFor();
  await page.waitForFunction(() => document.activeElement.textContent.startsWith("Bells"));
  await look("marks");
  const marked = await saved("Save with sources", told);
  assert.ok(marked.text.includes("It makes kites. [1] Ona makes tea. He owns 16 bells. [2] Yes."), marked.text);
  assert.ok(marked.text.includes("1. **Kites**\n\n   > Callux Motors makes kites.\n\n2. **Bells**"), marked.text);

  // The newest first; opened again by the keyboard, reloaded, gone on with.
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.getByRole("heading", { name: "Ask", level: 1 }).waitFor();
  await answer("Who visits Holcliff?");
  assert.deepEqual(await list.getByRole("link").allInnerTexts(), ["Who visits Holcliff?", "Kites & *bells*"]);
  await list.getByRole("link", { name: "Kites & *bells*" }).focus();
  await page.keyboard.press("Enter");
  await shown("Who is the founder").waitFor();
  assert.equal(open(), id);
  await page.reload();
  await shown("Who is the founder").locator(".citations li").first().waitFor();
  await shown("What does Jovin").waitFor();
  await shown("Who is the founder").getByText("The prompt's plan").click();
  await shown("Who is the founder").getByText("First token after").waitFor();
  for (const width of [400, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    await look(`conversation-${width}`);
  }
  await answer("And who visits Holcliff?");
  assert.equal((await turns(id)).length, 3);
  await go("Keys");
  await go("Ask");
  await shown("And who visits").waitFor();
  assert.equal(open(), id, "the open one, which another view does not close");
}

async function again() {
  const before = (await conversations()).map(({ title }) => title);
  assert.ok(before.includes("Who visits Holcliff?") && before.includes("Kites & *bells*"), `${before}`);
  await page.goto(link.href);
  await list.getByRole("link", { name: "Kites & *bells*" }).click();
  await shown("Who is the founder").locator(".citations li").first().waitFor();
  assert.equal(await page.locator(".turn").count(), 3);
  assert.equal(await page.getByLabel("Collection").inputValue(), "world");
  const id = open();
  await answer("What is made by Callux Motors?");
  assert.equal((await turns(id)).length, 4);
  await accessible("found again");

  // Deleted from the list, or from its own page, after a question; its answers go, too.
  const [{ response_id: response }] = await turns(id);
  await list.getByRole("button", { name: "Delete the conversation Who visits Holcliff?" }).click();
  await dialog.getByText("Delete the conversation “Who visits Holcliff?” and its answers? This cannot be undone.").waitFor();
  await page.keyboard.press("Escape");
  await list.getByRole("link", { name: "Who visits Holcliff?" }).waitFor();
  await list.getByRole("button", { name: "Delete the conversation Who visits Holcliff?" }).click();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await list.getByRole("link", { name: "Who visits Holcliff?" }).waitFor({ state: "detached" });
  assert.equal(open(), id, "the open one stays");
  await page.getByRole("button", { name: "Delete …" }).click();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { name: "Ask", level: 1 }).waitFor();
  assert.equal(await page.locator(".turn").count(), 0);
  assert.equal((await fetch(`${base}/v1/responses/${response}`, { headers })).status, 404);
  await page.goto(`${base}/#/ask/${id}`);
  await page.getByRole("alert").getByText("This conversation is not here any more").waitFor();

  // Who has no token is shown no list, and finds a conversation by its address.
  const items = [{ role: "user", content: "مَن يملك الأجراس؟" }, { role: "assistant", content: "يوفين." }];
  const begun = await fetch(`${base}/v1/conversations`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ items }) });
  const { title, id: other } = await begun.json();
  await page.evaluate(() => sessionStorage.clear());
  await page.goto(`${base}/#/ask/${other}`);
  await page.reload();
  await shown(title).waitFor();
  await list.getByText("The list is for the data folder's owner and for keys").waitFor();
  assert.equal(await list.getByRole("link").count(), 0);
  // From the right to the left.
  assert.ok(await shown(title).locator(".answer").evaluate((element) => element.matches(":dir(rtl)")));
  await look("no-token");
}

await { first, again }[process.env.PHASE]();
await finish();
