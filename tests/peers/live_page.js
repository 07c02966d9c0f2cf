// Opens Seawall's live page in a headless Chromium, over the DevTools protocol.
//
//   node live_page.js CHROMIUM http://ADMIN/ FOLDER
//
// Prints `quiet` once the page shows that there is no storm, `storm` in the moment in which it shows one, then a line for
// each check of the basics, and leaves pictures in FOLDER. Exit code 1 with what is wrong with the page.
"use strict";

const { spawn } = require("child_process");
const fs = require("fs");
const path = require("path");
const WebSocket = require("ws");

const [chromium, url, folder] = process.argv.slice(2);
const PATIENCE = 15000;
const faults = [];

async function main() {
  const browser = await launch();
  try {
    const page = await open(browser.address);
    await visit(page);
  } finally {
    browser.process.kill("SIGKILL");
  }
  for (const fault of faults) console.error(`fault: ${fault}`);
  process.exit(faults.length ? 1 : 0);
}

async function visit(page) {
  const { send, evaluate, until } = page;
  await size(send, 1280, 1500, false);
  await send("Page.navigate", { url });
  await until("no storm on the page", "document.getElementById('state').textContent === 'No storm'");
  console.log("quiet");
  await until("a storm on the page", `
    document.getElementById('state').textContent.startsWith('A storm')
      && Number(document.getElementById('refusing').textContent.replace(/,/g, '')) > 0
      && document.getElementById('line-refused').getAttribute('d').length > 0
      && document.querySelectorAll('#reasons .number').length > 0`);
  console.log("storm");
  // For pictures with something on them.
  await pause(Number(process.env.SEAWALL_PICTURE_AFTER || 4000));
  console.log(`estimate: ${await evaluate("document.getElementById('outside').textContent")}`);

  for (const scheme of ["light", "dark"]) {
    await send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
    await pause(100);
    check(`contrast, ${scheme}`, await evaluate(`(${contrasts})()`));
    await picture(page, `page-${scheme}.png`);
  }
  check("labels", await evaluate(`(${labels})()`));
  check("names", names((await send("Accessibility.getFullAXTree")).nodes));
  check("keyboard", await keyboard(page));
  await size(send, 390, 1200, true);
  await pause(200);
  check("telephone", await evaluate(
    "document.documentElement.scrollWidth > innerWidth ? ['wider than the screen: ' + document.documentElement.scrollWidth] : []"));
  await picture(page, "page-telephone.png");
  check("console and hosts", page.complaints);
}

function check(what, found) {
  faults.push(...found.map((fault) => `${what}: ${fault}`));
  console.log(`${what}: ${found.length ? found.length + " faults" : "ok"}`);
}

// Runs in the page. WCAG 2.1, 1.4.3 and 1.4.11: 4.5 for text, 3 for large text and for lines.
function contrasts() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => channels(colour).slice(0, 3)
    .map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.startsWith("rgba") || channels(colour)[3] > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const faults = [];
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const speaks = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (speaks && !["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) {
      const colour = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
      const large = parseFloat(style.fontSize) >= 24;
      const found = ratio(colour, behind(element));
      if (found < (large ? 3 : 4.5)) faults.push(`${element.tagName} "${element.textContent.slice(0, 20)}" ${found.toFixed(2)}`);
    }
    if (element.matches(".line")) {
      const found = ratio(style.stroke, behind(element));
      if (found < 3) faults.push(`${element.id} ${found.toFixed(2)}`);
    }
  }
  return faults;
}

// Runs in the page.
function labels() {
  const faults = [];
  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title) faults.push("no title");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) faults.push("an id is used twice");
  for (const element of document.querySelectorAll("[aria-labelledby]")) {
    for (const id of element.getAttribute("aria-labelledby").split(" ")) {
      if (!document.getElementById(id)?.textContent.trim()) faults.push(`#${id} names something and is empty`);
    }
  }
  for (const header of document.querySelectorAll("th")) {
    if (!header.scope) faults.push(`column ${header.textContent} has no scope`);
  }
  if (document.querySelector("form, button, input, select, textarea")) faults.push("something to operate");
  return faults;
}

function names(nodes) {
  const faults = [];
  const seen = {};
  for (const node of nodes.filter((node) => !node.ignored)) {
    const role = node.role.value;
    seen[role] = (seen[role] || 0) + 1;
    if (["link", "heading", "image", "img", "region", "columnheader"].includes(role) && !node.name?.value) {
      faults.push(`a ${role} without a name`);
    }
  }
  for (const role of ["main", "banner", "contentinfo", "status", "table"]) {
    if (!seen[role]) faults.push(`no ${role}`);
  }
  return faults;
}

// Every link is reached with the tab key, in order, and shows it.
async function keyboard({ send, evaluate }) {
  const faults = [];
  const links = await evaluate("[...document.links].map((link) => link.textContent)");
  await evaluate("document.activeElement.blur()");
  for (const link of links) {
    for (const type of ["keyDown", "keyUp"]) {
      await send("Input.dispatchKeyEvent", { type, key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    }
    const [reached, outline] = await evaluate(
      "[document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]");
    if (reached !== link) faults.push(`"${link}" is not reached, but "${reached.slice(0, 20)}"`);
    if (outline === "none") faults.push(`"${link}" does not show that it is reached`);
  }
  return faults;
}

async function picture({ send }, name) {
  const { cssContentSize } = await send("Page.getLayoutMetrics");
  const clip = { x: 0, y: 0, width: cssContentSize.width, height: cssContentSize.height, scale: 1 };
  const { data } = await send("Page.captureScreenshot", { format: "png", clip, captureBeyondViewport: true });
  fs.writeFileSync(path.join(folder, name), Buffer.from(data, "base64"));
}

function size(send, width, height, mobile) {
  return send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile });
}

function launch() {
  const profile = path.join(folder, "profile");
  const flags = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank",
  ];
  const started = spawn(chromium, flags, { stdio: ["ignore", "ignore", "pipe"] });
  return new Promise((resolve, reject) => {
    let words = "";
    const timer = setTimeout(() => reject(new Error(`Chromium does not start: ${words}`)), 2 * PATIENCE);
    started.on("error", reject);
    started.stderr.on("data", (piece) => {
      words += piece;
      const found = words.match(/DevTools listening on (ws:\S+)/);
      if (!found) return;
      clearTimeout(timer);
      resolve({ process: started, address: found[1] });
    });
  });
}

async function open(address) {
  const socket = new WebSocket(address);
  await new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject));
  const waiting = new Map();
  const complaints = [];
  let next = 1;
  let session;
  const send = (method, params = {}) => new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, { resolve, reject, method });
    socket.send(JSON.stringify({ id, method, params, sessionId: session }));
  });
  socket.on("message", (text) => {
    const { id, result, error, method, params } = JSON.parse(text);
    if (id) {
      const { resolve, reject, method: asked } = waiting.get(id);
      waiting.delete(id);
      if (error) reject(new Error(`${asked}: ${error.message}`));
      else resolve(result);
    } else if (method === "Runtime.exceptionThrown") {
      complaints.push(params.exceptionDetails.exception?.description || params.exceptionDetails.text);
    } else if (method === "Log.entryAdded" && ["warning", "error"].includes(params.entry.level)) {
      complaints.push(params.entry.text);
    } else if (method === "Network.requestWillBeSent") {
      const asked = params.request.url;
      if (!asked.startsWith(url) && !asked.startsWith("data:")) complaints.push(`asks for ${asked}`);
    }
  });
  const { targetId } = await send("Target.createTarget", { url: "about:blank" });
  session = (await send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
  for (const domain of ["Page", "Runtime", "Log", "Network", "Accessibility"]) await send(`${domain}.enable`);
  const evaluate = async (expression) => {
    const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description || exceptionDetails.text);
    return result.value;
  };
  const until = async (what, condition) => {
    const from = Date.now();
    while (!(await evaluate(`Boolean(document.getElementById('state')) && Boolean(${condition})`))) {
      if (Date.now() - from > 2 * PATIENCE) throw new Error(`${what}: not within ${2 * PATIENCE} ms`);
      await pause(20);
    }
  };
  return { send, evaluate, until, complaints };
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
