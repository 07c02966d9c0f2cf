"use strict";
(() => {
  const SECONDS = 900;
  const PLOT = { left: 64, right: 952, top: 22, bottom: 246 };
  const LINES = ["arrived", "admitted", "refused", "shed"];
  const PHASES = {
    handshake: "TLS handshake", connect: "waiting for the CONNECT", held: "held until their turn",
    delayed: "refused, answer delayed", refusing: "being refused", dialing: "waiting for the broker",
    relaying: "connected",
  };
  const BREAKERS = { "closed": "", "half-open": "being tried", "open": "given up for now" };
  const element = (id) => document.getElementById(id);
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const number = (value) => (value >= 10 || value === 0 ? whole : fine).format(value);
  let history = [];

  function say(id, text, kind) {
    const target = element(id);
    if (target.textContent !== text) target.textContent = text;
    if (kind !== undefined) target.className = kind;
  }

  function span(seconds) {
    if (seconds < 100) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${fine.format(seconds / 3600)} h`;
    return `${whole.format(seconds / 86400)} days`;
  }

  function rows(id, all, nothing) {
    const body = element(id);
    const wanted = all.length ? all : [[nothing]];
    body.replaceChildren(...wanted.map((cells) => {
      const row = document.createElement("tr");
      cells.forEach((cell, place) => {
        const data = document.createElement("td");
        const { text = cell, kind = place ? "number" : "" } = typeof cell === "object" ? cell : {};
        data.textContent = text;
        data.className = kind;
        if (!all.length) data.colSpan = 4;
        row.append(data);
      });
      return row;
    }));
  }

  function svg(name, attributes, text) {
    const made = document.createElementNS("http" + "://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The next of 1, 2, 5, 10, 20, 50 … at which three steps are enough.
  function step(most) {
    const decade = 10 ** Math.floor(Math.log10(Math.max(most, 1) / 3));
    return Math.max(1, [1, 2, 5, 10].map((factor) => factor * decade).find((size) => size * 3 >= most) || 1);
  }

  function draw() {
    const most = Math.max(3, ...history.map((second) => Math.max(...second)));
    const size = step(most);
    const top = Math.ceil(most / size) * size;
    // A young process has no 15 minutes yet: its first ones get the room.
    const range = Math.min(SECONDS, Math.max(120, history.length));
    const x = (place) => PLOT.right - (history.length - 1 - place) * (PLOT.right - PLOT.left) / (range - 1);
    const y = (value) => PLOT.bottom - value * (PLOT.bottom - PLOT.top) / top;
    const grid = [];
    for (let value = 0; value <= top; value += size) {
      grid.push(svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.right, y1: y(value), y2: y(value) }));
      grid.push(svg("text", { x: PLOT.left - 6, y: y(value) + 4, "text-anchor": "end" }, short.format(value)));
    }
    const apart = range > 600 ? 5 : range > 240 ? 2 : 1;
    for (let minutes = 0; minutes * 60 <= range; minutes += apart) {
      const at = PLOT.right - minutes * 60 * (PLOT.right - PLOT.left) / range;
      const anchor = at < PLOT.left + 30 ? "start" : minutes === 0 ? "end" : "middle";
      grid.push(svg("text", { x: at, y: PLOT.bottom + 28, "text-anchor": anchor }, minutes ? `${minutes} min ago` : "now"));
    }
    element("grid").replaceChildren(...grid);
    LINES.forEach((name, line) => {
      const points = history.map((second, place) => `${x(place).toFixed(1)} ${y(second[line]).toFixed(1)}`);
      element(`line-${name}`).setAttribute("d", points.length ? `M${points.join("L")}` : "");
    });
    const sums = LINES.map((name, line) => `${number(history.reduce((sum, second) => sum + second[line], 0))} ${name}`);
    say("chart-title", `The last ${span(Math.round(range / 60) * 60)}, second by second`);
    say("chart-words", `In ${span(history.length)}: ${sums.join(", ")}. At most ${number(most)} in one second.`);
  }

  function state(now) {
    if (now.not_ready) return [`Not ready: ${now.not_ready}`, "bad"];
    if (now.storm !== null) return [`A storm, for ${span(now.storm)}`, "storm"];
    return ["No storm", ""];
  }

  function why(rate) {
    const causes = {
      "fixed": "It is admission.rate, as configured.",
      "found": "admission.adaptive has found that the broker bears it.",
      "floor": "admission.adaptive would go lower, but this is min_rate: the broker is slow even so.",
      "ceiling": "admission.adaptive would go higher, but this is max_rate.",
      "slow-start": "A broker has come back: the rate rises slowly to all of it (upstream.breaker.slow_start).",
      "no-broker": "No broker can be reached: nobody is admitted. With this rate it will begin.",
    };
    const limits = [];
    if (rate.cause !== "no-broker") {
      if (rate.window > 0 && rate.in_flight >= rate.window) limits.push("The window is full: just now the broker's answers are the limit.");
      else if (rate.tokens < 1) limits.push("The bucket is empty: just now this rate is the limit.");
      else limits.push("There are tokens left: just now nothing is the limit.");
    }
    if (rate.dry_run) limits.push("A dry run: nobody is refused.");
    return [causes[rate.cause], ...limits].join(" ");
  }

  function show(now) {
    say("state", ...state(now));
    say("arriving", number(now.arriving));
    say("admitting", number(now.admitting));
    say("refusing", number(now.refusing));
    say("outside", now.storm === null ? "–" : number(now.crowd.outside));
    const left = now.crowd.seconds === null ? "not foreseeable" : span(now.crowd.seconds);
    say("left", now.storm === null ? "–" : now.crowd.outside === 0 ? "all in" : left);
    say("connected", number(now.phases.relaying));
    const rate = now.rate;
    say("rate", `${number(rate.tokens_a_second)} CONNECTs a second, ${rate.in_flight} of ${number(rate.window)} in flight`);
    say("why", why(rate));
    rows("phases", Object.entries(PHASES).map(([phase, words]) => [words, number(now.phases[phase])]), "none");
    rows("reasons", now.reasons.map((one) => [`${one.verb}: ${one.reason}`, number(one.count)]), "nobody");
    rows("brokers", now.brokers.map((one) => [
      one.name,
      one.up ? { text: BREAKERS[one.breaker] || "up", kind: "" } : { text: `down ${BREAKERS[one.breaker]}`, kind: "bad" },
      number(one.answering),
      one.latency === null ? "–" : `${number(one.latency)} ms`,
    ]), "none");
    rows("lanes", now.lanes.map((one) => [one.name, number(one.admitting), number(one.refusing)]), "none");
    say("about", `version ${now.version}, up for ${span(now.uptime)}, ${new Date(now.unix * 1000).toLocaleTimeString()}`);
  }

  function listen() {
    const events = new EventSource("/events");
    let fresh = false;
    events.addEventListener("history", (event) => {
      history = JSON.parse(event.data).seconds;
      fresh = true;
    });
    events.addEventListener("now", (event) => {
      const now = JSON.parse(event.data);
      // The first one comes with the history, which ends with its second.
      if (!fresh) history = [...history, now.second].slice(-SECONDS);
      fresh = false;
      show(now);
      draw();
    });
    events.addEventListener("error", () => {
      say("state", "No connection to Seawall: what you see is old", "bad");
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
    });
  }

  listen();
})();
