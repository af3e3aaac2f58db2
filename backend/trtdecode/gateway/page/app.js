"use strict";
// The whole page: chat over /v1/chat/completions, and the engine room over /v1/engine. Text is only ever set as text.

const $ = (id) => document.getElementById(id);
const PRESETS = {
  "Q&A": { temperature: 0.2, top_p: 0.95, max_tokens: 256, system: "Answer the question briefly and correctly." },
  "Code": { temperature: 0.1, top_p: 0.95, max_tokens: 512, system: "You write short, correct programs and explain them in one sentence." },
  "Chat": { temperature: 0.7, top_p: 0.95, max_tokens: 256, system: "" },
  "Creative": { temperature: 1.0, top_p: 0.98, max_tokens: 512, system: "You write vivid, original prose." },
  "Brainstorm": { temperature: 1.2, top_p: 0.95, max_tokens: 384, system: "List many different ideas, one a line." },
};
const state = { messages: [], abort: null, history: [] };

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function show(role, text) {
  const item = document.createElement("li");
  item.className = role;
  item.dataset.role = role;
  item.textContent = text;
  $("messages").append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

// Yields the JSON objects of a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

function body() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const system = $("system").value.trim();
  return {
    model: $("model").value,
    stream: true,
    stream_options: { include_usage: true },
    messages: [...(system ? [{ role: "system", content: system }] : []), ...state.messages],
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    frequency_penalty: number("frequency_penalty"),
  };
}

function showSpeed(start, first, last, tokens) {
  $("ttft").textContent = first ? `${(first - start).toFixed(0)} ms` : "-";
  $("itl").textContent = tokens > 1 ? `${((last - first) / (tokens - 1)).toFixed(1)} ms` : "-";
  $("rate").textContent = tokens > 1 ? (((tokens - 1) * 1000) / (last - first)).toFixed(1) : "-";
  $("tokens").textContent = tokens;
}

async function send(text) {
  state.messages.push({ role: "user", content: text });
  show("user", text);
  const item = show("assistant", "");
  state.abort = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  const start = performance.now();
  let first = 0, last = 0, tokens = 0, answer = "";
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body()), signal: state.abort.signal,
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) tokens = event.usage.completion_tokens;
      const piece = event.choices?.[0]?.delta?.content;
      if (piece) {
        last = performance.now();
        first ||= last;
        tokens += 1; // one chunk is usually one token; the usage at the end is exact
        answer += piece;
        item.textContent = answer;
        item.scrollIntoView({ block: "end" });
        showSpeed(start, first, last, tokens);
      }
    }
    showSpeed(start, first, last, tokens);
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  } finally {
    // A stopped or failed answer stays in the conversation as far as it came; an empty one takes its question with it.
    if (answer) state.messages.push({ role: "assistant", content: answer });
    else { state.messages.pop(); item.remove(); }
    state.abort = null;
    $("send").disabled = false;
    $("stop").disabled = true;
    $("prompt").focus();
  }
}

function colour(sequence) {
  return `hsl(${(sequence * 137.5) % 360} 60% 45%)`; // the golden angle keeps neighbours apart
}

function drawBlocks(figures) {
  const canvas = $("blocks"), context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const runs = figures.blocks ?? [
    [1, figures.kv_blocks_used], [-1, figures.kv_blocks_cached],
    [0, figures.kv_blocks_total - figures.kv_blocks_used - figures.kv_blocks_cached],
  ];
  const cells = runs.reduce((sum, [, count]) => sum + count, 0);
  const columns = Math.max(1, Math.ceil(Math.sqrt(cells * (canvas.width / canvas.height))));
  const size = canvas.width / columns;
  context.clearRect(0, 0, canvas.width, canvas.height);
  let block = 0;
  for (const [owner, count] of runs) {
    context.fillStyle = owner === 0 ? style.getPropertyValue("--free")
      : owner < 0 ? style.getPropertyValue("--cached") : colour(owner);
    for (let i = 0; i < count; i++, block++) {
      const gap = size > 3 ? 1 : 0;
      context.fillRect((block % columns) * size, Math.floor(block / columns) * size, size - gap, size - gap);
    }
  }
  const by = figures.num_sequences === undefined ? "" : ` by ${figures.num_sequences} sequences`;
  const scale = figures.blocks_per_cell > 1 ? `; a square is ${figures.blocks_per_cell} blocks` : "";
  $("blocks-text").textContent =
    `${figures.kv_blocks_used} used${by}, ${figures.kv_blocks_cached} cached, of ${figures.kv_blocks_total}${scale}`;
}

function drawHistory() {
  const canvas = $("history"), context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const top = Math.max(1, ...state.history);
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  context.lineWidth = 2;
  context.beginPath();
  state.history.forEach((value, index) => {
    context.lineTo((index / 119) * canvas.width, canvas.height - 4 - (value / top) * (canvas.height - 8));
  });
  context.stroke();
}

function showEngine(view) {
  const models = view.replicas.map((replica) => replica.models[$("model").value]).filter(Boolean);
  if (!models.length) return;
  const sum = (name) => models.reduce((total, figures) => total + figures[name], 0);
  $("running").textContent = sum("requests_running");
  $("waiting").textContent = sum("requests_waiting");
  $("engine-rate").textContent = sum("tokens_per_s").toFixed(0);
  $("hits").textContent = `${(models[0].prefix_hit_rate * 100).toFixed(0)} %`;
  $("preemptions").textContent = sum("preemptions_total");
  state.history = [...state.history, sum("tokens_per_s")].slice(-120);
  drawBlocks(models[0]);
  drawHistory();
}

async function watchEngine() {
  for (;;) {
    try {
      const response = await fetch("/v1/engine", { headers: headers() });
      if (!response.ok) throw new Error(await failure(response));
      $("status").textContent = "Connected";
      for await (const view of events(response)) showEngine(view);
    } catch (error) {
      $("status").textContent = `Engine room: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

async function loadModels() {
  for (;;) {
    try {
      const response = await fetch("/v1/models", { headers: headers() });
      if (!response.ok) throw new Error(await failure(response));
      const names = (await response.json()).data.map((model) => model.id);
      $("model").replaceChildren(...names.map((name) => new Option(name, name)));
      if (names.length) return;
      $("status").textContent = "No model is loaded";
    } catch (error) {
      $("status").textContent = error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

function start() {
  for (const [name, values] of Object.entries(PRESETS)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => {
      for (const [id, value] of Object.entries(values)) $(id).value = value;
      $("prompt").focus();
    });
    $("presets").append(button);
  }
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("prompt").value.trim();
    if (!text || state.abort) return;
    $("prompt").value = "";
    send(text);
  });
  $("stop").addEventListener("click", () => state.abort?.abort());
  $("clear").addEventListener("click", () => {
    state.abort?.abort();
    state.messages = [];
    $("messages").replaceChildren();
    $("prompt").focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") state.abort?.abort();
    if (event.key === "Enter" && event.ctrlKey) $("form").requestSubmit();
  });
  loadModels();
  watchEngine();
}

start();
