// Importing files that are dropped on the page or chosen: first a report of what they would become, then the sessions.
// Files that are dropped on a conversation are attached to what is being written there.

import { may } from "./access.js";
import { Refused, request } from "./api.js";
import { ask } from "./dialogs.js";
import { find, make } from "./elements.js";
import { notify } from "./notices.js";
import { bytes, counted } from "./words.js";

/**
 * @param {(id: string | null) => void} imported called at the end with the session, if it was one
 * @param {() => import("./attachments.js").Attachments | null} beside the chat box that is shown
 */
export function listenForFiles(imported, beside) {
  const input = find("files");
  const drop = find("drop");
  let depth = 0;
  /** @param {DragEvent} event */
  const carriesFiles = (event) => may("write") && (event.dataTransfer?.types.includes("Files") ?? false);
  addEventListener("dragenter", (event) => {
    if (carriesFiles(event)) drop.hidden = ++depth === 0;
  });
  addEventListener("dragleave", (event) => {
    if (carriesFiles(event)) drop.hidden = --depth <= 0;
  });
  /** @param {DragEvent} event */
  const attachesTo = (event) => (/** @type {Element} */ (event.target).closest?.("#main") ? beside() : null);
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    drop.firstElementChild.textContent = attachesTo(event) ? "Drop files to attach them to your message" : "Drop session files to import them";
  });
  addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    depth = 0;
    drop.hidden = true;
    const dropped = [...(event.dataTransfer?.files ?? [])];
    const attachments = attachesTo(event);
    if (attachments) attachments.add(dropped);
    else importFiles(dropped, imported);
  });
  input.addEventListener("change", () => {
    importFiles([...input.files], imported);
    input.value = "";
  });
  return { choose: () => input.click() };
}

/**
 * @param {File[]} files
 * @param {(id: string | null) => void} imported
 */
async function importFiles(files, imported) {
  if (!files.length) return;
  const reading = notify(`Reading ${counted(files.length, "file")}…`);
  const reports = [];
  for (const file of files) reports.push({ file, ...(await tried(file, true)) });
  reading.remove();
  const good = reports.filter((one) => one.report);
  const rows = reports.map(({ file, report, problem }) => reportRow(file, report, problem));
  const isSure = await ask({
    title: "Import",
    confirm: good.length ? `Import ${counted(good.length, "session")}` : "Close",
    cancel: good.length ? "Cancel" : null,
    wide: true,
    body: [make("p", { class: "hint" }, "Nothing has been changed yet. This is what the files would become:"), ...rows],
  });
  if (!isSure || !good.length) return;
  const made = [];
  for (const { file } of good) {
    const { report, problem } = await tried(file, false);
    if (report) made.push(report.session_id);
    else notify(`${file.name}: ${problem}`, { failed: true });
  }
  if (made.length) notify(`${counted(made.length, "session")} imported.`);
  imported(made.length === 1 ? made[0] : null);
}

/**
 * @param {File} file
 * @param {boolean} dry
 * @returns {Promise<{report?: any, problem?: string}>}
 */
async function tried(file, dry) {
  try {
    const query = { name: file.name.slice(0, 255), dry_run: dry };
    const headers = { "Content-Type": "application/octet-stream" };
    return { report: await (await request("POST", "v1/import", { query, headers, body: file })).json() };
  } catch (error) {
    const isHere = error instanceof Refused && error.type === "session_exists";
    return { problem: isHere ? "This session is here already. Delete it first to import it again." : error instanceof Error ? error.message : String(error) };
  }
}

/**
 * @param {File} file
 * @param {any} report
 * @param {string | undefined} problem
 */
function reportRow(file, report, problem) {
  const facts = report
    ? [report.format, counted(report.messages, "message"), report.repaired && `${report.repaired} repaired`, report.set_aside && `${report.set_aside} set aside`, bytes(file.size)]
    : [bytes(file.size)];
  const findings = report?.findings ?? [];
  return make(
    "section",
    { class: problem ? "report failed" : "report" },
    make("h3", {}, file.name),
    make("p", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    report && make("p", {}, `It will be called ${report.title ? `“${report.title}”` : "by its first words"}.`),
    problem && make("p", { class: "error" }, problem),
    findings.length > 0 &&
      make("details", {}, make("summary", {}, counted(findings.length, "finding")), make("ul", {}, ...findings.slice(0, 200).map((/** @type {any} */ one) => make("li", {}, `line ${one.line}: ${one.outcome}: ${one.text}`)))),
  );
}
