// Sessions as files: one in the format that is chosen, several in one archive.

import { get, request, sessionPath } from "./api.js";
import { ask } from "./dialogs.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { zipped } from "./zip.js";

/**
 * @param {{about: string}} one
 * @param {{about: string}} other
 */
function forPeopleFirst(one, other) {
  return Number(other.about.includes("for people")) - Number(one.about.includes("for people"));
}

/** @param {string} title */
async function chooseFormat(title) {
  const formats = await attempt(async () => (await get("v1/formats")).formats.filter((/** @type {any} */ one) => one.write).sort(forPeopleFirst));
  if (!formats) return null;
  const choices = formats.map((/** @type {any} */ one, /** @type {number} */ place) =>
    make("label", { class: "choice" }, make("input", { type: "radio", name: "format", value: one.name, checked: place === 0 }), make("b", {}, one.name), make("span", {}, one.about)),
  );
  const list = make("fieldset", {}, make("legend", {}, "Format"), ...choices);
  return ask({
    title, confirm: "Save the file", wide: true, body: [list],
    value: () => /** @type {HTMLInputElement} */ (list.querySelector(":checked")).value,
  });
}

/**
 * @param {string} id
 * @param {string} format
 */
async function exported(id, format) {
  const response = await request("GET", sessionPath(id, "export"), { query: { format } });
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "session";
  return { name, content: await response.blob() };
}

/**
 * @param {Blob} content
 * @param {string} name
 */
function save(content, name) {
  const address = URL.createObjectURL(content);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** @param {string} id */
export async function exportSession(id) {
  const format = await chooseFormat("Export");
  if (format === null) return;
  await attempt(async () => {
    const { name, content } = await exported(id, format);
    save(content, name);
  });
}

/**
 * @param {string[]} ids
 * @param {(ids: string[], act: (id: string) => Promise<any>) => Promise<any>} forEach does it for each, and reports
 */
export async function exportSeveral(ids, forEach) {
  const format = await chooseFormat("Export as one archive");
  if (format === null) return;
  /** @type {Map<string, Uint8Array>} */
  const files = new Map();
  await forEach(ids, async (id) => {
    const { name, content } = await exported(id, format);
    const [, stem, ending] = /^(.*?)((?:\.\w+)?)$/s.exec(name) ?? ["", name, ""];
    let free = name;
    for (let number = 2; files.has(free); number++) free = `${stem}-${number}${ending}`;
    files.set(free, new Uint8Array(await content.arrayBuffer()));
  });
  if (files.size) save(zipped([...files].map(([name, bytes]) => ({ name, bytes }))), "sessions.zip");
}
