// What the theme leaves out for those who read with a keyboard or by ear.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    region.tabIndex = 0
  }
})
