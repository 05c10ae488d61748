// Files beside what is being written: chosen, pasted or dropped, shown as chips, and sent within the message.

import { mostBytes } from "./access.js";
import { icon, make } from "./elements.js";
import { looked, nameOfKind, notTaken } from "./kinds.js";
import { bytes } from "./words.js";

/** @typedef {{file: File, kind: string, problem: string}} Attached */

const KINDS = "image/*,application/pdf,.docx,.xlsx,audio/*,text/*,.md,.csv,.json,.yaml,.yml,.toml,.log,.py,.js,.ts,.xml,.html";
const ROOM = 16_384; // for what is around words and files in a message

/** What was attached and not sent, by session. @type {Map<string, Attached[]>} */
const drafts = new Map();

export class Attachments {
  /**
   * @param {{session_id: string, chosen_model?: string | null}} session
   * @param {() => void} changed
   */
  constructor(session, changed) {
    this.session = session;
    this.changed = changed;
    this.list = make("ul", { class: "chips", "aria-label": "Attached files", hidden: true });
    this.said = make("p", { class: "error", role: "status" });
    this.input = make("input", { type: "file", multiple: true, hidden: true, accept: KINDS, "aria-label": "Files to attach", change: () => this.chosen() });
    this.button = make("button", { type: "button", class: "icon attach", title: "Attach files", "aria-label": "Attach files", click: () => this.input.click() }, icon("attach"));
    this.draw();
  }

  get files() {
    return drafts.get(this.session.session_id) ?? [];
  }

  /** Why they cannot be sent. */
  get problem() {
    return this.files.find((one) => one.problem)?.problem ?? this.tooLarge;
  }

  /** Why they cannot be sent together. */
  get tooLarge() {
    const sum = this.files.reduce((size, one) => size + Math.ceil(one.file.size / 3) * 4, 0);
    const most = mostBytes() - ROOM;
    return mostBytes() && sum > most ? `Together they are larger than the ${bytes((most * 3) / 4)} that a message may have: remove some.` : "";
  }

  chosen() {
    this.add([...(this.input.files ?? [])]);
    this.input.value = "";
  }

  /** @param {File[]} files */
  add(files) {
    this.adding = this.adding.then(async () => {
      for (const file of files) {
        const one = await looked(file);
        one.problem ||= await notTaken(one.kind, this.session.chosen_model);
        this.set([...this.files, one]);
      }
    });
  }

  /** In the order in which they came. */
  adding = Promise.resolve();

  /** @param {Attached[]} files */
  set(files) {
    drafts.set(this.session.session_id, files);
    this.draw();
    this.changed();
  }

  /** Give them away, to be sent. */
  take() {
    const { files } = this;
    this.set([]);
    return files;
  }

  /** @param {Attached} one */
  remove(one) {
    const place = this.files.indexOf(one);
    this.set(this.files.filter((other) => other !== one));
    const buttons = this.list.querySelectorAll("button");
    (buttons[Math.min(place, buttons.length - 1)] ?? this.button).focus();
  }

  draw() {
    for (const old of this.list.querySelectorAll("img")) URL.revokeObjectURL(old.src);
    this.list.replaceChildren(...this.files.map((one) => chip(one, () => this.remove(one))));
    this.list.hidden = !this.files.length;
    const sentences = this.files.filter((one) => one.problem).map((one) => `${one.file.name}: ${one.problem}.`);
    this.said.textContent = [...sentences, this.tooLarge].filter(Boolean).join(" ");
  }
}

/**
 * @param {Attached} one
 * @param {(() => void) | null} remove
 */
export function chip({ file, kind, problem }, remove) {
  const sign = kind.startsWith("text/") ? "TXT" : nameOfKind(kind).split(" ")[0] || "?";
  const picture = kind.startsWith("image/") ? make("img", { alt: "", src: URL.createObjectURL(file) }) : make("b", { "aria-hidden": "true" }, sign);
  const name = `Remove ${file.name}`;
  return make(
    "li",
    { class: problem ? "chip refused" : "chip", title: problem || file.name },
    picture,
    make("span", {}, make("bdi", {}, file.name), make("small", {}, bytes(file.size))),
    remove && make("button", { type: "button", class: "icon", title: name, "aria-label": name, click: remove }, icon("close")),
  );
}

/**
 * What is said, with its files, as the API takes it.
 * @param {string} text
 * @param {Attached[]} files
 * @returns {Promise<any>}
 */
export async function messageOf(text, files) {
  if (!files.length) return text;
  const parts = await Promise.all(files.map(async ({ file }) => ({ type: "file", file: { filename: file.name, file_data: await addressOf(file) } })));
  return { content: [...(text ? [{ type: "text", text }] : []), ...parts] };
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function addressOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^data:[^,]*,/, "data:application/octet-stream;base64,"));
    reader.onerror = () => reject(new Error(`${file.name} can no longer be read: attach it again.`));
    reader.readAsDataURL(file);
  });
}
