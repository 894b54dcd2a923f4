// An ingest that the command line begins while the view Jobs is open: it shows up, its bar moves, and it is cancelled. INGEST is the command,
// as JSON, for a running, empty ragstone whose ingests are slow.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { finish, go, link, look, page } from "./browser.mjs";

await page.goto(link.href);
await page.locator("#service.ready").waitFor();
await go("Jobs");
await page.getByText("No ingest is under way.").waitFor();

const [program, ...args] = JSON.parse(process.env.INGEST);
const ingest = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"] });
let said = "";
ingest.stderr.on("data", (text) => (said += text));
const ended = new Promise((resolve) => ingest.on("close", resolve));

const bar = page.getByRole("progressbar", { name: /^Ingest \d+$/ });
await page.getByText(/of 100 files/).waitFor();
const value = () => bar.evaluate(({ value }) => value);
const before = await value();
await page.waitForFunction((before) => document.querySelector("progress[aria-label^=Ingest]").value > before, before);
assert.ok(await bar.evaluate(({ value, max }) => value < max));
await look("ingest");
await page.getByRole("button", { name: /^Cancel ingest/ }).click();
await page.locator("dialog").getByRole("button", { name: "End it" }).click();
await page.getByText(/Ingest \d+ is cancelled\./).waitFor();
await page.getByText("No ingest is under way.").waitFor();
assert.equal(await ended, 1, said);
assert.match(said, /the ingest was cancelled; \d+ of 100 files are stored/);
await finish();
