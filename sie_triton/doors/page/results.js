// Show what the server answered.

import { element, table } from "./elements.js";
import { count, milliseconds, plural } from "./words.js";

const MAX_COMPARED = 16;
const MAX_FIRST = 6;
const MAX_RAW = 4000; // characters

const number = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(4));
const norm = (values) => Math.sqrt(values.reduce((total, value) => total + value * value, 0));
const first = (values) => values.slice(0, MAX_FIRST).map(number).join(", ") + (values.length > MAX_FIRST ? ", …" : "");
const short = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

// Return the elements that show the answer to a request.
export function shown(request, answer) {
  return [...SHOWN[request.task](answer, request.names), raw(answer)];
}

// Return a sentence about the answer.
export function summary({ task, names }, answer, ms) {
  const done = { encode: "Encoded", score: "Scored", extract: "Extracted from" }[task];
  const { total_ms: total, loading_ms: loading } = answer.timing;
  const times = `${milliseconds(total)} in the server${loading > 1 ? `, ${milliseconds(loading)} of it to load the model` : ""}`;
  return `${done} ${plural(names.length, task === "score" ? "document" : "item")} in ${milliseconds(ms)} (${times}).`;
}

const SHOWN = {
  encode: (answer, names) => {
    const rows = answer.items.flatMap((item, i) => vectorRows(item, short(names[i])));
    const vectors = answer.items.map((item) => item.dense?.values);
    const compared = vectors.length > 1 && vectors.every(Boolean) ? similarities(vectors, names) : [];
    return [table(["Item", "Output", "Size", "Norm", "First values"], rows, { class: "vectors" }), ...compared];
  },
  score: (answer, names) => {
    const ranked = [...answer.scores].sort((a, b) => a.rank - b.rank);
    const rows = ranked.map((each) => [String(each.rank + 1), number(each.score), names[placeOf(each.item_id)]]);
    return [table(["Rank", "Score", "Document"], rows, { class: "ranked" })];
  },
  extract: (answer, names) => answer.items.flatMap((item, i) => findingsOf(item, names[i])),
};

// The server names items without an id item-0, item-1, …
const placeOf = (id) => Number(id.replace("item-", ""));

function vectorRows(item, name) {
  if (item.pages) return item.pages.flatMap((page) => vectorRows(page, `${name}, page ${page.page}`));
  const outputs = Object.entries(item).filter(([, output]) => output?.values);
  return outputs.map(([output, value]) => [item.truncated ? `${name} (cut)` : name, output, ...measures(value)]);
}

// Return size, norm and first values of a vector: one of weights, one for each token, or one of numbers.
function measures({ dims, token_dims: tokenDims, num_tokens: numTokens, indices, values }) {
  if (indices) {
    const weights = indices.map((index, i) => [index, values[i]]).sort((a, b) => b[1] - a[1]);
    const heaviest = weights.slice(0, MAX_FIRST).map(([index, weight]) => `${index}: ${number(weight)}`);
    return [`${count(values.length)} of ${count(dims)}`, number(norm(values)), heaviest.join(", ")];
  }
  if (tokenDims) return [`${count(numTokens)} × ${count(tokenDims)}`, "", values.length ? first(values[0]) : ""];
  return [count(dims), number(norm(values)), first(values)];
}

function similarities(vectors, names) {
  const compared = vectors.slice(0, MAX_COMPARED);
  const norms = compared.map(norm);
  const cosine = (i, j) => compared[i].reduce((total, value, k) => total + value * compared[j][k], 0) / (norms[i] * norms[j]);
  const titles = ["", ...compared.map((_, i) => String(i + 1))];
  const rows = compared.map((_, i) => [`${i + 1}. ${short(names[i])}`, ...compared.map((_, j) => cosine(i, j).toFixed(3))]);
  const made = table(titles, rows, { class: "matrix" });
  for (const cell of made.querySelectorAll("td")) {
    cell.style.setProperty("--share", Math.max(0, Number(cell.textContent) || 0));
  }
  const cut = vectors.length > MAX_COMPARED ? ` of the first ${MAX_COMPARED}` : "";
  return [element("h3", {}, `Cosine similarity${cut}`), made];
}

function findingsOf(item, name) {
  if (item.error) return [element("p", {}, `${short(name)}: ${item.error.message}`)];
  if (item.pages) return item.pages.flatMap((page) => findingsOf(page, `${name}, page ${page.page}`));
  const { entities = [], classifications = [], relations = [], objects = [], data } = item;
  const inText = entities.filter((each) => each.start !== undefined);
  const shown = [
    inText.length ? marked(name, inText) : null,
    tableOf(["Entity", "Label", "Score"], entities, (each) => [each.text, each.label, number(each.score)]),
    tableOf(["Class", "Score"], classifications, (each) => [each.label, number(each.score)]),
    tableOf(["Head", "Relation", "Tail", "Score"], relations, (each) => [
      each.head, each.relation, each.tail, number(each.score),
    ]),
    tableOf(["Object", "Score", "Box"], objects, (each) => [each.label, number(each.score), each.bbox.map(Math.round).join(", ")]),
    data && Object.keys(data).length ? element("pre", { tabindex: "0" }, JSON.stringify(data, null, 1)) : null,
  ].filter(Boolean);
  return shown.length ? shown : [element("p", {}, `${short(name)}: nothing was found.`)];
}

const tableOf = (titles, found, row) => (found.length ? table(titles, found.map(row)) : null);

// Return the text with its entities marked; of those that overlap, the first.
function marked(text, entities) {
  const characters = Array.from(text); // code points, as the server counts
  const shown = element("p", { class: "marked" });
  let end = 0;
  for (const each of [...entities].sort((a, b) => a.start - b.start)) {
    if (each.start < end) continue;
    const label = element("small", {}, each.label);
    const inside = characters.slice(each.start, each.end).join("");
    shown.append(characters.slice(end, each.start).join(""), element("mark", {}, inside, label));
    end = each.end;
  }
  shown.append(characters.slice(end).join(""));
  return shown;
}

function raw(answer) {
  const text = JSON.stringify(answer);
  const cut = text.length > MAX_RAW ? `${text.slice(0, MAX_RAW)}…` : text;
  return element("details", {}, element("summary", {}, "Response"), element("pre", { tabindex: "0" }, cut));
}
