// Asks /status every two seconds and shows what it says. All that the relay sends is set as text, never as markup.

const EVERY = 2000; // ms between questions while the relay answers
const UNSEEN = 10000; // ms while nobody looks at the tab
const PATIENCE = 5000; // ms for one answer
const LONGEST = 10000; // ms between questions while it doesn't
const TOKEN = "cdc-outbox token";
const SVG = "http://www.w3.org/2000/svg";

const LEVELS = ["ok", "unknown", "warning", "critical"];
const LEVEL_WORDS = { ok: "OK", unknown: "Unknown", warning: "Warning", critical: "Critical" };

// The words of each state, its level, and what it means where the relay gives no reason of its own.
const STATES = {
  connecting: ["Connecting", "warning", "It is trying to reach PostgreSQL and Kafka."],
  standby: ["Standing by", "ok", "Another relay has the slot. This one takes over when that one is gone."],
  streaming: ["Streaming", "ok", "Events reach Kafka as they are committed."],
  held: ["Held", "warning", "Something around the relay forbids delivery. Nothing is skipped."],
  blocked: ["Blocked", "critical", "One event can't be published. Nothing after it is sent, and nothing is skipped."],
  draining: ["Draining", "ok", "It ends once all that was sent is confirmed."],
  stopped: ["Stopped", "critical", "It has ended. PostgreSQL keeps WAL for its slot until a relay comes back."],
};

const HOLDER = "What holds WAL back";

const element = (id) => document.getElementById(id);

// Quantities in words.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function number(value) {
  return value < 10 ? value.toFixed(1).replace(".0", "") : whole.format(value);
}

function scaled(value, base, units) {
  let unit = 0;
  while (value >= base && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return `${value < 100 && value % 1 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function bytes(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

function duration(seconds) {
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 10) return `${number(seconds)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(minutes / 60);
  return hours < 24 * 60 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${whole.format(hours / 24)} days`;
}

function clock(moment, withSeconds = true) {
  return new Date(moment).toISOString().slice(11, withSeconds ? 19 : 16);
}

// A clause as a sentence begins, but for a name of something.
function sentence(text) {
  return /^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

function count(value, one, many) {
  return `${whole.format(value)} ${value === 1 ? one : many}`;
}

// The document, changed only where it differs, so that nothing is read out twice and a selection stays.

function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function set(target, name, value) {
  if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function draw(name, attributes = {}, ...children) {
  const drawn = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) drawn.setAttribute(key, value);
  drawn.append(...children);
  return drawn;
}

const shown = new Map();

function fill(target, content, build) {
  const key = JSON.stringify(content);
  if (shown.get(target) === key) return;
  shown.set(target, key);
  target.replaceChildren(...[build(content)].flat());
}

// Commands and statements as remedies have them, each up to where the prose goes on.
const COMMANDS = [
  '(?:export CDC_OUTBOX_ADMIN_DSN="\\$OWNER_DSN" && )?cdc-outbox (?:start|init|drop|health|doctor|peek|find|config|backfill|replay|audit|recover|cleanup|dead-letters)[^,;]*',
  "kafka-[a-z]+\\.sh [^,;]*",
  `psql (?:"\\$OWNER_DSN" )?-c '[^']*'`,
  "(?:select \\w+\\(|alter (?:system|table|publication|role|database) |create (?:publication|schema|role|table) |" +
    "drop (?:publication|table|role) |grant \\w+ |(?:rollback|commit) prepared )[^;]*;",
];
const COMMAND = new RegExp(`(${COMMANDS.join("|")})`);

// A step to take: prose as it is, and what can be pasted set apart, to be taken whole.
function step(text, label = "Next") {
  const parts = text.split(COMMAND).map((part, index) => (index % 2 ? make("code", {}, part) : part));
  return [make("span", { class: "quiet" }, `${label}: `), ...parts];
}

// Lines over the last hour, or over as much of it as there is.

const HOUR = 3600000;
const SHORTEST = 300000;
const TICKS = [60000, 120000, 300000, 600000, 900000];

function binary(least) {
  return 2 ** Math.ceil(Math.log2(least));
}

function decimal(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
}

class Chart {
  // `series` is [key of a point, name, class]; `grid` rounds the distance of two grid lines up; `least` is the
  // smallest scale, so that a quiet hour looks quiet.
  constructor(figure, { title, series, format, grid, least }) {
    Object.assign(this, { title, series, format, grid, least, points: [], limit: null, at: null });
    this.values = series.map(() => make("strong"));
    this.when = make("li", { class: "when" });
    this.legend = make("ul", { class: "legend" });
    series.forEach(([, name, kind], index) => {
      const swatch = draw("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
      swatch.append(draw("path", { class: `line ${kind}`, d: "M1 4H23" }));
      this.legend.append(make("li", {}, swatch, make("span", {}, `${name} `, this.values[index])));
    });
    this.legend.append(this.when);
    this.plot = draw("svg", { role: "img", tabindex: "0" });
    figure.append(this.legend, this.plot);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerdown", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.look(null));
    this.plot.addEventListener("blur", () => this.look(null));
    this.plot.addEventListener("keydown", (event) => this.walk(event));
  }

  show(history, limit = null) {
    this.points = (history?.points ?? []).map((point) => ({ ...point, at: Date.parse(point.at) }));
    this.step = 1000 * (history?.step_seconds ?? 10);
    this.limit = limit;
    this.draw();
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const part = (event.clientX - box.left - this.left) / (box.width - this.left - 6);
    const moment = this.from + part * (this.until - this.from);
    let nearest = null;
    this.points.forEach(({ at }, index) => {
      if (nearest === null || Math.abs(at - moment) < Math.abs(this.points[nearest].at - moment)) nearest = index;
    });
    this.look(nearest);
  }

  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
    if (event.key === "Escape") this.look(null);
    if (!by || !this.points.length) return;
    event.preventDefault();
    this.legend.setAttribute("aria-live", "polite");
    const last = this.points.length - 1;
    const index = this.at === null ? last : this.points.findIndex(({ at }) => at === this.at);
    this.look(Math.min(last, Math.max(0, index + by)));
  }

  look(index) {
    this.at = index === null ? null : this.points[index].at;
    if (index === null) this.legend.removeAttribute("aria-live");
    this.draw();
  }

  draw() {
    const { width, height } = this.plot.getBoundingClientRect();
    if (!width || !this.plot.isConnected) return;
    this.until = this.points.at(-1)?.at ?? Date.now();
    const known = this.until - (this.points[0]?.at ?? 0);
    this.from = this.until - Math.min(HOUR, Math.max(SHORTEST, known));
    const seen = this.points.filter(({ at }) => at >= this.from);
    const highest = Math.max(this.least, ...seen.flatMap((point) => this.series.map(([key]) => point[key] ?? 0)));
    const limited = this.limit !== null && highest > this.limit / 4;
    const most = limited ? Math.max(highest, this.limit) : highest;
    const unit = this.grid(most / 3);
    const top = limited ? most * 1.08 : unit * Math.ceil(most / unit);
    const [above, below] = [8, 22];
    const marks = Array.from({ length: Math.floor(top / unit + 0.001) }, (_, index) => unit * (index + 1));
    const names = marks.map((value) => this.format(value));
    this.left = 10 + 7 * Math.max(...names.map((name) => name.length));
    const x = (at) => this.left + ((at - this.from) / (this.until - this.from)) * (width - this.left - 6);
    const y = (value) => above + (1 - value / top) * (height - above - below);
    set(this.plot, "viewBox", `0 0 ${width} ${height}`);

    const back = [];
    for (const value of [0, ...marks]) {
      const level = Math.round(y(value)) + 0.5;
      back.push(draw("path", { class: value ? "grid" : "base", d: `M${this.left} ${level}H${width}` }));
    }
    const front = marks.map((value, index) =>
      draw("text", { x: this.left - 8, y: Math.round(y(value)) + 4, "text-anchor": "end" }, names[index]),
    );
    const tick = TICKS.find((length) => length >= (this.until - this.from) / 5) ?? HOUR / 4;
    for (let at = Math.ceil(this.from / tick) * tick; at <= this.until; at += tick) {
      if (x(at) < this.left + 16 || x(at) > width - 18) continue;
      front.push(draw("text", { x: x(at), y: height - 5, "text-anchor": "middle" }, clock(at, false)));
    }
    if (limited) {
      const level = Math.round(y(this.limit)) + 0.5;
      back.push(draw("path", { class: "limit", d: `M${this.left} ${level}H${width}` }));
      front.push(draw("text", { class: "limit", x: this.left + 8, y: level + 15 }, "limit: the slot is lost"));
    }
    const lines = this.series.toReversed().flatMap(([key, , kind]) => this.trace(seen, key, kind, x, y));
    if (!seen.length) {
      const middle = { x: (this.left + width) / 2, y: (above + height - below) / 2 + 4, "text-anchor": "middle" };
      front.push(draw("text", middle, `The first point comes after ${Math.round(this.step / 1000)} s.`));
    }
    this.plot.replaceChildren(...back, ...lines, ...front, ...this.cursor(x, y, height - below));
    this.read(seen);
  }

  // One series as its area and its line, broken where the relay has no points.
  trace(seen, key, kind, x, y) {
    const runs = [];
    let before = -Infinity;
    for (const point of seen) {
      if (point[key] === null || point[key] === undefined) continue;
      if (point.at - before > 3 * this.step) runs.push([]);
      before = point.at;
      runs.at(-1).push([x(point.at), y(point[key])]);
    }
    const path = (run) => `M${run.map(([left, down]) => `${left.toFixed(1)} ${down.toFixed(1)}`).join("L")}`;
    const areas = runs.map((run) => `${path(run)}V${y(0)}H${run[0][0].toFixed(1)}Z`);
    const lines = runs.map((run) => (run.length > 1 ? path(run) : `${path(run)}h.01`));
    return [
      draw("path", { class: `area ${kind}`, d: areas.join("") }),
      draw("path", { class: `line ${kind}`, d: lines.join("") }),
    ];
  }

  cursor(x, y, foot) {
    const point = this.points.find(({ at }) => at === this.at);
    if (!point) return [];
    const dots = this.series
      .filter(([key]) => point[key] !== null && point[key] !== undefined)
      .map(([key, , kind]) => draw("circle", { class: `dot ${kind}`, cx: x(point.at), cy: y(point[key]), r: 5 }));
    return [draw("path", { class: "cursor", d: `M${x(point.at)} 0V${foot}` }), ...dots];
  }

  // The legend says the values at the cursor, or the latest; the label says them to who can't see lines.
  read(seen) {
    const point = this.points.find(({ at }) => at === this.at) ?? seen.at(-1);
    const told = (value) => (value === null || value === undefined ? "–" : this.format(value));
    this.series.forEach(([key], index) => say(this.values[index], told(point?.[key])));
    say(this.when, this.at === null ? "" : `at ${clock(this.at)}`);
    const words = this.series.map(([key, name]) => {
      const values = seen.map((each) => each[key]).filter((value) => value !== null && value !== undefined);
      return values.length
        ? `${name}: ${this.format(values.at(-1))} now, at most ${this.format(Math.max(...values))}`
        : `${name}: nothing known`;
    });
    const span = duration((this.until - this.from) / 1000);
    set(this.plot, "aria-label", `${this.title} over the last ${span}. ${words.join("; ")}.`);
  }
}

const charts = {
  lags: new Chart(element("lags"), {
    title: "Write-ahead log behind this slot",
    series: [
      ["unconfirmed_bytes", "Not confirmed by Kafka", "one"],
      ["retained_bytes", "Kept on disk", "two"],
    ],
    format: bytes,
    grid: binary,
    least: 1048576,
  }),
  rates: new Chart(element("rates"), {
    title: "Events a second",
    series: [["events_per_second", "Published", "one"]],
    format: (value) => `${number(value)}/s`,
    grid: decimal,
    least: 3,
  }),
  latencies: new Chart(element("latencies"), {
    title: "Latency from commit to Kafka",
    series: [
      ["p50_seconds", "Median", "one"],
      ["p99_seconds", "99 % within", "two"],
    ],
    format: duration,
    grid: decimal,
    least: 0.003,
  }),
};

// The page, from one answer.

let relay = null;

function show(document_) {
  relay = document_;
  const { health } = relay;
  const [, level] = STATES[relay.state] ?? [relay.state, "unknown"];
  const worst = LEVELS[Math.max(LEVELS.indexOf(level), LEVELS.indexOf(health?.status ?? "ok"))];
  set(document.body, "data-level", worst);
  say(element("slot"), `${relay.slot} · ${relay.version}`);
  showState(health);
  showFigures(health);
  const limit = health?.limits?.max_slot_wal_keep_bytes ?? null;
  charts.lags.show(relay.history, limit);
  charts.rates.show(relay.history);
  charts.latencies.show(relay.history);
  const who = health?.culprit?.message ?? "";
  const told = health?.status !== "ok" && health?.summary.includes(who);
  fill(element("culprit"), told ? "" : who, (message) => (message ? named(HOLDER, message) : []));
  fill(element("advice"), health?.advice ?? "", (text) => (text ? step(text, "Advice") : []));
  fill(element("topics"), relay.topics ?? {}, topics);
  fill(element("errors"), relay.errors ?? [], errors);
  fill(element("checks"), health?.checks ?? [], checks);
  fill(element("facts"), facts(health), table);
  element("main").hidden = false;
  element("door").hidden = true;
  const [words] = STATES[relay.state] ?? [relay.state];
  document.title = `${worst === "ok" ? "" : `${LEVEL_WORDS[worst]}: `}${words} · ${relay.slot}`;
}

function showState(health) {
  const [words, , meaning] = STATES[relay.state] ?? [relay.state, "unknown", ""];
  say(element("state"), words);
  say(element("reason"), sentence(relay.reason || meaning));
  const faults = relay.faults ?? [];
  element("faults").hidden = !faults.length;
  say(element("faults"), `Fault points are switched on: ${faults.join(", ")}`);
  const troubled = health && health.status !== "ok";
  element("verdict").hidden = !troubled;
  if (!troubled) return;
  set(element("verdict"), "data-level", health.status);
  say(element("verdict-title"), LEVEL_WORDS[health.status] ?? health.status);
  fill(element("findings"), findings(health), (list) => list.map(([name, text]) => make("li", {}, ...named(name, text))));
  fill(element("next-step"), health.next ?? "", (text) => (text ? step(text) : []));
}

// The clauses of the summary without what stands above them already, then what else is wrong; each with its name.
function findings(health) {
  const doing = relay.reason ? `${relay.state} (${relay.reason})` : relay.state;
  const summary = health.summary.startsWith(`${doing}; `) ? health.summary.slice(doing.length + 2) : health.summary;
  const who = health.culprit?.message;
  const named = who && summary.includes(who);
  const clauses = (text) => text.split("; ").filter(Boolean).map((clause) => ["", clause]);
  const [before, after = ""] = named ? summary.split(who) : [summary];
  const wrong = (health.checks ?? []).filter(
    ({ name, status }) => name !== "relay" && ["warning", "critical"].includes(status),
  );
  const more = wrong.filter(({ message }) => !health.summary.includes(message)).map(({ message }) => ["", message]);
  return [...clauses(before), ...(named ? [[HOLDER, who]] : []), ...clauses(after), ...more];
}

function named(name, text) {
  return name ? [make("strong", {}, `${name}: `), text] : [sentence(text)];
}

function showFigures(health) {
  figure("loss", ...loss(health), levelOf(health, "time_to_loss"));
  figure("waiting", ...waiting(), levelOf(health, "oldest_unacknowledged"));
  const rate = relay.throughput?.events_per_second ?? null;
  figure(
    "throughput",
    rate === null ? "–" : `${number(rate)}/s`,
    `${whole.format(relay.events?.published ?? 0)} since the start`,
  );
  const { p50_seconds: p50 = null, p99_seconds: p99 = null } = relay.latency ?? {};
  figure("latency", p50 === null ? "–" : duration(p50), p99 === null ? "no event lately" : `median; 99 % within ${duration(p99)}`);
}

function levelOf(health, name) {
  return health?.checks?.find((check) => check.name === name)?.status ?? "ok";
}

function figure(id, value, note, level = "ok") {
  const [large, small] = element(id).querySelectorAll("dd");
  say(large, value);
  say(small, note);
  set(element(id), "data-level", level);
}

// How long PostgreSQL would keep what the slot needs: the figure, and what it stands on.
function loss(health) {
  if (!health?.slot) return ["–", "not measured yet"];
  const { slot, limits, forecast, rate } = health;
  if (slot.wal_status === "lost") return ["Lost", "PostgreSQL has removed WAL that this slot needs"];
  if ((slot.retained_bytes ?? null) === null) return ["–", "not known now"];
  const limit = limits.max_slot_wal_keep_bytes ?? null;
  const kept = `${bytes(slot.retained_bytes)}${limit === null ? "" : ` of ${bytes(limit)}`} kept`;
  if (forecast.loss === "in") {
    const pace = rate.wal_bytes_per_second ? `; ${bytes(rate.wal_bytes_per_second)}/s of WAL` : "";
    return [forecast.seconds_to_loss > 2592000 ? "over a month" : duration(forecast.seconds_to_loss), kept + pace];
  }
  if (forecast.loss === "now") return ["Any moment", kept];
  if (limit === null) return ["No limit", `${kept}, until the disk is full`];
  return [forecast.loss === "never" ? "Not in sight" : "–", kept];
}

function waiting() {
  const age = relay.delivery?.oldest_unacknowledged_seconds ?? null;
  if (age === null) return ["–", "not known"];
  if (age === 0) return ["Nothing", "all that came is confirmed"];
  const { events = 0, bytes: size = 0 } = relay.inflight ?? {};
  return [duration(age), `${count(events, "event", "events")}, ${bytes(size)} on the way`];
}

const TOPICS = 10;

function topics(counts) {
  const rows = Object.entries(counts).sort(([a, m], [b, n]) => n - m || a.localeCompare(b));
  if (!rows.length) return make("p", { class: "quiet" }, "No event published since the start.");
  const most = rows[0][1];
  const row = ([topic, n]) => {
    const bar = draw("svg", { viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" });
    bar.append(draw("rect", { class: "rest", width: 100, height: 3 }));
    bar.append(draw("rect", { width: most ? (100 * n) / most : 0, height: 3 }));
    return make("li", {}, make("span", {}, topic), make("span", { class: "count" }, whole.format(n)), bar);
  };
  const first = make("ul", { class: "bars" }, ...rows.slice(0, TOPICS).map(row));
  if (rows.length <= TOPICS) return first;
  const others = make("ul", { class: "bars" }, ...rows.slice(TOPICS).map(row));
  const rest = make("details", {}, make("summary", {}, `${rows.length - TOPICS} more`), others);
  rest.open = element("topics").querySelector("details")?.open ?? false;
  return [first, rest];
}

function errors(list) {
  if (!list.length) return make("p", { class: "quiet" }, "None since the start.");
  const item = ({ at, error, next }) =>
    make(
      "li",
      {},
      make("p", {}, make("time", { datetime: at }, stamp(at)), ` ${error}`),
      make("p", { class: "next" }, ...(next ? step(next) : [])),
    );
  return make("ol", { class: "entries" }, ...list.toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at)).map(item));
}

// The clock, and the day where it isn't today's.
function stamp(at) {
  const day = at.slice(0, 10);
  return day === new Date().toISOString().slice(0, 10) ? clock(at) : `${day} ${clock(at)}`;
}

function checks(list) {
  if (!list.length) return make("p", { class: "quiet" }, "Not measured yet.");
  const item = ({ name, status, message }) =>
    make(
      "li",
      {},
      make("span", { class: "level", "data-level": status }, LEVEL_WORDS[status] ?? status),
      make("span", {}, make("span", { class: "quiet" }, `${name.replaceAll("_", " ")}: `), message),
    );
  return make("ul", { class: "checks" }, ...list.map(item));
}

function facts(health) {
  const { lsn = {}, inflight = {}, events = {}, delivery = {}, mapping = {}, marks } = relay;
  const slot = health?.slot ?? {};
  const rows = [
    ["received up to", lsn.received],
    ["confirmed up to", lsn.confirmed],
    ["last confirmed at", delivery.last_acknowledged_at && stamp(delivery.last_acknowledged_at)],
    ["events received", events.received !== undefined && whole.format(events.received)],
    ["events published", events.published !== undefined && whole.format(events.published)],
    ...Object.entries(events.skipped ?? {}).map(([reason, n]) => [`left out: ${reason}`, whole.format(n)]),
    ["on the way", inflight.events !== undefined && `${count(inflight.events, "event", "events")}, ${bytes(inflight.bytes)}`],
    ["marked as sent", marks && `${whole.format(marks.marked)}, ${whole.format(marks.waiting)} waiting`],
    ["marks fail", marks?.failing],
    ["slot", slot.wal_status && `${slot.active ? `active, pid ${slot.active_pid}` : "inactive"}, WAL ${slot.wal_status}`],
    ["database", slot.database],
    ["publication", health?.publication?.name],
    ...Object.entries(mapping).map(([name, text]) => [name, text]),
  ];
  return rows.filter(([, value]) => value);
}

function table(rows) {
  const row = ([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value));
  return make("table", { class: "facts" }, make("tbody", {}, ...rows.map(row)));
}

// Asking, and saying so when there is no answer.

let answered = null; // when the last answer came
let failures = 0;
let problem = "";
let timer = 0;
const opened = Date.now();

async function ask() {
  clearTimeout(timer);
  const token = sessionStorage.getItem(TOKEN);
  try {
    const answer = await fetch("status", {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (answer.status === 401) {
      knock(token !== null);
      return;
    }
    if (!answer.ok) throw new Error(`it answers ${answer.status} to /status`);
    const status = await answer.json();
    failures = 0;
    answered = Date.now();
    show(status);
  } catch (error) {
    failures += 1;
    element("door").hidden = true;
    problem = error instanceof TypeError || error.name === "TimeoutError" ? "" : error.message;
  }
  tell();
  timer = setTimeout(ask, pause());
}

function pause() {
  if (failures) return Math.min(LONGEST, 500 * 2 ** failures);
  return document.hidden ? UNSEEN : EVERY;
}

// One question without an answer may be chance; two are a loss.
function tell() {
  if (!element("door").hidden) return;
  const lost = failures > 1;
  element("lost").hidden = !lost;
  document.body.classList.toggle("stale", lost);
  say(element("live"), lost ? "no answer" : failures ? "asking again" : answered ? `live, ${clock(answered)}` : "asking the relay");
  if (!lost) {
    if (relay) say(element("since"), `for ${duration(Math.max(1, Math.round((Date.now() - Date.parse(relay.since)) / 1000)))}`);
    return;
  }
  set(document.body, "data-level", "unknown");
  say(element("since"), "when last heard of");
  const since = clock(answered ?? opened);
  say(element("lost-title"), `The relay has not answered since ${since}`);
  const age = duration(Math.max(1, Math.round((Date.now() - (answered ?? opened)) / 1000)));
  const below = answered ? ` What is below was true ${age} ago, and may not be any more.` : "";
  say(element("lost-text"), `${problem ? `${problem[0].toUpperCase()}${problem.slice(1)}. ` : ""}This page goes on asking.${below}`);
  document.title = `No answer · ${relay?.slot ?? "cdc-outbox"}`;
}

// The relay wants a token: ask for it, once, and again only when it was refused.
function knock(refused) {
  sessionStorage.removeItem(TOKEN);
  element("main").hidden = true;
  element("lost").hidden = true;
  element("door").hidden = false;
  say(element("live"), "token needed");
  say(element("refused"), refused ? "The relay refused that token." : "");
  element("token").value = "";
  element("token").focus();
  document.title = "Token needed · cdc-outbox";
}

element("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, element("token").value.trim());
  ask();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && element("door").hidden) ask();
});
addEventListener("online", () => {
  if (element("door").hidden) ask();
});
setInterval(tell, 1000);

ask();
