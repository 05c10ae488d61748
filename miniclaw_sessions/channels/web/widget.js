// The chat of a website: one script, in a shadow tree of its own. The browser keeps each message until the daemon says
// that it is done, and sends it again under the same id; so neither side's end loses or doubles one.
(() => {
  const script = document.currentScript;
  const { title, greeting = "", colour = "", user = "", expires = "0", signature = "", theme = "" } = script.dataset;
  const lang = script.dataset.lang || document.documentElement.lang || navigator.language;
  const base = script.src.replace(/[^/]*$/, "");
  const place = `miniclaw ${base} ${user}`;
  const policy = globalThis.trustedTypes?.createPolicy("miniclaw-chat", { createHTML: (html) => html });
  const ICONS = {
    open: "M4 5h16v11H10l-5 4v-4H4z", close: "M6 6l12 12M18 6L6 18", send: "M12 20V5M5 12l7-7 7 7",
    attach: "M20 11l-8 8a5 5 0 0 1-7-7l8-8a3.5 3.5 0 0 1 5 5l-8 8a2 2 0 0 1-3-3l7-7",
    record: "M9 5a3 3 0 0 1 6 0v6a3 3 0 0 1-6 0zM5 11a7 7 0 0 0 14 0M12 18v3", stop: "M7 7h10v10H7z",
  };
  let pass = "", can = null, isOpen = false, isBusy = false, stream = null, behind = null, recorder = null, files = [];
  let say = { close: "Close", send: "Send", write: "Write a message", lost: "Connecting …", waits: "Waits to be sent", title: "Chat" };
  let outbox = [], pushing = Promise.resolve(), isAsking = false, waitMs = 400, entering = null, isRefused = false;
  const rows = new Map();
  const sent = new Map(); // what is not a row yet

  // --- elements ------------------------------------------------------------------------------------------------------

  function make(tag, set = {}, ...inside) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(set)) {
      if (typeof value === "function") node.addEventListener(name, value);
      else node.setAttribute(name, value);
    }
    node.append(...inside);
    return node;
  }
  function button(id, act) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", ICONS[id]);
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.append(path);
    return make("button", { id, type: "button", click: act }, svg);
  }
  function fragment(html) {  // the server has escaped all that anybody wrote
    const template = make("template");
    template.innerHTML = policy ? policy.createHTML(html) : html;
    return [...template.content.children];
  }
  const opener = button("open", () => show(true));
  const log = make("div", { id: "log", role: "log", tabindex: "0" });
  const status = make("div", { id: "status", role: "status" });
  const picked = make("div", { id: "files" });
  const field = make("textarea", { rows: "1", dir: "auto", keydown: onKey, paste: (event) => event.clipboardData.files.length && add(event.clipboardData.files) });
  const picker = make("input", { type: "file", multiple: "", hidden: "", change: () => { add(picker.files); picker.value = ""; } });
  const buttons = { attach: button("attach", () => picker.click()), record: button("record", record), stop: button("stop", () => post("say", { id: newId(), text: "/stop" }).catch(() => 0)), send: button("send", submit) };
  const close = button("close", () => show(false));
  const heading = make("h2");
  const form = make("form", { submit: (event) => event.preventDefault() }, buttons.attach, buttons.record, picker, field, buttons.stop, buttons.send);
  const panel = make("section", { id: "panel", role: "dialog", hidden: "", keydown: (event) => event.key === "Escape" && !event.isComposing && show(false) }, make("header", {}, heading, close), log, status, picked, form);
  const typing = make("div", { class: "typing", role: "img" }, make("i"), make("i"), make("i"));
  const draft = make("article", { class: "assistant", "aria-busy": "true" });
  const earlier = make("button", { id: "earlier", type: "button", click: readEarlier });
  const host = make("div", { lang, dir: script.dataset.dir || (/^(ar|he|fa|ur)\b/i.test(lang) ? "rtl" : "ltr"), ...(theme && { "data-theme": theme }) });
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("styles of widget.css");
  shadow.adoptedStyleSheets = [sheet];
  shadow.append(opener, panel);
  function paint() {
    if (!colour) return;
    host.style.setProperty("--accent", colour);
    const [r, g, b] = (getComputedStyle(opener).backgroundColor.match(/[\d.]+/g) || []).map((one) => (one / 255) ** 2.2);
    host.style.setProperty("--on", 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff");
  }
  function name() {
    heading.textContent = title || say.title;
    for (const node of [panel, opener, log]) node.setAttribute("aria-label", title || say.title);
    for (const [node, words] of [[close, say.close], [field, say.write], [typing, say.typing], ...Object.entries(buttons).map(([id, one]) => [one, say[id]])]) {
      node.setAttribute("aria-label", words || "");
      node.title = words || "";
    }
    field.placeholder = say.write;
    earlier.textContent = say.earlier || "";
    buttons.attach.hidden = !can;
    buttons.record.hidden = !can?.takes.includes("audio/wav") || !navigator.mediaDevices || !globalThis.MediaRecorder;
    if (can) picker.accept = [...can.takes, "text/*"].join(",");
  }

  // --- what is shown -------------------------------------------------------------------------------------------------

  function show(open) {
    const hadFocus = shadow.activeElement;
    isOpen = open;
    panel.hidden = !open;
    opener.hidden = open;
    keep("open", open ? "1" : null, sessionStorage);
    if (open) {
      opener.classList.remove("news");
      field.focus();
      listen();
    } else if (hadFocus) opener.focus();
    rest();
    toEnd();
  }
  function rest() {  // who does not look needs no connection, unless an answer is on its way
    if (isOpen || isBusy || outbox.length) return;
    stream?.abort();
    stream = null;
  }
  function toEnd() {
    log.scrollTop = log.scrollHeight;
  }
  function steady(change) {  // who reads further up is not moved
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    change();
    if (isAtEnd) toEnd();
  }
  function article(row) {
    if (!rows.has(row.id)) {
      const node = make("article", { class: row.who });
      node.append(...fragment(row.html));
      rows.set(row.id, node);
    }
    sent.get(row.key)?.remove();
    sent.delete(row.key);
    return rows.get(row.id);
  }
  function note(text, kind = "note") {
    if (text && [...log.querySelectorAll(".note")].at(-1)?.textContent !== text) steady(() => tail(make("p", { class: kind, dir: "auto" }, text)));
  }
  function tail(...nodes) {  // before what is still to come
    const first = [draft, typing, ...sent.values()].find((one) => one.parentNode);
    first ? first.before(...nodes) : log.append(...nodes);
  }
  function busy(now) {
    isBusy = now;
    buttons.stop.hidden = !now;
    if (now && !draft.hasChildNodes()) log.append(typing);
    else typing.remove();
  }
  const events = {
    page(page) {
      behind = page.behind;
      const nodes = page.rows.map(article);
      for (const id of sent.keys()) if (!outbox.some((one) => one.message.id === id)) sent.delete(id);
      const ours = new Set(sent.values());
      const kept = [...log.children].filter((one) => one.matches(".note, .asks") || ours.has(one));
      draft.replaceChildren();
      log.replaceChildren(...(behind ? [earlier] : greeting ? [make("p", { class: "note", dir: "auto" }, greeting)] : []), ...nodes, ...kept.filter((one) => one.textContent !== greeting));
      busy(false);
      toEnd();
    },
    row(row) {
      if (row.who === "assistant") {
        draft.replaceChildren();
        draft.remove();
      }
      tail(article(row));
      if (!isOpen && row.who === "assistant") opener.classList.add("news");
    },
    typing() {
      draft.replaceChildren();
      draft.remove();
      busy(true);
    },
    prose(piece) {
      if (piece.open !== null) {
        const open = fragment(piece.open);
        for (const old of draft.querySelectorAll(":scope > .open")) old.remove();
        for (const one of open) one.classList.add("open");
        draft.append(...fragment(piece.closed), ...open);
        log.append(draft);
        typing.remove();
      }
      if (piece.text) {
        const last = draft.lastElementChild;
        (last?.querySelector("pre code, pre") ?? last)?.append(piece.text);
      }
    },
    end({ failed }) {
      busy(false);
      note(failed, "note failed");
      draft.replaceChildren();
      draft.remove();
      rest();
    },
    asks({ calls }) {
      for (const old of log.querySelectorAll(".asks")) old.remove();
      for (const call of calls) {
        const answer = (yes) => make("button", { type: "button", click: () => { box.remove(); field.focus(); enqueue({ id: newId(), approvals: { [call.id]: yes } }); } }, yes ? say.allow : say.refuse);
        const box = make("div", { class: "asks", role: "group", "aria-label": say.asks }, make("p", { dir: "auto" }, call.reason || say.asks), make("pre", { tabindex: "0" }, `${call.name} ${call.arguments}`), answer(true), answer(false));
        log.append(box);
      }
    },
  };
  async function readEarlier() {
    const reply = await post("earlier", { behind }).catch(() => null);
    if (!reply?.ok) return;
    const page = await reply.json(), height = log.scrollHeight;
    earlier.after(...page.rows.map(article));
    behind = page.behind;
    if (!behind) earlier.remove();
    log.scrollTop += log.scrollHeight - height;
    log.focus();
  }

  // --- the connection ------------------------------------------------------------------------------------------------

  function keep(key, value, where = localStorage) {
    try {
      value === null ? where.removeItem(`${place} ${key}`) : where.setItem(`${place} ${key}`, value);
    } catch { /* there is no room, or the browser keeps nothing: then this page keeps it */ }
  }
  function kept(key, where = localStorage) {
    try { return where.getItem(`${place} ${key}`); } catch { return null; }
  }
  function keptMessages() {
    try {
      const keys = Object.keys(localStorage).filter((key) => key.startsWith(`${place} out `));
      return keys.sort().map((key) => JSON.parse(localStorage.getItem(key)));
    } catch { return []; }
  }
  const newId = () => `${Date.now().toString(36)}-${[...crypto.getRandomValues(new Uint32Array(3))].map((one) => one.toString(36)).join("")}`;
  const pause = (ms) => new Promise((done) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      done();
    };
    const timer = setTimeout(end, ms * (0.75 + Math.random() / 2));
    addEventListener("online", end);
  });
  function post(path, body, signal) {
    const headers = { "Content-Type": "application/json", ...(pass && { Authorization: `Bearer ${pass}` }) };
    return fetch(base + path, { method: "POST", headers, body: JSON.stringify(body), signal, credentials: "omit", cache: "no-store" });
  }
  function enter() { // once for all that wait for it
    return (entering ||= entered().finally(() => (entering = null)));
  }
  async function entered() {
    const known = (pass = (!user && kept("pass")) || "");
    const reply = await post("enter", { lang, user, expires: +expires, signature });
    const said = await reply.json();
    form.hidden = isRefused = said.error?.type === "wrong_signature";
    if (isRefused) {
      console.error(`miniclaw-sessions: ${said.error.message}`);
      note(said.error.message, "note failed");
    }
    if (!reply.ok) throw Object.assign(new Error(said.error.message), said);
    pass = (!user && !known && kept("pass")) || said.visitor; // another tab may have been first
    if (!user) keep("pass", pass);
    [can, say] = [said, said.words];
    name();
  }
  async function listen() {
    if (stream) return;
    const own = (stream = new AbortController()), { signal } = own;
    for (let wait = 400; !signal.aborted && !isRefused; wait = Math.min(wait * 2, 8000)) {
      try {
        if (!can || !pass) await enter();
        const reply = await post("follow", {}, signal);
        if (reply.status === 401) pass = keep("pass", null) || "";
        if (!reply.ok) throw await reply.json();
        warn("");
        wait = 400;
        await read(reply.body.getReader());
      } catch (error) {
        wait = Math.max(wait, (error.retry_s || 0) * 1000);
      }
      if (signal.aborted || isRefused) break;
      warn(say.lost);
      await pause(wait);
    }
    if (stream === own) stream = null;
  }
  async function read(reader) {
    const decoder = new TextDecoder();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      steady(() => lines.filter(Boolean).map(JSON.parse).forEach((one) => events[one.kind]?.(one)));
    }
  }

  // --- sending -------------------------------------------------------------------------------------------------------

  function submit() {
    const text = field.value;
    if (!text.trim() && !files.length) return;
    if (can && text.length > can.max_characters) return warn(say.size);
    const message = { id: newId(), text, ...(files.length && { files }) };
    keep(`out ${message.id}`, JSON.stringify(message));
    field.value = "";
    files = [];
    draw();
    warn("");
    enqueue(message);
    listen();
    toEnd();
  }
  function enqueue(message) {
    if (message.text !== undefined) {
      const words = [message.text, ...(message.files || []).map((one) => one.name)].filter(Boolean).join("\n");
      const node = make("article", { class: "visitor waits", "data-waits": say.waits || "" }, make("p", { dir: "auto" }, words));
      sent.set(message.id, node);
      log.append(node);
    }
    outbox.push({ message, isThere: false });
    push().then(ask);
  }
  function push() { // what the daemon does not have yet, in order, one after the other
    return (pushing = pushing.then(async () => {
      for (const one of outbox.filter((each) => !each.isThere)) {
        while (!one.isThere && outbox.includes(one)) await exchange(one, one.message);
      }
    }));
  }
  async function ask() { // what becomes of the first
    if (isAsking) return;
    isAsking = true;
    while (outbox.length && !isRefused) {
      await push();
      if (outbox.length) await exchange(outbox[0], { id: outbox[0].message.id });
    }
    isAsking = false;
    rest();
  }
  async function exchange(one, body) {
    const { id } = one.message;
    let reply, said;
    try {
      if (!pass) await enter();
      reply = await post("say", body);
      said = await reply.json();
    } catch { // it may be another daemon that answers next, and know nothing
      for (const each of outbox) each.isThere = false;
      if (isRefused) outbox.length = 0;
      return pause((waitMs = Math.min(waitMs * 2, 8000)));
    }
    waitMs = 400;
    if (reply.status === 202) one.isThere = true;
    else if (reply.status === 404) for (const each of outbox) each.isThere = false;
    else if (reply.status === 401) pass = keep("pass", null) || "";
    else if (reply.status === 429 || reply.status >= 500) {
      one.isThere = false;
      warn(said.error?.message || "");
      await pause((said.retry_s || 1) * 1000);
    } else {
      warn("");
      note(reply.ok ? said.beside : said.error.message, reply.ok ? "note" : "note failed");
      keep(`out ${id}`, null);
      outbox = outbox.filter((each) => each !== one);
    }
    if (one.isThere || !outbox.includes(one)) sent.get(id)?.classList.remove("waits");
  }
  function warn(text) {
    status.textContent = text;
  }
  function onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  }
  async function add(chosen) {
    if (!can) return;
    for (const file of chosen) {
      const size = files.reduce((sum, one) => sum + one.data.length * 0.75, file.size);
      const isTaken = !file.type || file.type.startsWith("text/") || can.takes.includes(file.type) || /json|xml|wav/.test(file.type);
      if (!isTaken) warn(say.kind);
      else if (size > can.max_file_bytes) warn(say.size);
      else {
        const bytes = new Uint8Array(await file.arrayBuffer());
        let text = "";
        for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
        files = [...files, { name: file.name, data: btoa(text) }];
      }
    }
    draw();
    field.focus();
  }
  function draw() {
    steady(() => picked.replaceChildren(...files.map((file) => make("span", { dir: "auto" }, file.name, make("button", { type: "button", "aria-label": `${say.remove} ${file.name}`, click: () => { files = files.filter((one) => one !== file); draw(); field.focus(); } }, "×")))));
  }
  async function record() {
    if (recorder) return recorder.stop();
    try {
      const source = await navigator.mediaDevices.getUserMedia({ audio: true }), pieces = [];
      recorder = new MediaRecorder(source);
      recorder.ondataavailable = (event) => pieces.push(event.data);
      recorder.onstop = async () => {
        recorder = null;
        buttons.record.classList.remove("on");
        name();
        for (const track of source.getTracks()) track.stop();
        await wave(new Blob(pieces)).then((file) => add([file]), () => warn(say.microphone)); // too short to be a sound
      };
      recorder.start();
      buttons.record.classList.add("on");
      buttons.record.setAttribute("aria-label", buttons.record.title = say.recorded);
    } catch {
      warn(say.microphone);
    }
  }
  async function wave(blob) {  // what browsers record differs; models and transcriptions take WAV
    const RATE = 16000;
    const context = new OfflineAudioContext(1, 1, RATE);
    const sound = (await context.decodeAudioData(await blob.arrayBuffer())).getChannelData(0);
    const view = new DataView(new ArrayBuffer(44 + sound.length * 2));
    const words = [0x52494646, 36 + sound.length * 2, 0x57415645, 0x666d7420, 16, 0x10001, RATE, RATE * 2, 0x100002, 0x64617461, sound.length * 2];
    words.forEach((one, at) => view.setUint32(at * 4, one, ![0, 2, 3, 9].includes(at)));
    sound.forEach((one, at) => view.setInt16(44 + at * 2, Math.max(-1, Math.min(1, one)) * 32767, true));
    return new File([view], "voice.wav", { type: "audio/wav" });
  }

  // --- at the beginning ----------------------------------------------------------------------------------------------

  function begin() {
    document.body.append(host);
    paint();
    name();
    busy(false);
    if (greeting) log.append(make("p", { class: "note", dir: "auto" }, greeting));
    const left = keptMessages();
    left.forEach(enqueue);
    if (kept("open", sessionStorage)) {
      show(true);
      shadow.activeElement?.blur();
    } else if (left.length) listen();
  }
  document.body ? begin() : addEventListener("DOMContentLoaded", begin);
})();
