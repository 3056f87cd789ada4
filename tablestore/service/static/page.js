// Brings the page up to date without losing the place: every five seconds, unless somebody types or selects.
"use strict";
const SECONDS = 5;
const live = document.getElementById("live");

async function page(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (!found) throw new Error("no page");
  return found;
}

// What is slow, because the broker is asked, comes after the rest.
async function load(place) {
  try {
    place.replaceChildren(...(await page(place.dataset.load)).querySelectorAll("[data-part]"));
  } catch {
    place.textContent = "The log could not be read.";
  }
}

async function refresh() {
  const busy = document.hidden || !getSelection().isCollapsed || document.activeElement?.tagName === "INPUT";
  if (!busy) {
    try {
      const now = await page(location.href);
      const old = new Map([...document.querySelectorAll("[data-load]")].map((each) => [each.dataset.load, each]));
      for (const each of now.querySelectorAll("[data-load]")) {
        const shown = old.get(each.dataset.load);
        if (shown) each.replaceChildren(...shown.childNodes);
      }
      document.querySelector("main").replaceWith(now);
      now.querySelectorAll("[data-load]").forEach(load);
      live.textContent = "live";
    } catch {
      live.textContent = "The service does not answer; trying again.";
    }
  }
  setTimeout(refresh, SECONDS * 1000);
}

document.querySelectorAll("[data-load]").forEach(load);
live.textContent = "live";
setTimeout(refresh, SECONDS * 1000);
