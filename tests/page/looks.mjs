// How the page looks on a telephone, a tablet and a desk, empty and full: nothing is cut, broken or out of line. For a running, empty ragstone.
// PAGE_SCREENSHOTS gets a picture of each view, in the light and in the dark.
import assert from "node:assert/strict";
import { accessible, add, answer, base, finish, go, link, page, picture } from "./browser.mjs";

const WIDTHS = [390, 800, 1280];
const VIEWS = ["Ask", "Plans", "Store", "Collections", "Jobs", "Keys", "Settings"];

/** What is out of order, in words. */
function disorder() {
  const found = [];
  const lines = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return new Set([...range.getClientRects()].filter(({ width }) => width > 0).map(({ bottom }) => Math.round(bottom / 8))).size;
  };
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`the page is ${scrollWidth} px wide on a screen of ${clientWidth}`);
  for (const element of document.querySelectorAll("button, .key, .tag, nav a")) {
    if (lines(element) > 1) found.push(`broken: ${element.textContent}`);
  }
  // A finger finds it: what stands in a line of text is as high as that.
  const isTouched = clientWidth < 640;
  for (const element of document.querySelectorAll("button, nav a, summary, select, input:not([type=checkbox]):not([type=file])")) {
    const { width, height } = element.getBoundingClientRect();
    if (isTouched && width > 0 && Math.min(width, height) < 32) found.push(`tiny: ${element.textContent || element.name}, ${Math.round(width)} × ${Math.round(height)} px`);
  }
  for (const table of document.querySelectorAll(".scroll")) {
    if (table.scrollWidth > table.clientWidth) found.push(`scrolls sideways: ${table.getAttribute("aria-label")}`);
  }
  // Controls that stand on a line have their labels on a line, too.
  for (const row of document.querySelectorAll(".row")) {
    const fields = [...row.querySelectorAll(".field")].map((field) => [field.querySelector("span"), field.lastElementChild].map((part) => part.getBoundingClientRect()));
    for (const [label, control] of fields) {
      for (const [otherLabel, otherControl] of fields) {
        const isOneLine = label.top < otherControl.bottom && otherLabel.top < control.bottom;
        if (isOneLine && Math.abs(label.top - otherLabel.top) + Math.abs(control.bottom - otherControl.bottom) > 0.5) found.push(`out of line: ${row.textContent}`);
      }
    }
  }
  return [...new Set(found)];
}

async function see(name) {
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: 800 });
    assert.deepEqual(await page.evaluate(disorder), [], `${name}, ${width} px`);
    if (width === WIDTHS[0]) await accessible(`${name}, ${width} px`);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await picture(`${name}-${width}-${colorScheme}`);
    }
  }
}

async function seeAll(what) {
  for (const view of VIEWS) {
    await go(view);
    await page.locator(".view h1").waitFor();
    await see(`${view.toLowerCase()}-${what}`);
  }
}

await page.goto(base);
await page.locator("#service.ready").waitFor();
await go("Jobs");
await page.getByLabel("Token").waitFor();
await see("no-token");
await page.goto(link.href);
await page.getByLabel("Question").waitFor();
await seeAll("empty");

// What is in force is said of settings that nobody gave.
await go("Settings");
const setting = (key) => page.getByRole("row").filter({ has: page.getByText(key, { exact: true }) });
await setting("compute").getByText("not set: bf16 where the processor is faster at it").waitFor();
await setting("reranker").getByText("not set: the language model does").waitFor();
assert.match(await setting("model").innerText(), /demo[\s\S]*RAGSTONE_MODEL/);
await setting("object_ttl_s").getByText("0: no bound").waitFor();
await setting("allowed_hosts").getByText("none", { exact: true }).waitFor();
await setting("host_bytes").getByText("1.0 GiB").waitFor();
assert.match(await setting("data").innerText(), /RAGSTONE_DATA/);

// Full, with what is long and has no space.
const long = "averylongnamewithoutanyspacethatnobodywouldgiveandsomebodydoes".repeat(2);
const world = { "Callux Motors": "The founder of Callux Motors is Jovin Falgan. Callux Motors makes kites.", "Jovin Falgan": "Jovin Falgan owns 16 bells.", [long]: `The river was high in June. ${long}` };
await add("world", world);
await add("n".repeat(64), { one: "One word is enough." });
await go("Ask");
await page.getByLabel("Collection").selectOption("world");
await answer("What is made by Callux Motors?");
await (await answer(`Who is the founder of Callux Motors, and what is ${long}?`)).getByText("Segments, loads and why").click();
const key = { name: "k".repeat(128), role: "read", tenant: "t".repeat(64), collections: ["acme/handbook"] };
const headers = { "content-type": "application/json", "x-ragstone-token": link.hash.match(/[0-9a-f]{32,}/)[0] };
assert.equal((await fetch(`${base}/v1/keys`, { method: "POST", headers, body: JSON.stringify(key) })).status, 200);
const warmUp = (id, state) => ({ id, collection: "n".repeat(64), document: long, state, created_unix_ms: 1795272644232, progress: { passages_done: 1000 * id, passages_total: 12_345 } });
await page.route("**/v1/cache/jobs", (route) => route.fulfill({ json: { object: "list", data: [warmUp(7, "running"), warmUp(8, "other_model")] } }));
const ingest = (id, state, more) => ({ id, collection: "n".repeat(64), paths: [`/srv/documents/${long}`], state, created_unix_ms: 1795272644232, files_done: 120 * id, files_total: null, error: null, ...more });
const ingests = [ingest(3, "running", { files_total: 12_345, progress: { bytes_done: 12_345_678, bytes_total: 123_456_789, passages: 4502, left_s: 5400 } }), ingest(4, "waiting"), ingest(5, "failed", { error: `cannot read /srv/documents/${long}: the disk is full` }), ingest(6, "parked")];
await page.route("**/v1/ingests", (route) => route.fulfill({ json: { object: "list", data: ingests } }));
await seeAll("full");

// What was read takes the place of "Loading", and moves nothing.
for (const view of VIEWS) {
  await go(view === "Ask" ? "Keys" : "Ask");
  await page.locator(".view h1").waitFor();
  let release;
  const gate = new Promise((resolve) => (release = resolve));
  await page.route("**/v1/**", async (route) => { await gate; return route.fallback(); });
  await go(view);
  await page.getByText("Loading …").waitFor();
  const top = () => page.locator(".view").evaluate((element) => element.getBoundingClientRect().top + scrollY);
  const before = await top();
  release();
  await page.locator(".view h1").waitFor();
  assert.equal(await top(), before, view);
  await page.unrouteAll({ behavior: "wait" });
}

await go("Plans");
await page.locator("details.card summary").first().click();
await see("plan");
await go("Collections");
await page.getByRole("link", { name: "world", exact: true }).click();
await page.getByRole("link", { name: "Callux Motors" }).waitFor();
await see("documents");
await page.getByRole("button", { name: `Delete ${long}` }).click();
await see("dialog");
await page.keyboard.press("Escape");
await page.getByRole("link", { name: long }).click();
await page.locator(".passage").waitFor();
await see("document");
await finish();
