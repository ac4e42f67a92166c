"""The entry of the pages: ``streamlit run`` this file, or ``advisor ui``, which serves it through ``served.py``."""

from pathlib import Path

import streamlit as st

from advisor.knowledge import folder
from advisor.views.login import admitted
from advisor.views.warming import seen

PAGES = folder("pages")
# What the theme cannot say. A chosen value is written in the primary colour, which has to be dark under the main button's white letters: too dark
# on a dark ground. A button that is a sentence ends in three dots on a phone, and a table with a long name in it is wider than the phone; numbers
# stay whole; and a line of code in a text would be scrolled, which a keyboard cannot.
# The colours of a diff are Streamlit's, with more contrast. The wide page keeps a margin that is twice as wide as its tables can spare.
STYLE = """<style>
:is([data-testid=stSliderThumbValue], [data-variant=segmented_control][data-selected=true], [role=tab][aria-selected=true]) p { color: CanvasText }
:is([data-testid=stBaseButton-tertiary], [data-testid=stPageLink]) :is(.stMarkdownEllipsis, .stMarkdownEllipsis p) {
  white-space: normal !important; text-align: start
}
[data-testid=stBaseButton-tertiary] p { text-align: start }
[data-testid=stPageLink-NavLink] :is(span:has(> [data-testid=stMarkdownContainer]), p) { white-space: normal }
[data-testid=stCode] .token.unchanged { color: CanvasText !important }
[data-testid=stCode] .token.deleted { color: light-dark(#a8071a, #ff9a91) !important }
[data-testid=stCode] .token.inserted { color: light-dark(#0a6b45, #5fd39b) !important }
[data-testid=stMainBlockContainer] { padding-inline: clamp(1rem, 3vw, 5rem) }
@media (max-width: 640px) {
  [data-testid=stMarkdownContainer] :is(th, td) { font-size: 0.875rem; padding-inline: 0.4rem }
  [data-testid=stMarkdownContainer] td:not([style*=right]) { min-width: 6em; overflow-wrap: anywhere }
  [data-testid=stMarkdownContainer] td code { white-space: normal; overflow-wrap: anywhere }
  [data-testid=stMarkdownContainer] pre :is(code, span) { white-space: pre-wrap !important; overflow-wrap: anywhere }
}
</style>"""

st.set_page_config(page_title="Training memory advisor", page_icon=Path(__file__).with_name("icon.png"), layout="wide")
st.html(STYLE)
if not admitted():
    st.stop()
page = st.navigation(
    [
        st.Page(
            PAGES / "diagnose.py",
            title="Diagnose",
            icon=":material/troubleshoot:",
            default=True,
            help="Paste what you have of a failed run; get the cause and the fix.",
        ),
        st.Page(
            PAGES / "explore.py",
            title="Explore",
            icon=":material/tune:",
            url_path="explore",
            help="Move the settings of a run and see what each part of memory does.",
        ),
        st.Page(
            PAGES / "plan.py",
            title="Plan",
            icon=":material/event_note:",
            url_path="plan",
            help="Before the run: which cards hold it, how long it takes, what it costs.",
        ),
        st.Page(
            PAGES / "probe.py",
            title="Probe",
            icon=":material/labs:",
            url_path="probe",
            help="Run the model's own code without a GPU and count every tensor.",
        ),
        st.Page(
            PAGES / "measure.py",
            title="Measure",
            icon=":material/straighten:",
            url_path="measure",
            help="Real steps on your own card, beside the estimate and the probe.",
        ),
        st.Page(
            PAGES / "events.py",
            title="Events",
            icon=":material/visibility:",
            url_path="events",
            help="Open the log of a watched run: copies, widening, leaks, each with its line.",
        ),
        st.Page(
            PAGES / "learn.py",
            title="Learn",
            icon=":material/school:",
            url_path="learn",
            help="Eight short lessons: predict a figure, then find the cause of a failure.",
        ),
        st.Page(
            PAGES / "accuracy.py",
            title="Accuracy",
            icon=":material/target:",
            url_path="accuracy",
            help="Estimates beside published measurements, the worst first.",
        ),
        st.Page(
            PAGES / "library.py",
            title="Library",
            icon=":material/menu_book:",
            url_path="library",
            help="Causes, techniques, cards and models, each with its source.",
        ),
        st.Page(
            PAGES / "report.py", title="Saved diagnosis", icon=":material/save:", url_path="report", visibility="hidden", help="A saved diagnosis by its id."
        ),
    ],
    position="top",
)
try:
    page.run()
finally:  # a page that stops early has been sent too
    seen()
