// Keeps a page live: replaces regions of the page by the regions that the server sends.
"use strict";

(() => {
  const live = document.getElementById("live");
  const away = document.getElementById("away");
  const seen = document.body.dataset.seen;
  let heard = Date.now();
  let source = null;
  let isAway = !away.hidden;

  function duration(ms) {
    const s = Math.max(ms, 0) / 1000;
    if (s < 9.995) return s.toFixed(2) + " s";
    if (s < 59.95) return s.toFixed(1) + " s";
    const whole = Math.round(s);
    if (whole < 3600) return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
    if (whole < 86400) return Math.floor(whole / 3600) + " h " + Math.floor((whole % 3600) / 60) + " min";
    return Math.floor(whole / 86400) + " d " + Math.floor((whole % 86400) / 3600) + " h";
  }

  function times(root) {
    for (const each of root.querySelectorAll("time[data-ms]")) {
      const then = new Date(Number(each.dataset.ms));
      const pad = (number) => String(number).padStart(2, "0");
      const day = new Date().toDateString() === then.toDateString() ? "" :
        then.getFullYear() + "-" + pad(then.getMonth() + 1) + "-" + pad(then.getDate()) + " ";
      each.textContent = day + pad(then.getHours()) + ":" + pad(then.getMinutes()) + ":" + pad(then.getSeconds());
      each.title = then.toISOString();
    }
    ages(root);
  }

  function ages(root) {
    for (const each of root.querySelectorAll("time[data-ago]")) {
      const text = duration(Date.now() - Number(each.dataset.ago)).replace(/\.\d+ s$/, " s");
      if (each.textContent !== text) each.textContent = text;
    }
  }

  // A replaced region keeps its open, scrolled and focused elements.
  function replace(element, html) {
    const key = (each, number) => each.dataset.key ?? String(number);
    const open = new Map([...element.querySelectorAll("details")].map((each, number) => [key(each, number), each.open]));
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const path = focused && focused !== element ? [...element.querySelectorAll("a,button,summary,select,input,pre")].indexOf(focused) : -1;
    const href = path >= 0 ? focused.getAttribute("href") : null;
    const value = focused && "value" in focused ? focused.value : null;
    element.innerHTML = html;
    [...element.querySelectorAll("details")].forEach((each, number) => {
      if (open.has(key(each, number))) each.open = open.get(key(each, number));
    });
    if (path >= 0) {
      const all = [...element.querySelectorAll("a,button,summary,select,input,pre")];
      const again = (href && all.find((each) => each.getAttribute("href") === href)) || all[path];
      if (again) {
        again.focus({ preventScroll: true });
        if (value !== null && "value" in again) again.value = value;
      }
    }
    times(element);
    element.dispatchEvent(new CustomEvent("changed", { bubbles: true }));
  }

  function order(list, ids, regions) {
    const wanted = new Set(ids);
    for (const each of [...list.children]) if (!wanted.has(each.id)) each.remove();
    let next = list.firstElementChild;
    for (const id of ids) {
      let element = document.getElementById(id);
      if (!element) {
        element = document.createElement(list.dataset.list);
        element.id = id;
        element.setAttribute("role", "row");
        if (id in regions) replace(element, regions[id]);
      }
      if (element === next) next = next.nextElementSibling;
      else list.insertBefore(element, next);
    }
  }

  function patch(message) {
    const { regions, orders } = JSON.parse(message.data);
    for (const [id, html] of Object.entries(regions)) {
      const element = document.getElementById(id);
      if (element) replace(element, html);
    }
    for (const [id, ids] of Object.entries(orders)) {
      const list = document.getElementById(id);
      if (list) order(list, ids, regions);
    }
  }

  function ledger(message) {
    const why = JSON.parse(message.data).away;
    if (isAway && why === null && document.querySelector("[data-away]")) {
      location.reload();
      return;
    }
    isAway = why !== null;
    away.hidden = !isAway;
    document.getElementById("away-why").textContent = why || "";
  }

  function show() {
    const silent = Date.now() - heard > 15000;
    const on = source !== null && source.readyState === EventSource.OPEN && !silent;
    const word = isAway ? "ledger away" : on ? "live" : "not connected, trying again";
    live.className = "live " + (on && !isAway ? "on" : "off");
    if (live.textContent !== word) live.textContent = word;
    if (silent && source.readyState !== EventSource.CONNECTING) connect();
    ages(document);
  }

  function connect() {
    if (source) source.close();
    heard = Date.now();
    const at = encodeURIComponent(location.pathname + location.search);
    source = new EventSource("/live?at=" + at + "&seen=" + encodeURIComponent(seen));
    const hear = (act) => (message) => { heard = Date.now(); act(message); };
    source.addEventListener("patch", hear(patch));
    source.addEventListener("ledger", hear(ledger));
    source.addEventListener("beat", hear(() => {}));
    source.onopen = hear(() => show());
    source.onerror = () => {
      show();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  }

  times(document);
  for (const select of document.querySelectorAll("form.filter select[name=sort]")) {
    select.addEventListener("change", () => select.form.submit());
  }
  if (seen) {
    connect();
    setInterval(show, 1000);
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  }
})();
