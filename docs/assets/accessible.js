/* What scrolls by itself can be reached with the keyboard, and the buttons of each block of code have a name. */
(() => {
  const scrolling = ".md-typeset__scrollwrap, math[display=block], .long-formula, .highlight code, .md-typeset pre";
  const mark = () => {
    for (const each of document.querySelectorAll(scrolling)) {
      if (each.scrollWidth > each.clientWidth) each.setAttribute("tabindex", "0");
    }
    document.querySelectorAll(".md-code__nav").forEach((each, i) => each.setAttribute("aria-label", `Code ${i + 1}`));
  };
  new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
  window.addEventListener("resize", mark);
  mark();
})();
