// Backups and the quarantine: made and verified from here, with progress and a report.

import { may } from "./access.js";
import { get, send } from "./api.js";
import { askText } from "./dialogs.js";
import { make } from "./elements.js";
import { attempt } from "./notices.js";
import { bytes, count, counted, moment } from "./words.js";

const LOOK_MS = 1_000;

export class Backups {
  constructor() {
    this.report = make("div", { class: "report", role: "status", hidden: true });
    this.list = make("div", {});
    this.quarantine = make("section", { id: "quarantine", tabindex: -1 });
    const button = may("admin") && make("button", { type: "button", click: () => this.backUp() }, "Make a backup…");
    this.box = make("section", {}, make("header", { class: "line" }, make("h2", {}, "Backups"), button), this.report, this.list);
    attempt(() => this.refresh());
  }

  async refresh() {
    const [{ backups }, { files }] = await Promise.all([get("v1/backups"), get("v1/quarantine")]);
    const rows = backups.reverse().map((/** @type {any} */ one) =>
      make(
        "li",
        {},
        make("code", {}, one.path),
        make("span", {}, moment(one.made_at)),
        may("admin") && make("button", { type: "button", "aria-label": `Verify ${one.path}`, click: () => this.verify(one.path) }, "Verify"),
      ),
    );
    this.list.replaceChildren(rows.length ? make("ul", { class: "rows" }, ...rows) : make("p", { class: "hint" }, "There are none that are known here."));
    const damaged = files.map((/** @type {any} */ one) => make("li", {}, make("code", {}, one.file || one.name), make("span", {}, [one.reason, one.at && moment(one.at), bytes(one.bytes)].filter(Boolean).join(" · "))));
    this.quarantine.replaceChildren(
      ...(damaged.length
        ? [make("h2", {}, "Quarantine"), make("p", { class: "hint" }, "Damaged files, whole, as they were found. What was right in them is in use again; look at each before you delete it in the workspace."), make("ul", { class: "rows" }, ...damaged)]
        : []),
    );
  }

  async backUp() {
    const directory = await askText({
      title: "Make a backup", label: "Directory on the server, by its whole path", confirm: "Back up", required: true,
      hint: "It must not be there yet, or be empty. The daemon goes on meanwhile.",
      act: async (path) => this.follow("Backing up", "back_up", "v1/backup", path.trim()),
    });
    if (directory !== null) await attempt(() => this.refresh());
  }

  /** @param {string} directory */
  verify(directory) {
    return attempt(() => this.follow("Verifying", "verify_backup", "v1/backup/verify", directory));
  }

  /**
   * Have it done, show how far it is, and then what came of it.
   * @param {string} verb
   * @param {string} operation
   * @param {string} path
   * @param {string} directory
   */
  async follow(verb, operation, path, directory) {
    const bar = make("progress", { "aria-label": verb });
    const words = make("span", {}, `${verb} ${directory}…`);
    this.show(false, words, bar);
    const timer = setInterval(() => attempt(async () => {
      const now = (await get("v1/progress")).under_way.find((/** @type {any} */ one) => one.operation === operation);
      if (!now?.total) return;
      bar.max = now.total;
      bar.value = now.done;
      words.textContent = `${verb} ${directory}: ${count(now.done)} of ${count(now.total)}`;
    }), LOOK_MS);
    try {
      const made = await send("POST", path, { directory });
      const problems = [...made.problems, ...made.losses];
      const holds = `${counted(made.sessions, "session")}, ${counted(made.entries, "entry", "entries")}, ${counted(made.files, "file")}, ${bytes(made.bytes)}, as of ${moment(made.made_at)}`;
      const verdict = operation === "back_up" ? "Made" : made.problems.length ? "Not sound" : "Sound";
      this.show(problems.length > 0, make("p", {}, make("b", {}, `${verdict}: `), `${made.directory}. ${holds}.`), problems.length > 0 && make("ul", {}, ...problems.map((one) => make("li", {}, one))));
    } catch (error) {
      this.report.hidden = true;
      throw error;
    } finally {
      clearInterval(timer);
    }
  }

  /**
   * @param {boolean} isWrong
   * @param {...(Node | false)} parts
   */
  show(isWrong, ...parts) {
    this.report.hidden = false;
    this.report.classList.toggle("failed", isWrong);
    this.report.replaceChildren(...parts.filter((one) => one !== false));
  }
}
