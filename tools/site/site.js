// Accessibility that the theme lacks: a label for screen readers, and keyboard focus for scrollable blocks.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    region.tabIndex = 0
  }
})
