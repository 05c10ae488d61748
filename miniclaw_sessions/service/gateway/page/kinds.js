// What a file is, by its bytes, as the server will see it; and whether a model takes it.

import { get } from "./api.js";

/** How a file of each kind begins. @type {[string, RegExp][]} */
const FORMS = [
  ["image/png", /^\x89PNG\r\n\x1a\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8[79]a/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["application/pdf", /^[^]{0,1024}?%PDF-/],
  ["audio/wav", /^RIFF[^]{4}WAVE/],
  ["audio/mpeg", /^(?:ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb])/],
  ["audio/flac", /^fLaC/],
  ["audio/ogg", /^OggS/],
  ["audio/mp4", /^[^]{4}ftypM4A/],
];
/** What a packed document has in it. @type {{kind: string, name: string, part: string}[]} */
const OFFICE = [
  { kind: "application/vnd.openxmlformats-officedocument.wordprocessingml.document", name: "Word file", part: "word/document.xml" },
  { kind: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", name: "Excel file", part: "xl/workbook.xml" },
];
const TEXT = "text/plain";
const MOST_CHARACTERS = 400_000;
const LARGEST_PICTURE = (5 * 2 ** 20 * 3) / 4;
const LONGEST_SIDE = 2048;

/** The models, as they were read last, and when. @type {{at: number, models: Promise<any[]>}} */
let known = { at: -Infinity, models: Promise.resolve([]) };
const KNOWN_MS = 30_000;

/**
 * A file as it can be sent, and what it is; a picture that is too large for every model is made smaller.
 * @param {File} file
 * @returns {Promise<{file: File, kind: string, problem: string}>}
 */
export async function looked(file) {
  const kind = await kindOf(file);
  if (!kind) return { file, kind, problem: "no model reads a file of this kind" };
  if (kind === TEXT && (await file.text()).length > MOST_CHARACTERS) return { file, kind, problem: "longer than the 400,000 characters of a text that a model reads" };
  if (!kind.startsWith("image/") || file.size <= LARGEST_PICTURE) return { file, kind, problem: "" };
  try {
    return { file: await smaller(file), kind: "image/jpeg", problem: "" };
  } catch {
    return { file, kind, problem: "larger than a picture may be" };
  }
}

/** @param {File} file */
async function kindOf(file) {
  const beginning = new Uint8Array(await file.slice(0, 1100).arrayBuffer());
  const read = String.fromCharCode(...beginning);
  const known = FORMS.find(([, form]) => form.test(read))?.[0];
  if (known) return known;
  if (read.startsWith("PK\x03\x04")) {
    const packed = new TextDecoder("latin1").decode(await file.arrayBuffer());
    return OFFICE.find(({ part }) => packed.includes(part))?.kind ?? "";
  }
  const isUtf16 = /^(?:\xff\xfe|\xfe\xff)/.test(read);
  try {
    const text = new TextDecoder(isUtf16 ? (beginning[0] === 0xff ? "utf-16le" : "utf-16be") : "utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? "" : TEXT;
  } catch {
    return "";
  }
}

/** @param {File} file */
async function smaller(file) {
  const picture = await createImageBitmap(file);
  const by = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.round(picture.width * by), height: Math.round(picture.height * by) });
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.85));
  if (!(blob instanceof Blob) || blob.size > LARGEST_PICTURE) throw new Error("still too large");
  return new File([blob], file.name.replace(/\.[^.]*$/, "") + ".jpg", { type: "image/jpeg" });
}

/**
 * Why the model that answers does not take a file; empty: it does, or that is not known.
 * @param {string} kind
 * @param {string | null | undefined} chosen the session's own model
 */
export async function notTaken(kind, chosen) {
  if (kind === TEXT) return "";
  if (performance.now() - known.at > KNOWN_MS) known = { at: performance.now(), models: get("v1/models").then((reply) => reply.data, () => []) };
  const models = await known.models;
  const model = models.find((one) => one.id === chosen) ?? models[0];
  if (!model || model.takes.includes(kind)) return "";
  return `${model.id} takes ${inWords(model.takes)}, and no ${nameOfKind(kind)}`;
}

/** @param {string} kind */
export function nameOfKind(kind) {
  const [group, form = ""] = kind.split("/");
  if (group === "image") return "picture";
  const office = OFFICE.find((one) => one.kind === kind);
  if (office) return office.name;
  const name = { mpeg: "MP3", mp4: "M4A" }[form] ?? form.toUpperCase();
  return group === "audio" ? `${name} sound` : name;
}

/** @param {string[]} takes */
function inWords(takes) {
  const pictures = takes.filter((kind) => kind.startsWith("image/"));
  const plural = (/** @type {string} */ kind) => nameOfKind(kind).replace(/(picture|file)$/, "$1s");
  const named = ["texts", ...new Set([...pictures, ...takes].map(plural))];
  return named.length === 1 ? named[0] : `${named.slice(0, -1).join(", ")} and ${named.at(-1)}`;
}
