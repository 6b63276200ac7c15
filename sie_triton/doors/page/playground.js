// The playground: a form for one request to any model, the same request with curl, and the answer.

import { byId, element } from "./elements.js";
import { bodyOf, curlOf, Invalid, requestOf } from "./requests.js";
import { shown, summary } from "./results.js";
import { ask, token, Unauthorized } from "./server.js";

const TIMEOUT_MS = 300_000; // the server's own timeout comes first
const FILES = ["image", "audio", "document"];
const TEXTS = ["texts", "query", "documents", "text", "labels", "output", "role", "dimensions", "lora"];
const ACCEPTED = { image: "image/*", audio: "audio/*", document: "" };
const VERBS = { encode: "Encode", score: "Score", extract: "Extract" };

export class Playground {
  // `onUnauthorized` is called when the server asks for a token.
  constructor(onUnauthorized) {
    this.models = new Map();
    this.names = "";
    this.isBusy = false;
    this.onUnauthorized = onUnauthorized;
    this.form = byId("playground");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.form.addEventListener("input", () => {
      byId("problem").textContent = "";
      this.refresh();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    byId("copy").addEventListener("click", copy);
  }

  // Offer these models of /v1/models, and keep the choice; `served` are the names of those that run already.
  offer(models, served) {
    this.models = new Map(models.map((each) => [each.name, each]));
    const isServed = ({ name }) => served.has(name.split(":")[0]);
    const groups = [models.filter(isServed), models.filter((each) => !isServed(each))];
    this.offerNames(groups.map((group) => group.map((each) => each.name)));
    this.refresh();
  }

  // Change the list of models only if it differs: a user may have it open.
  offerNames([served, known]) {
    const select = byId("model");
    const chosen = select.value;
    const names = JSON.stringify([served, known]);
    if (names === this.names) return;
    this.names = names;
    select.replaceChildren(...group("Served", served), ...group("Known: the first request serves it", known));
    if (this.models.has(chosen)) select.value = chosen;
  }

  get model() {
    return this.models.get(byId("model").value);
  }

  get task() {
    return this.form.elements.task.value;
  }

  // Show the fields of the chosen model and task, and the command.
  refresh() {
    if (!this.model) return;
    this.showTasks();
    this.showOutputs();
    this.showFields();
    if (!this.isBusy) byId("run").textContent = VERBS[this.task];
    byId("curl").textContent = this.command();
  }

  // Return the command; empty while the form is not complete, which `run` explains.
  command() {
    try {
      return curlOf(requestOf(this.given()), base(), Boolean(token()));
    } catch (error) {
      if (error instanceof Invalid) return "";
      throw error;
    }
  }

  showTasks() {
    const choices = [...this.form.elements.task];
    for (const choice of choices) choice.parentElement.hidden = !this.model.tasks.includes(choice.value);
    if (!this.model.tasks.includes(this.task)) choices.find((each) => this.model.tasks.includes(each.value)).checked = true;
  }

  showOutputs() {
    const select = byId("output");
    const outputs = Object.keys(this.model.dims);
    const offered = [...select.options].map((each) => each.value);
    if (["", ...outputs].join() === offered.join()) return;
    const options = outputs.map((each) => element("option", { value: each }, each));
    select.replaceChildren(element("option", { value: "" }, "the model's own"), ...options);
  }

  showFields() {
    const files = FILES.filter((each) => this.model.inputs.includes(each));
    const isTaken = {
      text: this.model.inputs.includes("text"),
      file: files.length > 0,
      outputs: Object.keys(this.model.dims).length > 1,
      dense: "dense" in this.model.dims,
    };
    for (const field of this.form.querySelectorAll("[data-tasks]")) {
      const { tasks, input } = field.dataset;
      field.hidden = !tasks.split(" ").includes(this.task) || (input !== undefined && !isTaken[input]);
    }
    byId("file-kinds").textContent = `(${files.join(", ")})`;
    byId("file").accept = files.includes("document") ? "" : files.map((each) => ACCEPTED[each]).join();
  }

  // Return the values of the visible fields.
  given() {
    const isVisible = (id) => !byId(id).closest(".field").hidden;
    const texts = TEXTS.map((id) => [id, isVisible(id) ? byId(id).value : ""]);
    const file = isVisible("file") ? (byId("file").files[0] ?? null) : null;
    return { ...Object.fromEntries(texts), task: this.task, model: this.model, file };
  }

  async run() {
    if (this.isBusy || !this.model) return;
    this.setBusy(true);
    for (const id of ["problem", "done", "result"]) byId(id).replaceChildren();
    try {
      const request = requestOf(this.given());
      const started = performance.now();
      const answer = await ask(request.path, await bodyOf(request), TIMEOUT_MS);
      byId("done").textContent = summary(request, answer, performance.now() - started);
      byId("result").replaceChildren(...shown(request, answer));
    } catch (error) {
      if (error instanceof Unauthorized) this.onUnauthorized();
      else byId("problem").textContent = error.message;
    } finally {
      this.setBusy(false);
    }
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    byId("run").setAttribute("aria-disabled", String(isBusy));
    byId("run").textContent = isBusy ? "Running…" : VERBS[this.task];
  }
}

const base = () => new URL(".", location.href).href.replace(/\/$/, "");

function group(label, names) {
  if (!names.length) return [];
  const options = names.map((name) => element("option", { value: name }, name));
  return [element("optgroup", { label }, ...options)];
}

// Copy the command; pages without TLS have no clipboard, there the command is selected.
async function copy() {
  const button = byId("copy");
  try {
    await navigator.clipboard.writeText(byId("curl").textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("curl"));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}
