// The page of `zklock serve`. From the top: words, decisions without the document, what changes the document, its
// parts, the keyboard, and the loop that asks for /locks.json.
"use strict";

const INTERVAL = 2_000;
const INTERVAL_HIDDEN = 30_000;
const REPLY_LIMIT = 10_000;
// A snapshot is marked as old from this age on.
const OLD_AFTER = 5_000;
const CONNECTING_LIMIT = 5_000;
const MOST_ROWS = 200;
const MOST_WAITERS = 10;
const MOST_BOXES = 24;
const MOST_BOXES_IN_A_LAYER = 6;
const SCHEMA = 1;

// ---- Words

// In two units at most, as the command has it: "0.2 s", "41 s", "2 min 14 s", "3 h 5 min".
function lasting(milliseconds) {
  const seconds = Math.floor(milliseconds / 1_000);
  const pair = (large, of, small, unit) => (small ? `${large} ${of} ${small} ${unit}` : `${large} ${of}`);
  const whole = (unit) => Math.floor(seconds / unit);
  if (seconds < 10) return `${(Math.floor(milliseconds / 100) / 10).toFixed(1)} s`;
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return pair(whole(60), "min", seconds % 60, "s");
  if (seconds < 86_400) return pair(whole(3_600), "h", whole(60) % 60, "min");
  return pair(whole(86_400), "d", whole(3_600) % 24, "h");
}

// In seconds without a fraction, for what changes every second.
function lastingInSeconds(milliseconds) {
  return milliseconds < 10_000 ? `${Math.floor(milliseconds / 1_000)} s` : lasting(milliseconds);
}

function number(count) {
  return count.toLocaleString("en");
}

function counted(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

// A time of the day where the browser is, with the date unless it is today.
function clock(time, today = new Date()) {
  const at = new Date(time);
  const two = (value) => String(value).padStart(2, "0");
  const hours = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === today.toDateString()) return hours;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${hours}`;
}

// What other clients have written must neither hide nor reorder what stands beside it.
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
}

// The text, or its beginning and so many letters of its end.
function shortened(text, most, end = 0) {
  const letters = Array.from(visible(text));
  if (letters.length <= most) return letters.join("");
  return `${letters.slice(0, most - 1 - end).join("")}…${letters.slice(letters.length - end).join("")}`;
}

function lockOf(node) {
  return node.slice(0, node.lastIndexOf("/"));
}

const STATES = {
  deadlock: "Deadlock",
  suspected: "Suspected",
  waited_for: "Waited for",
  held: "Held",
  free: "Free",
};

const KINDS = { mutex: "Mutex", read_write: "Read/write lock", semaphore: "Semaphore" };

// ---- Decisions

// What is known: `reply` is the last one that was understood, at `received` by this browser's clocks; `seen` is
// the last one that had a snapshot; `failure` is why the latest request has brought none.
function nothingKnown() {
  return { reply: null, received: null, seen: null, failure: null };
}

function clocks() {
  return { steady: performance.now(), wall: Date.now() };
}

// One clock stands still while the machine sleeps, the other can be set back.
function elapsed(then, now) {
  return Math.max(0, now.steady - then.steady, now.wall - then.wall);
}

function snapshotAge(known, now) {
  if (!known.seen) return null;
  const atReply = Date.parse(known.reply.now) - Date.parse(known.seen.snapshot.taken_at);
  return Math.max(0, atReply) + elapsed(known.received, now);
}

function pause(isHidden) {
  return isHidden ? INTERVAL_HIDDEN : INTERVAL;
}

// What a reply brings: itself, or a failure.
function understood(status, body) {
  if (status === 401 || status === 403 || status === 421) return { failure: { kind: "refused", why: `status ${status}` } };
  if (status !== 200) return { failure: { kind: "silent", why: `the answer has status ${status}` } };
  if (!body || body.schema !== SCHEMA || !body.ensemble || !Array.isArray(body.locks)) {
    return { failure: { kind: "strange", why: `schema ${body ? body.schema : "unknown"}, and this page knows ${SCHEMA}` } };
  }
  return { reply: body };
}

function after(known, outcome, now) {
  if (outcome.failure) {
    const before = known.failure && known.failure.kind === outcome.failure.kind ? known.failure : null;
    return { ...known, failure: { ...outcome.failure, since: before ? before.since : now.wall } };
  }
  const { reply } = outcome;
  return { reply, received: now, seen: reply.snapshot ? reply : known.seen, failure: null };
}

// What to say above everything else, and whether what is shown is what is now.
function situation(known, now) {
  const { reply, seen, failure } = known;
  const shown = seen
    ? `What is shown was seen at ${clock(seen.snapshot.taken_at)}.`
    : "Nothing was seen yet: it is not known what is held.";
  const say = (kind, headline, detail) => ({ kind, headline, detail, isCurrent: false });
  if (failure) {
    const since = clock(failure.since);
    switch (failure.kind) {
      case "refused":
        return say("refused", "zklock serve refuses this browser",
          `Since ${since} (${failure.why}). Open the link with the token again, by a host name that it is started for. `
            + shown);
      case "strange":
        return say("strange", "zklock serve sends what this page does not understand",
          `Since ${since}: ${failure.why}. Reload the page. ${shown}`);
      default:
        return say("silent", "zklock serve itself does not answer",
          `Since ${since}: ${failure.why}. So it is not known whether ZooKeeper works. ${shown}`);
    }
  }
  if (!reply) return say("asking", "Asking zklock serve", "It has not answered yet.");

  const { hosts, state, since, error } = reply.ensemble;
  if (state !== "connected") {
    const lasted = Date.parse(reply.now) - Date.parse(since);
    if (state === "connecting" && !seen && !error && lasted < CONNECTING_LIMIT) {
      return say("connecting", "Connecting to ZooKeeper", `zklock serve connects to ${hosts}. ${shown}`);
    }
    const why = error ? `: ${error}` : "";
    const unknown = seen ? " Who holds and waits now is not known." : "";
    return say("outage", "ZooKeeper cannot be reached",
      `zklock serve has had no connection to ${hosts} since ${clock(since)}${why}. ${shown}${unknown}`);
  }
  if (error) return say("failed", "The last look at the locks failed", `${error}. ${shown}`);
  if (!reply.snapshot) {
    return say("first", "The first look is under way",
      `zklock serve is connected to ${hosts}, and reads who holds and waits. ${shown}`);
  }
  const isCurrent = !reply.snapshot.is_old && snapshotAge(known, now) <= OLD_AFTER;
  return { kind: "works", headline: "", detail: "", isCurrent };
}

// The heading of the list, and a sentence if there is no list.
function summary(seen, isCurrent) {
  const where = seen.bases.map(visible).join(", ");
  const at = isCurrent ? "" : ` at ${clock(seen.snapshot.taken_at)}`;
  if (seen.locks.every((lock) => lock.state === "free")) {
    const unread = seen.not_seen.length > 0 ? ", as far as zklock serve may read" : "";
    const free = seen.locks.length > 0 ? " Those listed had one in the ten minutes before." : "";
    return isCurrent
      ? ["Nothing is held", `No lock at or below ${where} has a holder or a waiter${unread}.${free}`]
      : [`Nothing was held${at}`, `No lock at or below ${where} had a holder or a waiter then${unread}.${free}`];
  }
  const words = {
    deadlock: "in a deadlock", suspected: "perhaps in a deadlock", waited_for: "waited for", held: "held", free: "free now",
  };
  const parts = Object.entries(words)
    .map(([state, word]) => [seen.locks.filter((lock) => lock.state === state).length, word])
    .filter(([count]) => count > 0)
    .map(([count, word]) => `${number(count)} ${word}`);
  return [`${counted(seen.locks.length, "lock", "locks")}${at}: ${parts.join(", ")}`, ""];
}

const haystacks = new WeakMap();

function matches(lock, words) {
  let text = haystacks.get(lock);
  if (text === undefined) {
    const contenders = [...lock.holders, ...lock.waiters].map((one) => one.who);
    text = [lock.path, STATES[lock.state] || lock.state, ...contenders].join("\n").toLowerCase();
    haystacks.set(lock, text);
  }
  return words.every((word) => text.includes(word));
}

function filtered(locks, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length === 0 ? locks : locks.filter((lock) => matches(lock, words));
}

// How long before the snapshot; the ensemble's clock may be ahead of the one of `zklock serve`.
function before(seen, time) {
  return Math.max(0, Date.parse(seen.snapshot.taken_at) - Date.parse(time));
}

// Who it is. A hold for maintenance has its end, in the time zone of the browser.
function called(one) {
  const hold = one.maintenance;
  if (!hold) return visible(one.who);
  if (hold.asked_for) return visible(`${one.who} (asked for)`);
  return visible(`${one.who}, until ${hold.ends ? clock(hold.ends) : "it is released"}`);
}

function heldFor(seen, holder) {
  return holder.held_since ? lasting(before(seen, holder.held_since)) : "not known";
}

function isForMaintenance(lock) {
  return Boolean(lock.holders[0]?.maintenance);
}

function heldBy(lock) {
  const [first] = lock.holders;
  const permits = lock.permits && lock.taken !== null ? `${lock.taken} of ${lock.permits} permits: ` : "";
  if (first) {
    const others = lock.holders_total - 1;
    return visible(permits) + called(first) + (others > 0 ? ` and ${number(others)} more` : "");
  }
  const last = lock.past[lock.past.length - 1];
  return last ? `nobody now; last ${visible(last.who)}` : "nobody now";
}

function inWords(lock) {
  const permits = lock.permits ? ` of ${counted(lock.permits, "permit", "permits")}` : "";
  const stuck = { deadlock: ", in a deadlock", suspected: ", perhaps in a deadlock" }[lock.state] || "";
  const count = isForMaintenance(lock) ? `held for ${called(lock.holders[0])}` : `held by ${number(lock.holders_total)}`;
  const holders = lock.holders_total > 0 ? count : "held by nobody now";
  const handOvers = counted(lock.hand_overs, "hand-over", "hand-overs");
  const waiters = lock.waiters_total > 0 ? number(lock.waiters_total) : "nobody";
  return `${KINDS[lock.kind] || visible(lock.kind)}${permits}${stuck}: ${holders}, waited for by ${waiters}; `
    + `${handOvers} since zklock serve began.`;
}

// The holders now and before, the latest first, as parts of the time that they cover: 0 is the beginning, 1 the
// snapshot.
function bars(seen, lock) {
  const end = Date.parse(seen.snapshot.taken_at);
  const present = lock.holders
    .filter((one) => one.held_since)
    .map((one) => ({ key: `${one.node} ${one.held_since}`, who: one.who, from: Date.parse(one.held_since), until: null }));
  const past = [...lock.past].reverse().map((one) => ({
    key: `${one.node} ${one.from}`, who: one.who, from: Date.parse(one.from), until: Date.parse(one.until),
  }));
  const all = [...present, ...past];
  const begin = Math.min(end, ...all.map((one) => one.from));
  const part = (time) => (end > begin ? Math.min(1, Math.max(0, (time - begin) / (end - begin))) : 0);
  return {
    begin, end,
    all: all.map((one) => {
      const until = one.until === null ? end : one.until;
      return { ...one, lasted: Math.max(0, until - one.from), left: part(one.from), right: part(until) };
    }),
  };
}

// The locks around one: `ahead` are those that its holders wait for, `behind` those whose holders wait for it, each
// directly or through others. Layer 0 is the lock itself.
function graph(seen, path) {
  const out = new Map();
  const into = new Map();
  const add = (map, from, to) => map.set(from, (map.get(from) || new Set()).add(to));
  for (const { holder, waits_by } of seen.edges) {
    add(out, lockOf(holder), lockOf(waits_by));
    add(into, lockOf(waits_by), lockOf(holder));
  }
  const layers = new Map([[path, 0]]);
  const reached = new Set([path]);
  const leftOut = [0, 0];
  for (const [side, map, step] of [[0, out, 1], [1, into, -1]]) {
    let front = [path];
    for (let layer = step; front.length > 0; layer += step) {
      const next = [];
      for (const at of front) {
        for (const lock of map.get(at) || []) {
          if (!reached.has(lock)) {
            reached.add(lock);
            next.push(lock);
          }
        }
      }
      // What lies behind a lock that is left out is reached, too, and left out.
      let room = MOST_BOXES_IN_A_LAYER;
      for (const lock of next) {
        const hasWay = [...(side === 0 ? into : out).get(lock)].some((near) => layers.has(near));
        if (hasWay && room > 0 && layers.size < (side === 0 ? MOST_BOXES / 2 : MOST_BOXES)) {
          layers.set(lock, layer);
          room -= 1;
        } else {
          leftOut[side] += 1;
        }
      }
      front = next;
    }
  }
  const byPath = new Map(seen.locks.map((lock) => [lock.path, lock]));
  const rings = seen.deadlocks.map((one) => new Set(one.locks));
  const boxes = [...layers].map(([near, layer]) => box(byPath.get(near), near, layer));
  const arrows = [];
  for (const [from, tos] of out) {
    for (const to of tos) {
      if (layers.has(from) && layers.has(to)) {
        arrows.push({ from, to, isStuck: rings.some((ring) => ring.has(from) && ring.has(to)) });
      }
    }
  }
  // Those that wait for the lock and hold none that is known.
  const lock = byPath.get(path);
  const holders = new Set(seen.edges.map((edge) => edge.waits_by).filter((node) => lockOf(node) === path));
  const others = lock ? lock.waiters.filter((one) => !holders.has(one.node)) : [];
  const count = lock ? Math.max(others.length, lock.waiters_total - holders.size) : 0;
  if (count > 0) {
    const lines = count === 1
      ? [others.length > 0 ? others[0].who : "1 contender", "waits, and holds no other lock"]
      : [`${number(count)} contenders`, "wait, and hold no other lock"];
    boxes.push({ path: null, key: "", name: lines[0], lines: [lines[1]], layer: -1, state: "" });
    arrows.push({ from: "", to: path, isStuck: false });
  }
  return { boxes, arrows, leftOut };
}

function box(lock, path, layer) {
  const lines = lock
    ? [lock.holders_total > 0 ? `held ${isForMaintenance(lock) ? "for" : "by"} ${heldBy({ ...lock, permits: null })}` : "held by nobody now",
      lock.waiters_total === 1 ? "1 waits" : `${number(lock.waiters_total)} wait`]
    : ["not read", ""];
  return { path, key: path, name: lock ? lock.name : path, lines, layer, state: lock ? lock.state : "" };
}

// Where boxes and arrows are: the layers beside each other if there is room, otherwise all boxes in one column.
// `along` is the direction of the arrows (of x, or of y in a column), `across` the other one. An arrow that does not
// lead to the next layer takes a lane beside all boxes, which it shares with others that lead to the same box.
const BOX = { width: 236, height: 68 };

function placed(picture, room) {
  const beside = inLayers(picture, false);
  return beside.width <= room ? beside : inLayers(picture, true);
}

function inLayers({ boxes, arrows }, isColumn) {
  const [size, breadth] = isColumn ? [BOX.height, BOX.width] : [BOX.width, BOX.height];
  const [gap, beside] = [44, 16];
  const sorted = [...boxes].sort((one, other) => one.layer - other.layer);
  const layers = [];
  for (const one of sorted) {
    const layer = layers[layers.length - 1];
    if (layer && layer[0].layer === one.layer && !isColumn) layer.push(one);
    else layers.push([one]);
  }
  const lengthOf = (layer) => layer.length * (breadth + beside) - beside;
  const broadest = Math.max(...layers.map(lengthOf));
  const where = new Map();
  layers.forEach((layer, index) => {
    layer.forEach((one, place) => {
      const across = (broadest - lengthOf(layer)) / 2 + place * (breadth + beside);
      where.set(one.key, { along: index * (size + gap), across, index });
    });
  });
  const isNext = ({ from, to }) => where.get(to).index === where.get(from).index + 1;
  // Lanes lead round the first box, too.
  const margin = arrows.every(isNext) ? 0 : 22;
  for (const at of where.values()) at.along += margin;
  const point = (along, across) => (isColumn ? `${across} ${along}` : `${along} ${across}`);
  const lanes = new Map();
  const lines = arrows.map(({ from, to, isStuck }) => {
    const [a, b] = [where.get(from), where.get(to)];
    const [leaves, arrives] = [a.along + size, b.along];
    const arrow = (line, across) => ({
      from, to, isStuck,
      line: `${line} L${point(arrives - 8, across)}`,
      head: `M${point(arrives - 9, across - 5)} L${point(arrives, across)} L${point(arrives - 9, across + 5)} Z`,
    });
    if (isNext({ from, to })) {
      const [y, z] = [a.across + breadth / 2, b.across + breadth / 2];
      const middle = (leaves + arrives) / 2;
      return arrow(`M${point(leaves, y)} C${point(middle, y)} ${point(middle, z)} ${point(arrives - 9, z)}`, z);
    }
    if (!lanes.has(to)) lanes.set(to, lanes.size);
    const lane = broadest + 14 + 12 * lanes.get(to);
    const bend = (4 * lanes.get(to)) % 12;
    const [y, z] = [a.across + breadth * 0.75, b.across + breadth * 0.75];
    return arrow(`M${point(leaves, y)} L${point(leaves + 7 + bend, y)} L${point(leaves + 7 + bend, lane)} `
      + `L${point(arrives - 13 - bend / 2, lane)} L${point(arrives - 13 - bend / 2, z)}`, z);
  });
  const length = layers.length * (size + gap) - gap + 2 * margin;
  const across = broadest + (lanes.size > 0 ? 6 + 12 * lanes.size : 0);
  const boxesAt = sorted.map((one) => {
    const at = where.get(one.key);
    return { ...one, x: isColumn ? at.across : at.along, y: isColumn ? at.along : at.across };
  });
  return {
    width: 4 + (isColumn ? across : length), height: 4 + (isColumn ? length : across), boxes: boxesAt,
    // Those of a deadlock lie above the others.
    arrows: lines.sort((one, other) => one.isStuck - other.isStuck),
  };
}

// ---- What changes the document

const at = (id) => document.getElementById(id);

// Changes a text only if it differs, and in place, so that a selection lasts.
function setText(element, text) {
  const { firstChild } = element;
  if (firstChild && firstChild.nodeType === Node.TEXT_NODE && element.childNodes.length === 1) {
    if (firstChild.data !== text) firstChild.data = text;
  } else if (firstChild || text) {
    element.textContent = text;
  }
}

function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The children of an element, by key.
const childrenByKey = new WeakMap();

// Makes an element's children those of the items. A child that stays is changed and moved rather than replaced; the
// one that has the focus or the selection is not even moved, as that would end them.
function setChildren(parent, items, keyOf, make, update) {
  const old = childrenByKey.get(parent) || new Map();
  const all = new Map();
  for (const item of items) {
    let key = keyOf(item);
    while (all.has(key)) key += " ";
    const child = old.get(key) || make(item);
    update(child, item);
    all.set(key, child);
  }
  childrenByKey.set(parent, all);
  for (const [key, child] of old) {
    if (all.get(key) !== child) {
      const next = child.contains(document.activeElement) ? child.nextElementSibling || child.previousElementSibling : null;
      child.remove();
      if (next) next.querySelector("a, button")?.focus({ preventScroll: true });
    }
  }
  const children = [...all.values()];
  const selected = getSelection().isCollapsed ? null : getSelection().anchorNode;
  const focused = children.findIndex((child) => child.contains(document.activeElement));
  const stays = focused >= 0 ? focused : children.findIndex((child) => child.contains(selected));
  const place = (some, first) => {
    let next = first;
    for (const child of some) {
      if (child === next) next = next.nextSibling;
      else parent.insertBefore(child, next);
    }
  };
  const isFixed = stays >= 0 && children[stays].parentNode === parent;
  if (isFixed) {
    // Stops at the one that stays; what is between is placed behind it afterwards.
    place(children.slice(0, stays), parent.firstChild);
    place(children.slice(stays + 1), children[stays].nextSibling);
  } else {
    place(children, parent.firstChild);
  }
}

function cell(label, isNumber = false) {
  return made("td", { role: "cell", "data-label": label, ...(isNumber ? { class: "number" } : {}) });
}

function linkTo(path) {
  return `#${encodeURIComponent(path).replace(/%2F/g, "/")}`;
}

// The path of the lock that the address names.
function chosen() {
  const text = location.hash.slice(1);
  try {
    return decodeURIComponent(text) || null;
  } catch {
    return text;
  }
}

// Links to locks, after a word: "waits for /locks/b, /locks/c".
function setLinks(element, word, paths) {
  const key = [word, ...paths].join("\n");
  show(element, paths.length > 0);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(`${word} `);
  paths.forEach((path, index) => {
    if (index > 0) element.append(", ");
    element.append(made("a", { href: linkTo(path) }, visible(path)));
  });
}

let lastAnnounced = "";

function announce(text) {
  lastAnnounced = text;
  setText(at("announced"), text);
}

// ---- The parts of the page

let known = nothingKnown();
let filter = "";
// The row that Tab leads to.
let tabStop = null;
// What was rendered last, to tell what is new.
let last = { kind: "asking", isCurrent: false, deadlocks: null };

function render() {
  keepPlace(renderParts);
}

// What the person looks at stays where it is in the window: the row with the focus, otherwise the beginning of what is
// scrolled through. (A browser would follow any row that it chooses, wherever that row is moved to.)
function keepPlace(change) {
  const isInSight = (one) => one.getBoundingClientRect().bottom > 0 && one.getBoundingClientRect().top < innerHeight;
  const row = document.activeElement.closest("#rows tr");
  const begun = [at("rows"), at("lock")].find((one) => one.checkVisibility() && one.getBoundingClientRect().top < 0);
  const kept = row && isInSight(row) ? row : begun;
  const before = kept?.getBoundingClientRect().top;
  change();
  const moved = kept?.checkVisibility() ? kept.getBoundingClientRect().top - before : 0;
  if (Math.abs(moved) >= 1) scrollBy(0, moved);
}

function renderParts() {
  const now = clocks();
  const is = situation(known, now);
  const { seen } = known;
  renderSituation(is);
  renderAge(now);
  show(at("columns"), Boolean(seen));
  if (seen) {
    setText(at("title"), `Locks at or below ${seen.bases.map(visible).join(", ")}`);
    renderDeadlocks(seen, is.isCurrent);
    renderUnseen(seen);
    renderList(seen, is.isCurrent);
    renderLock(seen, is.isCurrent);
  }
  setText(document.querySelector("title"), title(is, seen));
  const deadlocks = seen ? seen.deadlocks.length : null;
  announceChanges(is, deadlocks);
  last = { kind: is.kind, isCurrent: is.isCurrent, deadlocks };
}

function title(is, seen) {
  if (is.headline) return `${is.headline} – zklock`;
  const stuck = seen.deadlocks.length;
  return `${stuck > 0 ? counted(stuck, "deadlock", "deadlocks") : counted(seen.locks.length, "lock", "locks")} – zklock`;
}

function announceChanges(is, deadlocks) {
  const said = [];
  if (is.kind !== last.kind) {
    said.push(is.headline || (last.kind === "asking" ? "" : "ZooKeeper and zklock serve answer."));
  }
  if (deadlocks > 0 && deadlocks !== last.deadlocks) said.push(`${counted(deadlocks, "deadlock", "deadlocks")}.`);
  if (deadlocks === 0 && last.deadlocks > 0) said.push("No deadlock is seen any more.");
  const text = said.filter(Boolean).join(" ");
  if (text) announce(text);
}

function renderSituation(is) {
  setAttribute(at("situation"), "class", is.kind);
  setText(at("situation-headline"), is.headline);
  setText(at("situation-detail"), visible(is.detail));
  show(at("situation"), is.headline !== "");
  setAttribute(document.body, "class", is.isCurrent ? "is-current" : "is-old");
}

function renderAge(now) {
  const { reply, seen, failure } = known;
  const connection = reply ? `ZooKeeper at ${visible(reply.ensemble.hosts)}: ${reply.ensemble.state}` : "";
  setText(at("connection"), failure && reply ? `${connection} when zklock serve last answered` : connection);
  if (!seen) {
    setText(at("age"), "Nothing seen yet");
    setAttribute(at("age"), "class", "is-missing");
    return;
  }
  const age = snapshotAge(known, now);
  const isOld = age > OLD_AFTER || seen.snapshot.is_old || seen !== reply;
  setAttribute(at("age"), "class", isOld ? "is-old" : "is-current");
  const { taken_at, took_ms, requests } = seen.snapshot;
  const by = counted(requests, "request", "requests");
  setAttribute(at("age"), "title", `Seen at ${taken_at} in ${lasting(took_ms)}, by ${by}`);
  setText(at("age"), `${isOld ? "Old: seen" : "Seen"} ${lastingInSeconds(age)} ago`);
}

function renderDeadlocks(seen, isCurrent) {
  const all = seen.deadlocks;
  show(at("deadlocks"), all.length > 0);
  const certain = all.filter((one) => one.is_certain).length;
  const parts = [];
  if (certain > 0) parts.push(counted(certain, "deadlock", "deadlocks"));
  if (all.length > certain) parts.push(counted(all.length - certain, "suspected deadlock", "suspected deadlocks"));
  const then = isCurrent ? "" : ` at ${clock(seen.snapshot.taken_at)}`;
  setText(at("deadlocks-title"), all.length > 0 ? parts.join(", ") + then : "");
  setChildren(at("deadlock-list"), all, (one) => [...one.nodes].sort().join("\n"), () => {
    return made("li", {}, made("strong"), made("p", { class: "sentence" }), made("p", { class: "locks" }),
      made("p", { class: "advice" }), made("ul", { class: "commands" }));
  }, (item, one) => {
    const [word, sentence, locks, advice, commands] = item.children;
    setAttribute(item, "class", one.is_certain ? "certain" : "suspected");
    show(word, certain > 0 && certain < all.length);
    setText(word, one.is_certain ? "Deadlock" : "Suspected deadlock");
    setText(sentence, visible(one.text.replace(/^(suspected )?deadlock: /i, "")));
    setLinks(locks, one.locks.length === 1 ? "Lock:" : "Locks:", one.locks);
    show(advice, one.commands.length > 0);
    setText(advice, `To end it, run ${one.commands.length > 1 ? "one of these" : "this"} on a terminal:`);
    setChildren(commands, one.commands, (command) => command, (command) => {
      const line = made("li", {}, made("code", {}, command));
      if (navigator.clipboard) line.append(copyButton(command));
      return line;
    }, () => {});
  });
}

function copyButton(command) {
  const button = made("button", { type: "button", "aria-label": `Copy: ${command}` }, "Copy");
  button.addEventListener("click", async () => {
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(command);
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      said = "Selected: press Ctrl+C";
    }
    setText(button, said);
    announce(said);
    setTimeout(() => setText(button, "Copy"), 2_000);
  });
  return button;
}

function renderUnseen(seen) {
  const all = seen.not_seen;
  show(at("unseen"), all.length > 0);
  setText(at("unseen-title"), all.length > 0 ? `Not read: ${counted(all.length, "path", "paths")}` : "");
  const few = all.slice(0, 10);
  if (all.length > few.length) few.push({ path: `${number(all.length - few.length)} more`, why: "" });
  setChildren(at("unseen-list"), few, (one) => one.path, () => made("li"), (item, one) => {
    setText(item, visible(one.why ? `${one.path}: ${one.why}` : one.path));
  });
}

function renderList(seen, isCurrent) {
  const [heading, sentence] = summary(seen, isCurrent);
  setText(at("summary"), heading);
  const isEmpty = seen.locks.length === 0;
  const found = filtered(seen.locks, filter);
  const rows = found.slice(0, MOST_ROWS);
  show(at("search"), !isEmpty || filter !== "");
  show(at("locks"), rows.length > 0);
  show(at("keys"), rows.length > 0);
  const fits = `${number(found.length)} of ${counted(seen.locks.length, "lock", "locks")}`;
  setText(at("matches"), filter.trim() && !isEmpty ? fits : "");
  const more = found.length - rows.length;
  let note = sentence;
  if (more > 0) note = `And ${number(more)} more, which are less stuck. Filter to see them.`;
  if (!isEmpty && found.length === 0) note = "No lock fits the filter. Esc in the field clears it.";
  show(at("more"), note !== "");
  setText(at("more"), note);

  const path = chosen();
  const listed = (one) => rows.some((lock) => lock.path === one);
  if (!listed(tabStop)) tabStop = listed(path) ? path : rows[0]?.path ?? null;
  setChildren(at("rows"), rows, (lock) => lock.path, madeRow, (row, lock) => {
    const [state, name, holder, held, waiting, longest] = row.children;
    const [link] = name.children;
    setAttribute(row, "class", lock.state);
    setAttribute(link, "aria-current", lock.path === path ? "true" : null);
    setAttribute(link, "tabindex", lock.path === tabStop ? "0" : "-1");
    setText(state.firstChild, STATES[lock.state] || visible(lock.state));
    setText(holder, heldBy(lock));
    setText(held, lock.holders.length > 0 ? heldFor(seen, lock.holders[0]) : "");
    setText(waiting, number(lock.waiters_total));
    setText(longest, lock.oldest_wait_ms === null ? "" : lasting(lock.oldest_wait_ms));
  });
}

function madeRow(lock) {
  const link = made("a", { href: linkTo(lock.path) }, visible(lock.path));
  link.dataset.path = lock.path;
  const name = cell("Lock");
  name.append(link);
  const state = cell("State");
  state.append(made("span", { class: "badge" }));
  return made("tr", { role: "row" }, state, name, cell("Held by"), cell("Held for", true), cell("Waiting", true),
    cell("Longest wait", true));
}

function renderLock(seen, isCurrent) {
  const path = chosen();
  const lock = seen.locks.find((one) => one.path === path);
  show(at("lock"), path !== null);
  setAttribute(at("columns"), "class", path === null ? "list-only" : "with-lock");
  setText(at("lock-name"), path === null ? "" : visible(path));
  show(at("lock-parts"), Boolean(lock));
  setAttribute(at("lock"), "class", lock ? lock.state : "");
  if (!lock) {
    const then = isCurrent
      ? "Not listed: no contender is seen"
      : `Not listed at ${clock(seen.snapshot.taken_at)}: no contender was seen`;
    setText(at("lock-state"), path === null ? "" : `${then} there, and nobody held it in the ten minutes before.`);
    return;
  }
  const then = isCurrent ? "" : `At ${clock(seen.snapshot.taken_at)}: `;
  setText(at("lock-state"), then + inWords(lock));
  renderContenders(seen, lock);
  renderGraph(seen, lock);
  renderPast(seen, lock);
}

function renderContenders(seen, lock) {
  const holds = new Map();
  for (const { holder, waits_by } of seen.edges) {
    holds.set(waits_by, [...(holds.get(waits_by) || []), lockOf(holder)]);
  }
  const rows = (table, label, all, time, word, locks) => {
    show(at(table), all.length > 0);
    setChildren(at(table).tBodies[0], all, (one) => one.node, () => {
      const who = cell("Who");
      who.append(made("span"), made("span", { class: "aside" }));
      return made("tr", { role: "row" }, who, cell(label, true), cell("Node", true));
    }, (row, one) => {
      setText(row.children[0].firstChild, called(one));
      setLinks(row.children[0].lastChild, word, locks(one));
      setText(row.children[1], time(one));
      setText(row.children[2], String(one.sequence).padStart(10, "0"));
    });
  };
  rows("holders", "Held for", lock.holders, (one) => heldFor(seen, one), "waits for", (one) => one.waits_for);
  const waiters = isWholeQueue ? lock.waiters : lock.waiters.slice(0, MOST_WAITERS);
  rows("waiters", "Queued for", waiters, (one) => lasting(before(seen, one.queued_at)), "holds",
    (one) => holds.get(one.node) || []);
  const rest = (total, all) => (total > all.length ? `The first ${number(all.length)} of ${number(total)}` : "");
  const note = (id, text) => {
    setText(at(id), text);
    show(at(id), text !== "");
  };
  note("holders-note", lock.holders_total === 0 ? "Nobody now." : rest(lock.holders_total, lock.holders));
  note("waiters-note", lock.waiters_total === 0 ? "Nobody waits." : rest(lock.waiters_total, waiters));
  show(at("whole-queue"), lock.waiters.length > waiters.length);
  setText(at("whole-queue"), `Show ${number(lock.waiters.length)} of them`);
}

function renderGraph(seen, lock) {
  const picture = graph(seen, lock.path);
  const isAlone = picture.boxes.length === 1;
  const [ahead, behind] = picture.leftOut;
  const parts = [];
  const nothing = lock.holders_total > 0 ? ", and its holder waits for nothing that is known" : "";
  if (isAlone) parts.push(`Nobody waits for it${nothing}.`);
  else parts.push("An arrow leads from who waits to the lock that is waited for.");
  const wait = behind === 1 ? "lock whose holder waits" : "locks whose holders wait";
  if (behind > 0) parts.push(`Left out: ${number(behind)} ${wait} for these.`);
  if (ahead > 0) parts.push(`Left out: ${counted(ahead, "lock", "locks")} that the holders of these wait for.`);
  setText(at("graph-note"), parts.join(" "));
  show(at("graph"), !isAlone);
  const drawing = isAlone ? null : placed(picture, at("graph").clientWidth);
  const key = JSON.stringify(drawing);
  if (at("graph").dataset.key === key) return;
  at("graph").dataset.key = key;
  const focused = at("graph").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  at("graph").replaceChildren(...(drawing ? [drawnGraph(drawing, lock.path)] : []));
  const isWider = at("graph").scrollWidth > at("graph").clientWidth;
  setAttribute(at("graph"), "tabindex", isWider ? 0 : null);
  if (focused) {
    const same = [...at("graph").querySelectorAll("a")].find((link) => link.getAttribute("href") === focused);
    (same || at("graph")).focus({ preventScroll: true });
  }
}

function drawnGraph(picture, path) {
  const { width, height, boxes, arrows } = picture;
  const svg = drawn("svg", { width, height, viewBox: `-2 -2 ${width} ${height}` });
  for (const arrow of arrows) {
    const group = drawn("g", { class: arrow.isStuck ? "arrow is-stuck" : "arrow", "aria-hidden": "true" });
    group.append(drawn("path", { class: "line", d: arrow.line }), drawn("path", { class: "head", d: arrow.head }));
    svg.append(group);
  }
  const names = new Map(boxes.map((one) => [one.key, one.path === null ? one.name : one.path]));
  for (const one of boxes) {
    const waits = arrows.filter((arrow) => arrow.from === one.key).map((arrow) => names.get(arrow.to));
    const parts = [names.get(one.key), ...one.lines, waits.length > 0 ? `waits for ${waits.join(", ")}` : ""];
    const said = visible(parts.filter(Boolean).join(", "));
    const inside = drawn("svg", { x: one.x, y: one.y, width: BOX.width, height: BOX.height });
    inside.append(drawn("title", {}, said));
    inside.append(drawn("rect", { x: 1.5, y: 1.5, width: BOX.width - 3, height: BOX.height - 3, rx: 5 }));
    inside.append(drawn("text", { x: 10, y: 21, class: "name" }, shortened(one.name, 25, 9)));
    one.lines.forEach((line, index) => {
      inside.append(drawn("text", { x: 10, y: 39 + 16 * index }, shortened(line, 33)));
    });
    const state = `box ${one.state}${one.path === path ? " is-chosen" : ""}${one.path === null ? " is-waiters" : ""}`;
    svg.append(one.path === null
      ? drawn("g", { class: state }, inside)
      : drawn("a", { class: state, href: linkTo(one.path), "aria-label": said }, inside));
  }
  return svg;
}

function renderPast(seen, lock) {
  const { all, begin, end } = bars(seen, lock);
  show(at("past"), all.length > 0);
  setText(at("past-note"), all.length > 0 ? "As far as the looks saw; the latest first." : "None was seen yet.");
  setText(at("past-begin"), clock(begin));
  setText(at("past-end"), clock(end));
  setChildren(at("past").tBodies[0], all, (one) => one.key, () => {
    const bar = cell("When");
    bar.classList.add("bar");
    const picture = drawn("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" });
    picture.append(drawn("rect", { y: 0, height: 10 }));
    bar.append(picture);
    return made("tr", { role: "row" }, cell("Who"), cell("Held for", true), bar);
  }, (row, one) => {
    const [who, held, bar] = row.children;
    setAttribute(row, "class", one.until === null ? "holds" : null);
    setText(who, visible(one.who));
    setText(held, one.until === null ? `${lasting(one.lasted)}, holds` : lasting(one.lasted));
    const picture = bar.firstChild;
    const width = Math.max(6, (one.right - one.left) * 1_000);
    setAttribute(picture.firstChild, "x", Math.min(one.left * 1_000, 1_000 - width).toFixed(1));
    setAttribute(picture.firstChild, "width", width.toFixed(1));
    setAttribute(picture, "aria-label", `from ${clock(one.from)} to ${one.until === null ? "now" : clock(one.until)}`);
  });
}

// ---- The keyboard and the address

let listScroll = 0;
// Whether all waiters of the lock are shown that are listed.
let isWholeQueue = false;
let lastChosen = chosen();

function rowLinks() {
  return [...at("rows").querySelectorAll("a")];
}

function focusRow(link) {
  if (!link) return;
  tabStop = link.dataset.path;
  for (const one of rowLinks()) setAttribute(one, "tabindex", one === link ? "0" : "-1");
  link.focus();
}

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isFilter = event.target === at("filter");
  const links = rowLinks();
  const place = links.indexOf(event.target);
  if (event.key === "/" && !isFilter && !at("search").hidden) {
    at("filter").focus();
  } else if (event.key === "Escape" && isFilter && filter !== "") {
    at("filter").value = "";
    onFilter();
  } else if (event.key === "Escape" && chosen() !== null) {
    leaveLock();
  } else if (isFilter && (event.key === "ArrowDown" || event.key === "Enter")) {
    focusRow(links[0]);
  } else if (place === 0 && event.key === "ArrowUp") {
    at("filter").focus();
  } else if (place >= 0 && event.key in STEPS) {
    focusRow(links[Math.min(links.length - 1, Math.max(0, place + STEPS[event.key]))]);
  } else {
    return;
  }
  event.preventDefault();
}

function leaveLock() {
  history.pushState(null, "", location.pathname + location.search);
  onAddress();
}

function onAddress() {
  const path = chosen();
  if (path === lastChosen) return;
  const from = lastChosen;
  lastChosen = path;
  if (from === null) listScroll = scrollY;
  tabStop = path ?? from;
  isWholeQueue = false;
  render();
  if (path !== null) {
    at("lock").scrollTop = 0;
    showLock();
  } else {
    scrollTo(0, listScroll);
    const link = rowLinks().find((one) => one.dataset.path === from);
    (link || at("filter")).focus({ preventScroll: true });
  }
}

function showLock() {
  // In a narrow window the list is away.
  if (at("list").offsetParent === null) at("lock").scrollIntoView();
  at("lock-name").focus({ preventScroll: true });
}

function onFilter() {
  filter = at("filter").value;
  render();
  announce(at("matches").textContent || at("summary").textContent);
}

function onRowClick(event) {
  const row = event.target.closest("tr");
  if (!row) return;
  const link = row.querySelector("a");
  // A click on the link leads there by itself; one that ends a selection is none.
  if (event.target === link) {
    if (link.dataset.path === chosen()) showLock();
  } else if (getSelection().isCollapsed) {
    link.click();
  }
}

// ---- The loop

let timer = null;
let isAsking = false;

async function ask() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  const outcome = await reply();
  isAsking = false;
  known = after(known, outcome, clocks());
  timer = setTimeout(ask, pause(document.hidden));
  render();
}

async function reply() {
  try {
    const answer = await fetch("/locks.json", { cache: "no-store", signal: AbortSignal.timeout(REPLY_LIMIT) });
    return understood(answer.status, answer.status === 200 ? await answer.json() : null);
  } catch (error) {
    if (error instanceof SyntaxError) return { failure: { kind: "strange", why: "not JSON" } };
    const why = error.name === "TimeoutError" ? `no answer within ${lasting(REPLY_LIMIT)}` : "no connection to it";
    return { failure: { kind: "silent", why } };
  }
}

// The age grows between replies, and may make old what was current.
function tick() {
  const now = clocks();
  if (situation(known, now).isCurrent === last.isCurrent) renderAge(now);
  else render();
}

for (const part of document.querySelectorAll("table, thead, tbody, tr, th")) {
  const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TH: "columnheader" };
  // Said again because narrow windows show rows as blocks, and then some browsers forget what they are.
  part.setAttribute("role", roles[part.tagName]);
}
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
addEventListener("hashchange", onAddress);
addEventListener("popstate", onAddress);
addEventListener("resize", render);
at("filter").addEventListener("input", onFilter);
at("rows").addEventListener("click", onRowClick);
at("whole-queue").addEventListener("click", () => {
  isWholeQueue = true;
  render();
  at("waiters-title").focus({ preventScroll: true });
});
at("to-list").addEventListener("click", (event) => {
  event.preventDefault();
  leaveLock();
});
setInterval(tick, 1_000);
render();
ask();
