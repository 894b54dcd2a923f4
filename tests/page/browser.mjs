// A real browser that looks at a running ragstone's page, for the scripts beside it and tests/page.mjs: node SCRIPT LINK, where LINK is what
// `ragstone page` prints. PAGE_TEST_NODE names the folder that has node_modules, CHROMIUM the browser, PAGE_SCREENSHOTS a folder for pictures,
// if any are wanted.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";

const require = createRequire(`${process.env.PAGE_TEST_NODE}/package.json`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const link = new URL(process.argv[2]);
export const base = link.origin;
const args = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"];
if (process.getuid?.() === 0) args.push("--no-sandbox");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args });
const context = await browser.newContext({ viewport: { width: 1100, height: 800 } });
export const page = await context.newPage();
page.setDefaultTimeout(60_000);

const faults = [];
page.on("request", (request) => {
  if (new URL(request.url()).origin !== base) faults.push(`asked ${request.url()}`);
});
page.on("pageerror", (error) => faults.push(`script: ${error.stack}`));
// Chromium writes a line for each status from 400 on, which the page itself shows.
page.on("console", (message) => {
  if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) faults.push(`console: ${message.text()}`);
});

/** What the page said in passing, all of it. */
export const toasts = [];
await page.exposeFunction("said", (text) => toasts.push(text));
await page.addInitScript(() => {
  const watch = (root) => new MutationObserver(() => root.textContent && window.said(root.textContent)).observe(root, { childList: true });
  addEventListener("DOMContentLoaded", () => watch(document.getElementById("toast")));
});

const script = basename(process.argv[1], ".mjs");
let pictures = 0;
export async function picture(name) {
  if (process.env.PAGE_SCREENSHOTS) await page.screenshot({ path: join(process.env.PAGE_SCREENSHOTS, `${script}-${String(++pictures).padStart(3, "0")}-${name}.png`), fullPage: true });
}

/** No rule of WCAG 2 A or AA is broken. */
export async function accessible(name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
  assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], name);
}

/** The same, in the light and in the dark. */
export async function look(name) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await accessible(`${name}, ${colorScheme}`);
    await picture(`${name}-${colorScheme}`);
  }
}

export async function go(view) {
  await page.locator("nav a", { hasText: view }).click();
  await page.locator("nav a[aria-current]", { hasText: view }).waitFor();
}

/** As somebody uploads it. */
export const file = (name, text) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(text) });

/** Adds documents, `{ id: text }`, past the page. */
export async function add(collection, documents) {
  const body = JSON.stringify({ documents: Object.entries(documents).map(([id, text]) => ({ id, title: id, text })) });
  const response = await fetch(`${base}/v1/collections/${collection}/documents`, { method: "POST", headers: { "content-type": "application/json" }, body });
  assert.equal(response.status, 200, await response.text());
}

/** Asks on the view Ask and waits for the whole answer. */
export async function answer(question) {
  await page.getByLabel("Question").fill(question);
  await page.keyboard.press("Enter");
  const turn = page.locator(".turn", { hasText: question });
  await turn.locator(".plan").waitFor();
  await page.locator(".turn.running").waitFor({ state: "detached" });
  return turn;
}

/** The page went wrong nowhere, asked nobody else, and showed nobody how it works inside. */
export async function finish() {
  assert.deepEqual(faults, []);
  assert.deepEqual(toasts.filter((text) => /abort|signal|undefined|null/i.test(text)), []);
  await browser.close();
}
