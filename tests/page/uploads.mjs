// Files on their way into collections: what waits for a name, what is dropped, and what is not taken, with its reason. For a running, empty
// ragstone that takes bodies of 64 KiB.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, file, finish, go, link, page, picture, toasts } from "./browser.mjs";

const folder = mkdtempSync(join(tmpdir(), "ragstone-page-"));
const onDisk = (name, text) => {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
};
const name = page.getByLabel("Into the collection");
const files = page.getByLabel("Choose files");
const upload = page.getByRole("button", { name: "Upload", exact: true });
const told = page.locator(".told");
const line = (text) => page.locator(".report li", { hasText: text }).last().waitFor();

/** As a person drops them, files and folders of this machine. */
async function drop(paths, onto) {
  const session = await page.context().newCDPSession(page);
  await onto.scrollIntoViewIfNeeded();
  const box = await onto.boundingBox();
  const at = { x: box.x + box.width / 2, y: box.y + box.height / 2, data: { items: [], files: paths, dragOperationsMask: 1 } };
  for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, ...at });
  await session.detach();
}

// The first collection has a name already, so that files need nothing else.
await page.goto(link.href);
await page.locator("#service.ready").waitFor();
await go("Collections");
assert.equal(await name.inputValue(), "default");
await files.setInputFiles(file("first.md", "# First\n\nIt is the first."));
await line("first.md: 1 document, 1 passage");
await page.getByText("1 file added to default").waitFor();
await page.getByRole("cell", { name: "default", exact: true }).waitFor();

// Then nobody knows into which: files wait, and it is said what is missing.
await page.reload();
await page.getByRole("cell", { name: "default", exact: true }).waitFor();
assert.equal(await name.inputValue(), "");
await upload.click();
await told.getByText("No file is chosen yet").waitFor();
await files.setInputFiles([file("a.md", "The a is red."), file("b.md", "The b is blue.")]);
await told.getByText("Not uploaded yet: 2 files (27 B): a.md, b.md. Name the collection that they go into, then press Upload.").waitFor();
await accessible("files that wait");
await picture("files-that-wait");
assert.ok(await name.evaluate((input) => input === document.activeElement && !input.validity.valid), "the field that is missing has the focus");
await upload.click();
await told.getByText("Not uploaded yet: 2 files").waitFor();
await name.fill("no good/");
await upload.click();
await told.getByText("A collection's name has letters, digits, dots, dashes and underscores, not no good/.").waitFor();
assert.equal(await page.locator(".report li").count(), 0, "nothing was sent");
// More come to them, and one that is chosen again is sent once.
await drop([onDisk("c.md", "The c is green."), onDisk("b.md", "The b is brown.")], page.locator(".drop"));
await told.getByText("Not uploaded yet: 3 files").waitFor();
await name.fill("world.2-x_y");
await page.keyboard.press("Enter");
for (const one of ["a.md", "b.md", "c.md"]) await line(`${one}: 1 document, 1 passage`);
await page.getByText("3 files added to world.2-x_y").waitFor();
await page.getByRole("link", { name: "world.2-x_y" }).first().waitFor();
assert.equal(await told.innerText(), "");
// Once it is known, they go at once.
await files.setInputFiles(file("a.md", "The a is red."));
await line("a.md: 1 unchanged");

// Thought better of.
await name.fill("");
await files.setInputFiles(file("wrong.md", "Not this one."));
await told.getByRole("button", { name: "Forget them" }).click();
await name.fill("world.2-x_y");
await upload.click();
await told.getByText("No file is chosen yet").waitFor();

// What is empty, or has no text, is told as that; so is what went with it.
await page.getByRole("link", { name: "world.2-x_y" }).first().click();
await page.getByRole("link", { name: "a", exact: true }).waitFor();
await files.setInputFiles([file("empty.md", ""), file("blank.txt", " \n\n "), file("none.jsonl", ""), file("a.md", "")]);
await line("empty.md: not added: the file is empty.");
await line("blank.txt: not added: there is no text in it.");
await line("none.jsonl: not added:");
await line("a.md: not added: the file is empty. What was there of it before is removed (1 passage).");
await page.getByText("4 of 4 files not added to world.2-x_y: empty.md, blank.txt, none.jsonl and 1 more").waitFor();
await page.getByRole("link", { name: "a", exact: true }).waitFor({ state: "detached" });

// What is not taken is named, each with its reason: formats, records, sizes, folders.
await files.setInputFiles([
  file("program.exe", "MZ"), file("broken.pdf", "%PDF-nothing"), file("mixed.jsonl", '{"text": "good"}\n{bad\n'), file("large.md", "x".repeat(70_000)),
]);
await line("program.exe: not added: not a format that ragstone reads (.txt");
await line("broken.pdf: not added: ");
await line(/mixed.jsonl: 1 document, 1 passage, not read: .*line 2/);
await line("large.md: not added: the request's body is larger than 65536 bytes");
await page.getByText("3 of 4 files not added to world.2-x_y: program.exe, broken.pdf, large.md").waitFor();
await accessible("files not taken");
await picture("files-not-taken");
mkdirSync(join(folder, "papers"));
await drop([join(folder, "papers"), onDisk("d.md", "The d is dark.")], page.locator(".drop"));
await line("papers: a folder. Drop the files in it");
await line("d.md: 1 document, 1 passage");

// Beside the place for files, a dropped file does not take the page's place.
await drop([join(folder, "d.md")], page.getByRole("heading", { name: "Add files" }));
assert.ok(page.url().endsWith("#/collections/world.2-x_y"), page.url());
await page.locator(".drop").waitFor();

// A file that changed after it was chosen.
await go("Collections");
await name.waitFor();
const late = onDisk("late.md", "Not for long.");
await files.setInputFiles(late);
await told.getByText("Not uploaded yet: 1 file").waitFor();
rmSync(late);
await name.fill("world.2-x_y");
await upload.click();
await line("late.md: not added: it changed, or went, after it was chosen. Choose it again.");

// A service that is away is another thing.
await page.route("**/files/alone.md*", (route) => route.abort());
await files.setInputFiles(file("alone.md", "Nobody hears."));
await line("alone.md: not added: The service does not answer. Is it still running?");

rmSync(folder, { recursive: true });
assert.ok(toasts.length > 6, `${toasts}`);
await finish();
