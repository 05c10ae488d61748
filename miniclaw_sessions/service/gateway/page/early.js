"use strict";
// Before anything is drawn: the colours that the reader chose, the token out of the address, and the first questions to
// the daemon, which are under way while the page's script is loaded; `request` of api.js takes their answers. Where there
// is a token, what surrounds the conversations is drawn at once.
(() => {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  const given = /^#token=(.+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("token", decodeURIComponent(given[1]));
    history.replaceState(null, "", location.pathname + location.search + "#/");
  }
  const token = sessionStorage.getItem("token");
  window.early = new Map();
  if (!token) return;
  document.documentElement.classList.add("has-token"); // so that the first frame is no empty one
  const ask = (path) => {
    const url = new URL(path, document.baseURI).href;
    const reply = fetch(url, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" });
    const answer = reply.then(async (one) => {
      const read = await one.json(); // now: a body that is read when it is asked for comes some frames later
      return { ok: one.ok, status: one.status, json: async () => read };
    });
    answer.catch(() => {}); // its reader gets the error
    window.early.set(url, answer);
  };
  ask("v1/access");
  const [, kind, id, place] = location.hash.split("/");
  if (kind === "session" && id) {
    ask(`v1/sessions/${id}?last_words=true`);
    if (!place) ask(`v1/sessions/${id}/articles?limit=12`);
  } else {
    ask("v1/sessions?limit=60&last_words=true");
  }
})();
