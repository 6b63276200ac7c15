// The page: asks for the status once a second, and for a token when the server wants one.

import { byId, setText } from "./elements.js";
import { Live, showReady } from "./live.js";
import { Playground } from "./playground.js";
import { ask, forgetToken, setToken, token, Unauthorized, Unreachable } from "./server.js";

const PERIOD_MS = 1000;
const MODELS_PERIOD_MS = 30_000;

const live = new Live();
const playground = new Playground(needToken);
const offered = { states: "", at: 0, models: [] };

let wake; // ends the pause before the next look

async function poll() {
  for (;;) {
    await visible();
    if (byId("login").hidden) await look();
    await new Promise((resolve) => setTimeout((wake = resolve), PERIOD_MS));
  }
}

async function look() {
  try {
    const status = await ask("status");
    if (!byId("login").hidden) return;
    await refreshModels(status.models);
    showMain();
    live.show(status, offered.models);
    notice("");
  } catch (error) {
    if (error instanceof Unauthorized) return needToken();
    if (error instanceof Unreachable) {
      showReady("unreachable");
      offered.states = "";
    }
    notice(`${error.message}; retrying.`);
  }
}

// Ask for the models when a state has changed, and now and then, because a model may be known and not served.
async function refreshModels(served) {
  const states = JSON.stringify(served.map(({ name, state }) => [name, state]));
  if (states === offered.states && performance.now() - offered.at < MODELS_PERIOD_MS) return;
  const { models } = await ask("v1/models");
  Object.assign(offered, { states, at: performance.now(), models });
  playground.offer(models, new Set(served.map(({ name }) => name)));
}

function showMain() {
  byId("login").hidden = true;
  byId("main").hidden = false;
  byId("forget").hidden = !token();
  byId("docs").hidden = Boolean(token()); // a link carries no token
}

// Resolves once the tab is visible.
function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

const notice = (text) => setText(byId("notice"), text);

function needToken() {
  const wasGiven = Boolean(token());
  forgetToken();
  notice("");
  showReady("locked");
  byId("main").hidden = true;
  byId("forget").hidden = true;
  byId("docs").hidden = true;
  byId("login").hidden = false;
  setText(byId("login-error"), wasGiven ? "The server does not accept this token." : "");
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  if (!/^[!-~]+$/.test(given)) {
    setText(byId("login-error"), "A token has only visible characters of ASCII, and no spaces.");
    return;
  }
  byId("token").value = "";
  setToken(given);
  byId("login").hidden = true;
  offered.states = "";
  wake();
});

byId("forget").addEventListener("click", () => {
  forgetToken();
  needToken();
});

poll();
