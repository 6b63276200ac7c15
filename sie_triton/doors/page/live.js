// Show the status of the server and of its models.

import { byId, element, emptyLine, Series, setText } from "./elements.js";
import { bytes, count, duration, milliseconds, plural, rate, UNKNOWN } from "./words.js";

const STATES = { available: "cold" };

// Cells of a model's row after its name and state: title, and text of the model and its requests a second.
const CELLS = [
  ["Memory", (model) => (model.memory_bytes ? bytes(model.memory_bytes) : UNKNOWN)],
  ["In progress", (model) => count(model.queue_depth)],
  ["Requests/s", (model, perSecond) => rate(perSecond)],
  ["p50", (model) => milliseconds(model.traffic?.p50_ms)],
  ["p99", (model) => milliseconds(model.traffic?.p99_ms)],
  ["Errors", (model) => count(model.traffic?.errors)],
  ["Loads", (model) => count(model.traffic?.loads)],
  ["Evictions", (model) => count(model.traffic?.evictions)],
];

class ModelRow {
  constructor(name) {
    this.state = element("span", { class: "state" });
    this.failure = element("p", { class: "error" });
    this.line = emptyLine();
    this.cells = CELLS.map(([title]) => element("td", { role: "cell", class: "number", "data-label": title }));
    this.texts = this.cells.map(() => document.createTextNode(UNKNOWN));
    this.cells.forEach((cell, i) => cell.append(...(CELLS[i][0] === "Requests/s" ? [this.line] : []), this.texts[i]));
    const title = element("th", { role: "rowheader", scope: "row" }, name, this.failure);
    this.node = element("tr", { role: "row" }, title, element("td", { role: "cell" }, this.state), ...this.cells);
    this.perSecond = new Series();
    this.requests = undefined;
  }

  // Show the model `seconds` after the last time, and return its requests a second; null if unknown.
  update(model, failure, seconds) {
    const requests = model.traffic?.requests;
    const grown = requests - this.requests;
    const perSecond = seconds > 0 && grown >= 0 ? grown / seconds : null;
    this.requests = requests;
    this.perSecond.add(perSecond);
    this.perSecond.draw(this.line);
    const state = STATES[model.state] ?? model.state;
    this.state.dataset.state = state;
    setText(this.state, state);
    setText(this.failure, model.state === "failed" ? failure : "");
    CELLS.forEach(([, write], i) => setText(this.texts[i], write(model, perSecond)));
    return perSecond;
  }
}

// Sum of the known values; null if none is known.
function sum(values) {
  const known = values.filter(Number.isFinite);
  return known.length ? known.reduce((a, b) => a + b) : null;
}

// Return the sentence that `write` makes of counts; nothing if they are unknown.
const words = (counts, write) => (counts.every(Number.isFinite) ? write(...counts) : "");

export class Live {
  constructor() {
    this.rows = new Map();
    this.perSecond = new Series();
    this.queue = new Series();
    this.timestamp = undefined;
    const titles = CELLS.map(([title]) => element("th", { role: "columnheader", scope: "col", class: "number" }, title));
    byId("models").tHead.rows[0].append(...titles);
  }

  // `models` are those of /v1/models, which tell why a model failed.
  show(status, models) {
    const failures = new Map(models.map((each) => [each.name, each.last_error?.message ?? ""]));
    const seconds = status.timestamp - this.timestamp;
    this.timestamp = status.timestamp;
    this.showServer(status);
    this.showMemory(status.memory, status.gpus, status.models);
    this.showModels(status.models, failures, seconds);
  }

  showServer(status) {
    const { version, uptime_seconds: uptime } = status.server;
    const machine = status.machine_profile === "auto" ? "" : ` · ${status.machine_profile}`;
    setText(byId("server"), `version ${version}${machine} · up ${duration(uptime)}`);
    showReady(status.ready ? "ready" : "not ready");
  }

  showMemory(memory, gpus, models) {
    const { used_bytes: used, limit_bytes: limit, pressure_bytes: pressure } = memory;
    const bar = byId("memory-bar");
    bar.hidden = !limit;
    setText(byId("memory-used"), limit ? bytes(used) : UNKNOWN);
    setText(byId("memory-parts"), limit ? memoryWords(memory, gpus) : "the controller does not answer");
    if (!limit) return;
    const inModels = Math.min(used, sum(models.map((each) => each.memory_bytes)) ?? 0);
    const percent = (value) => `${Math.min(100, (100 * value) / limit)}%`;
    bar.classList.toggle("pressed", used > pressure);
    bar.setAttribute("aria-valuenow", Math.round((100 * used) / limit));
    bar.querySelector(".server").style.width = percent(used - inModels);
    bar.querySelector(".models").style.width = percent(inModels);
    bar.querySelector(".mark").style.left = percent(pressure);
  }

  showModels(models, failures, seconds) {
    const rows = new Map(models.map((each) => [each.name, this.rows.get(each.name) ?? new ModelRow(each.name)]));
    this.rows = rows;
    const rates = models.map((each) => rows.get(each.name).update(each, failures.get(each.name) ?? "", seconds));
    const inOrder = [...models].sort((a, b) => (a.state === "available") - (b.state === "available"));
    arrange(byId("models").tBodies[0], inOrder.map((each) => rows.get(each.name).node));
    byId("models").hidden = models.length === 0;
    byId("no-models").hidden = models.length > 0;
    this.showTotals(models, sum(rates));
  }

  showTotals(models, perSecond) {
    const queue = sum(models.map((each) => each.queue_depth)) ?? 0;
    const total = (name) => sum(models.map((each) => each.traffic?.[name]));
    this.perSecond.add(perSecond);
    this.perSecond.draw(byId("rate-line"));
    this.queue.add(queue);
    this.queue.draw(byId("queue-line"));
    setText(byId("rate"), rate(perSecond));
    setText(byId("queue"), count(queue));
    setText(byId("requests"), words(["requests", "errors"].map(total), (a, b) => `${count(a)} since start, ${plural(b, "error")}`));
    setText(byId("loaded"), `${models.filter((each) => each.loaded).length} of ${models.length}`);
    setText(byId("changes"), words(["loads", "evictions"].map(total), (a, b) => `${plural(a, "load")}, ${plural(b, "eviction")} since start`));
  }
}

export function showReady(state) {
  byId("ready").dataset.state = state;
  setText(byId("ready"), state);
}

function memoryWords({ used_bytes: used, limit_bytes: limit, pressure_bytes: pressure, source }, gpus) {
  const percent = (value, whole) => `${Math.round((100 * value) / whole)} %`;
  const [share, bound] = [used, pressure].map((value) => percent(value, limit));
  const total = `${share} of ${bytes(limit)} (${source})`;
  if (gpus.length > 1) {
    const each = gpus.map((gpu) => `${gpu.device} ${percent(gpu.used_bytes, gpu.limit_bytes)}`);
    return `${total}: ${each.join(", ")}; evicts above ${bound} of one`;
  }
  return `${total}, ${used > pressure ? `evicting: above ${bound}` : `evicts above ${bound}`}`;
}

// Put the rows in this order, and touch nothing if they have it.
function arrange(body, rows) {
  if (rows.length !== body.children.length || rows.some((row, i) => row !== body.children[i])) {
    body.replaceChildren(...rows);
  }
}
